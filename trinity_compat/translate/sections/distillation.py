"""On-policy distillation, which has no place in Trinity's configuration: verdicts and a warning."""

from __future__ import annotations

from trinity_compat.job.distillation import ENABLED, MODELS
from trinity_compat.translate.launch_view import LaunchView, Verdict
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.registry import Derived, derivation
from trinity_compat.translate.run_refusals import refused_of_teacher


@derivation
def distillation(view: LaunchView) -> Derived:
    """Yield what a run refuses of the teachers, and that upstream has none."""
    if not view.flag(ENABLED):
        return
    for name in dict.fromkeys(key.partition(".")[0] for key in view.below(MODELS)):
        for key, _, why, _ in refused_of_teacher(view.value, f"{MODELS}.{name}"):
            yield Verdict(key, Status.UNSUPPORTED, f"our runtime refuses it: {why}")
    yield Caution(
        "TW017",
        "on-policy distillation: upstream trains this YAML without its teachers; our runtime serves them",
        view.where(ENABLED),
    )
