"""The explorer's engine is vLLM, whatever the launch names."""

from __future__ import annotations

from trinity_compat.containers import section_at
from trinity_compat.dotted import value_at
from trinity_compat.runtime.plan.verl_view import ROLLOUT, Step, VerlView
from trinity_compat.translate.run_refusals import OTHER_ENGINES


def on_vllm(verl: VerlView, section: str = ROLLOUT, who: str = "the explorer") -> Step:
    """The configuration with vLLM in place of another engine that veRL has; what is meant for that engine
    alone (``engine_kwargs`` of its name) is left out by name. What it says for vLLM holds. ``section`` is
    that of the engine, which is ``who``'s."""
    name = value_at(verl.tree, f"{section}.name")
    if name not in OTHER_ENGINES:
        return verl, []
    line = f"{section}.name={name}: {who} runs vLLM in its place"
    if left := _own_arguments(verl, section, str(name).removesuffix("_async")):
        line += f"; left out: {', '.join(left)}"
    return verl.changed({f"{section}.name": "vllm"}), [line]


def _own_arguments(verl: VerlView, section: str, name: str) -> list[str]:
    given = section_at(verl.tree, f"{section}.engine_kwargs.{name}")
    return [f"engine_kwargs.{name}.{key}={value}" for key, value in given.items() if value is not None]
