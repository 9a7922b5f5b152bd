"""The translation itself: an effective veRL configuration in, a Trinity configuration out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from trinity_compat.errors import UserError
from trinity_compat.translate.apply import Draft, apply_rows
from trinity_compat.translate.cautions import launch_cautions
from trinity_compat.translate.findings import judge
from trinity_compat.translate.inverse import compat_path
from trinity_compat.translate.model import Translation
from trinity_compat.translate.options import Options
from trinity_compat.translate.residue import carry
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.symbols import Symbols
from trinity_compat.translate.view import View
from trinity_compat.trinity_config import validate
from trinity_compat.verl_config import upgrade
from trinity_compat.verl_config.model import EffectiveConfig, Setting

MAINS = ("verl.trainer.main_ppo", "recipe.dapo.main_dapo")
_OTHERS = {
    "sft": "supervised fine-tuning has no rollout to decouple; Trinity's own sft mode reads another dataset format",
    "fully_async": "this recipe is decoupled already, by its own trainer",
    "one_step_off": "this recipe is decoupled already, by its own trainer",
    "transfer_queue": "this recipe replaces veRL's trainer by one on TransferQueue",
}


def translate(
    effective: EffectiveConfig,
    options: Options,
    *,
    symbolic: EffectiveConfig | None = None,
    symbols: Symbols | None = None,
) -> Translation:
    """Return the Trinity configuration that means what ``effective`` means, and a finding per key.

    ``symbolic`` is the same launch composed with marks for its environment variables (symbols.py).
    Raises UserError for another main than main_ppo or main_dapo, a batch size that doesn't divide, a
    GPU split that was asked for and cannot run, an unknown value that feeds a number.
    """
    refuse_other_mains(effective.launch.module, effective)
    upgraded = upgrade(effective)
    view = View(
        config=upgraded.config,
        symbolic=_symbolic(symbolic, upgraded.config),
        symbols=symbols or Symbols(),
        options=options,
        origin=effective,
    )
    rows = load_rows(options.rules)
    draft = apply_rows(view, rows)
    carry(view, draft)
    draft.cautions += launch_cautions(view, draft)
    judged = judge(view, rows, draft, upgraded)
    findings = judged.findings()
    config = symbols_written(view, draft)
    provenance = {path: _written(view, note) for path, note in draft.provenance.items()}
    _assign(config, provenance, options)
    return Translation(config, provenance, findings, tuple(draft.cautions), _facts(view, draft))


def refuse_other_mains(module: str, effective: EffectiveConfig) -> None:
    """Raise UserError unless ``module`` is a training main that is translated."""
    if module in MAINS:
        return
    why = next((reason for part, reason in _OTHERS.items() if part in module), "its trainer is a recipe of its own")
    raise UserError(
        f"{module} is not translated: {why}",
        where=effective.launch.where,
        hint=f"translated are {' and '.join(MAINS)}; audit lists this launch's keys",
    )


def symbols_written(view: View, draft: Draft) -> dict[str, Any]:
    """The configuration with each mark as the YAML spells it."""
    config: dict[str, Any] = view.symbols.written(draft.config)
    return config


def _written(view: View, note: str) -> str:
    text: str = view.symbols.written(note)
    return text


def _symbolic(symbolic: EffectiveConfig | None, config: EffectiveConfig) -> Mapping[str, Setting]:
    return upgrade(symbolic).config.settings if symbolic else config.settings


def _assign(config: dict[str, Any], provenance: dict[str, str], options: Options) -> None:
    """Apply ``--set``; what trinity-rft would refuse then is an error of the user's."""
    draft = Draft(config, provenance)
    for path, value in options.assignments.items():
        draft.put(path, yaml.safe_load(value) if isinstance(value, str) else value, f"--set {path}")
    if not options.assignments:
        return
    for problem in validate(config, options.trinity):
        if _concerns(problem.path, options.assignments):
            raise UserError(f"--set {problem.path}: {problem.message}", hint=problem.hint)


def _concerns(path: str, assigned: Mapping[str, Any]) -> bool:
    return any(path == name or path.startswith(name + ".") or name.startswith(path + ".") for name in assigned)


def _facts(view: View, draft: Draft) -> dict[str, Any]:
    rollout = draft.config.get("explorer", {}).get("rollout_model", {})
    return {
        "updates_per_step": view.r,
        "verl_version": view.origin.version.value,
        "verl_version_why": view.origin.version.why,
        "target": view.options.trinity,
        "engines": rollout.get("engine_num"),
        "compat": compat_path(view.options.trinity),
    }
