"""Estimate of the host memory that a machine needs for a run in turns on its GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trinity_compat.advise import memory
from trinity_compat.advise.memory import MOMENT_BYTES, WEIGHT_BYTES, ResidentParts
from trinity_compat.advise.model_shape import BYTES
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import section_at, value_at
from trinity_compat.job.gpus import engine_count, trainer_gpus
from trinity_compat.job.lora import is_handed_over
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.checks.disk_space import VERSIONS, in_gb
from trinity_compat.run.plan import estimates
from trinity_compat.run.plan.verl_view import ROLLOUT

OFFLOADED = WEIGHT_BYTES + MOMENT_BYTES


def remarks(spec: RunSpec, cwd: Path) -> Iterator[str]:
    """Yield the memory that each machine of a run in turns needs, with a warning where this one has less.

    Versions in shared memory are part of it. Nothing is said where the model's sizes are not known.
    """
    if spec.mode != "colocate" or spec.device == "cpu" or spec.rows:
        return
    if not estimates.is_known(spec.verl, cwd):
        return
    import psutil  # doctor reads this module without it

    try:
        parts = _parts(spec, cwd)
    except UserError:
        return
    need, free = sum(parts.values()), psutil.virtual_memory().available
    listed = " + ".join(f"{in_gb(size)} {what}" for what, size in parts.items() if size)
    if listed:
        yield f"memory    a machine needs about {in_gb(need)}: {listed}; free here: {in_gb(free)}"
    if need > free:
        yield (
            "warning: Ray ends processes of a machine whose memory is full; offload less (param_offload,"
            " optimizer_offload), write synchronizer.sync_method=checkpoint, or use more machines"
        )


def _parts(spec: RunSpec, cwd: Path) -> dict[str, float]:
    """Return bytes on one machine, by what they are for. Raises UserError."""
    shape, _ = estimates.shape_of(spec.verl, cwd)
    training, _ = estimates.training_of(spec.verl)
    nodes = int(value_at(spec.verl, "trainer.nnodes"))
    offloaded = 0.0
    if training:
        gpus = trainer_gpus(spec.verl)
        stay = ResidentParts() if spec.offloads else training.stays
        moved = ResidentParts(
            training.models - stay.weights,
            training.models - stay.optimizers,
            training.references - stay.references,
        )
        offloaded = memory.resident(shape, training, moved, gpus) * memory.GIB * gpus
    drafts = all(value_at(spec.verl, f"{ROLLOUT}.mtp.{name}") for name in ("enable", "enable_rollout"))
    keeps = drafts or is_handed_over(spec.verl)
    asleep = engine_count(section_at(spec.verl, ROLLOUT), spec.device) / nodes * BYTES if keeps else 0.0
    versions = VERSIONS * BYTES if spec.sync.method == "memory" and not is_handed_over(spec.verl) else 0
    return {
        "of the trainer's, offloaded": offloaded / nodes,
        "of sleeping engines": asleep * shape.weights,
        f"of {VERSIONS} versions in shared memory": versions * shape.weights,
    }
