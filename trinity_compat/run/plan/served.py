"""Checks of every model that a run serves beside its policy: its engine, its turns, its shares."""

from __future__ import annotations

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.run.plan import engine
from trinity_compat.run.plan.verl_view import Step, VerlView


def on_vllm(verl: VerlView, section: str, who: str) -> Step:
    """Set vLLM as the engine of ``section``, which is ``who``'s.

    Older releases had no such key; veRL 0.9.1 requires one ("???").
    """
    name = f"{section}.name"
    if value_at(verl.tree, name) in (None, "???"):
        return verl.changed({name: "vllm"}), [f"{name} = vllm: the launch names no engine"]
    return engine.on_vllm(verl, section, who)


def refusal_of_turns(enabled: str, who: str, hint: str) -> UserError:
    """Return the refusal of mode colocate, for ``who`` by the key ``enabled``.

    Engines of that mode take a machine's first GPUs, which Ray may have given to a served model.
    """
    return UserError(
        f"{enabled}=True: in mode colocate trainer and explorer take turns on every GPU, and {who} no turn",
        hint=hint,
    )


def checked_engines(engines: int, explorers: int, who: str) -> int:
    """Raise UserError where explorers that are separate commands cannot share the engines evenly."""
    if engines % explorers:
        raise UserError(
            f"--explorers {explorers}, each a command of its own, cannot share {engines} engine(s) of {who}"
            " evenly",
            hint=f"start the explorers with one command, or give {who} more GPUs",
        )
    return engines
