"""Estimate of the disk space of a run, and of the space that is free."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import read_section, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.job.distillation import stores_top_tokens, teacher_bytes
from trinity_compat.job.run_spec import RunSpec, has_baseline
from trinity_compat.run.plan.workflows import longest_response

_PER_TOKEN = 13.0  # bytes of a response token: id and log-prob of 4 each, text, the database's own
_PER_PROMPT_TOKEN = 9.0  # the same without a log-prob
_PER_ANSWER = 1500.0  # bytes beside its tokens: row, metrics, its part of the task
_ADAM = 3  # a checkpoint's parameters and two moments, each as large as the weights in float32
_WEIGHTS = ("*.safetensors", "*.bin")
_SHARED = Path("/dev/shm")  # synchronizer.sync_method=memory
VERSIONS = 2  # of the weights, at a time: one is read while the next is written
_BYTES = {"float32": 4.0, "float": 4.0, "fp32": 4.0}  # of a parameter; others have 2
_WRITES_NONE = ("explore", "bench", "serve")  # their weights come from elsewhere, or of a checkpoint
_OTHER_METHOD = "--set synchronizer.sync_method=checkpoint puts them into the job's folder"


@dataclass(frozen=True, slots=True)
class SpaceNeeded:
    """Bytes of the buffer at most, with answers at their longest, and of the checkpoints.

    ``checkpoints`` is None where the model is not on this machine.
    """

    buffer: float
    checkpoints: float | None


def space_needed(spec: RunSpec) -> SpaceNeeded | None:
    """Space that the whole run needs; None where its number of steps is unknown."""
    if not spec.total_steps:
        return None
    return SpaceNeeded(_buffer(spec, spec.total_steps), _checkpoints(spec, spec.total_steps))


def remarks(spec: RunSpec, folder: Path) -> Iterator[str]:
    """Yield the needed and the free space in ``folder``, with a warning where it is too little."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    needed, free = space_needed(spec), shutil.disk_usage(existing).free
    if needed is None:
        yield f"disk      buffer up to {in_gb(_buffer(spec, 1))} a step; free at {folder}: {in_gb(free)}"
        yield from _of_shared_memory(spec)
        return
    local = spec.database_url.startswith("sqlite")
    weights = VERSIONS * (_version(spec) or 0.0) if spec.sync.method == "checkpoint" else 0.0
    total = (needed.buffer if local else 0.0) + (needed.checkpoints or 0.0) + weights
    where = "" if local else " in its database"
    parts = [f"buffer up to {in_gb(needed.buffer)}{where}"] if needed.buffer else []
    parts += [f"checkpoints about {in_gb(needed.checkpoints)}"] if needed.checkpoints else []
    parts += [f"{VERSIONS} versions of the weights {in_gb(weights)}"] if weights else []
    yield f"disk      {' + '.join(parts) or 'no checkpoints'}; free at {folder}: {in_gb(free)}"
    yield from _of_shared_memory(spec)
    if total > free:
        yield (
            f"warning: the run may need {in_gb(total)}, but only {in_gb(free)} are free:"
            " --set trinity_compat.keep_steps=K drops texts and tokens of older steps,"
            " trainer.max_actor_ckpt_to_keep limits the checkpoints, --job DIR puts both elsewhere"
        )


def check_shared_memory(spec: RunSpec) -> None:
    """Raise UserError where shared memory is too small for one version of the weights.

    The run would end with ENOSPC after its engines have started. Docker gives a container 64 MB.
    """
    sizes = _shared_memory(spec)
    if sizes is not None and sizes[0] > sizes[1]:
        one, free = sizes
        enough = f"{math.ceil(VERSIONS * one / 1e9)}g"
        raise UserError(
            f"a version of the weights takes {in_gb(one)} in {_SHARED}, but only {in_gb(free)} are free",
            hint=f"{_OTHER_METHOD}; or give {_SHARED} more space (docker run --shm-size={enough})",
        )


def _of_shared_memory(spec: RunSpec) -> Iterator[str]:
    sizes = _shared_memory(spec)
    if sizes is None:
        return
    one, free = sizes
    # In turns the engines have told their dtypes before the first version; else it may come before that.
    first = one if spec.mode == "colocate" else one / _published(spec) * _BYTES["float32"]
    need = one + first
    which = f"{VERSIONS} versions" if first == one else f"{VERSIONS} versions, the first perhaps in float32"
    yield f"weights   about {in_gb(need)} in {_SHARED} ({which}); free there: {in_gb(free)}"
    if need > free:
        yield f"warning: {_SHARED} may fill up while weights are handed over: {_OTHER_METHOD}"


def _shared_memory(spec: RunSpec) -> tuple[float, float] | None:
    """Bytes of one version of the weights, and those free for it, what an earlier start left counted as free.

    None where weights go another way, or the model is not on this machine.
    """
    folder = Path(spec.sync.directory)
    if spec.sync.method != "memory" or _SHARED not in folder.parents or (one := _version(spec)) is None:
        return None
    leftover = (
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    )
    return one, shutil.disk_usage(_SHARED).free + leftover


def _version(spec: RunSpec) -> float | None:
    """Bytes of one version of the weights; None where none is written, or the model is not here."""
    if spec.rows or spec.mode in _WRITES_NONE:
        return None
    model = from_home(str(value_at(spec.verl, "actor_rollout_ref.model.path")))
    stored = _stored(model)
    if stored is None:
        return None
    config = read_section(model / "config.json")
    each = _BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2.0)
    return stored / each * _published(spec)


def _published(spec: RunSpec) -> float:
    return _BYTES.get(str(value_at(spec.verl, "actor_rollout_ref.rollout.dtype")), 2.0)


def _buffer(spec: RunSpec, steps: int) -> float:
    if spec.rows:
        return 0.0
    data = spec.verl["data"]
    tokens = _PER_TOKEN * longest_response(spec.verl)
    each = _PER_ANSWER + tokens + _PER_PROMPT_TOKEN * int(data["max_prompt_length"])
    answers = int(spec.verl["actor_rollout_ref"]["rollout"]["n"]) + has_baseline(spec.verl)
    a_step = int(data["train_batch_size"]) * answers
    whole = steps if spec.keep_steps is None else min(steps, spec.keep_steps + _extra_steps(spec))
    # The trainer drops a teacher's top tokens once no resume needs them, whatever keep_steps is.
    taught = min(steps, 1 + _extra_steps(spec)) if stores_top_tokens(spec.verl) else whole
    of_teachers = taught * teacher_bytes(spec.verl) * longest_response(spec.verl)
    return a_step * (whole * each + (steps - whole) * _PER_ANSWER + of_teachers)


def _extra_steps(spec: RunSpec) -> int:
    """Steps that stay beside ``keep_steps``: since the last checkpoint, and what is made ahead."""
    return max(1, int(value_at(spec.verl, "trainer.save_freq") or 0)) + spec.sync.interval + 1


def _checkpoints(spec: RunSpec, steps: int) -> float | None:
    every = int(value_at(spec.verl, "trainer.save_freq") or 0)
    if every <= 0:
        return 0.0
    kept = value_at(spec.verl, "trainer.max_actor_ckpt_to_keep")
    count = min(-(-steps // every), int(kept) + 1 if kept else steps)
    stored = _stored(from_home(str(value_at(spec.verl, "actor_rollout_ref.model.path"))))
    # A parameter has two bytes in these files, and four in a checkpoint.
    return None if stored is None else count * stored / 2 * 4.0 * _ADAM


def _stored(model: Path) -> float | None:
    """Bytes of the files with a model's weights; None where there are none."""
    for pattern in _WEIGHTS:
        if sizes := [path.stat().st_size for path in model.glob(pattern)]:
            return float(sum(sizes))
    return None


def in_gb(nbytes: float) -> str:
    """Return a size for a reader."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.0f} MB"
