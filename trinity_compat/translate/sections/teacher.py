"""A teacher's model: Trinity serves it as an auxiliary model, here it is the trainer's reference model."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.common.errors import UserError
from trinity_compat.translate.registry import VerlSettings, way_back
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.trinity.algorithms.model import CLASSES
from trinity_compat.trinity.algorithms.selection import choose, needs_teacher

AUXILIARY = "explorer.auxiliary_models"
TEACHER = "actor_rollout_ref.actor.policy_loss.trinity_teacher"
_MODEL = f"{AUXILIARY}.0.model_path"
_TEMPERATURE = "buffer.explorer_input.tasksets.0.workflow_args.temperature"


def is_taught(reading: TrinityReader) -> bool:
    """Return True if the algorithm learns from a teacher. Raises UserError for an unknown algorithm."""
    section = reading.get("algorithm")
    return isinstance(section, Mapping) and bool(section) and needs_teacher(choose(section))


@way_back
def teacher(reading: TrinityReader) -> VerlSettings:
    """Return the reference's weights.

    Raises UserError for a teacher that is missing or cannot be the reference.
    """
    if not is_taught(reading):
        return
    name = reading.get("algorithm.algorithm_type")
    path = reading.get(_MODEL)
    if not path:
        raise UserError(
            f"{_MODEL} is missing: {name} learns from a teacher",
            hint="write the teacher's folder or name; it is loaded as the trainer's reference model",
        )
    if reading.get("model.lora_configs"):
        raise UserError(
            f"model.lora_configs: with LoRA the reference is the policy without it, and {name} needs the"
            " teacher in its place",
            hint="leave it out",
        )
    asked, sampled = reading.get(_TEMPERATURE, 1.0), reading.get("model.temperature", 1.0)
    if asked != sampled:
        raise UserError(
            f"{_TEMPERATURE}={asked}: the teacher is asked at the answers' temperature, {sampled}",
            hint=f"write {sampled} there and in model.temperature",
        )
    yield TEACHER, path
    yield "actor_rollout_ref.actor.policy_loss._target_", f"{CLASSES}.PolicyLoss"
