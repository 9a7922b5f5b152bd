"""How much room a run will take on the disk, and whether it is there: said at the start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trinity_compat.dotted import value_at
from trinity_compat.home import from_home
from trinity_compat.spec import RunSpec, has_baseline

_PER_TOKEN = 13.0  # bytes of a response token: id and log-prob of 4 each, text, the database's own
_PER_PROMPT_TOKEN = 9.0  # the same without a log-prob
_PER_ANSWER = 1500.0  # bytes beside its tokens: row, metrics, its part of the task
_ADAM = 3  # a checkpoint's parameters and two moments, each as large as the weights in float32
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: what the buffer takes at most, for answers as long as they may be; and the checkpoints, None
    where the model is not on this machine."""

    buffer: float
    checkpoints: float | None


def need(spec: RunSpec) -> Need | None:
    """Of the whole run; None where nobody knows its length."""
    if not spec.total_steps:
        return None
    return Need(_buffer(spec, spec.total_steps), _checkpoints(spec, spec.total_steps))


def remarks(spec: RunSpec, folder: Path) -> Iterator[str]:
    """What the run needs in ``folder`` and what is free, and a warning where that is too little."""
    found, free = need(spec), shutil.disk_usage(_existing(folder)).free
    if found is None:
        yield f"disk      buffer up to {_gb(_buffer(spec, 1))} a step; free at {folder}: {_gb(free)}"
        return
    local = spec.database_url.startswith("sqlite")
    total = (found.buffer if local else 0.0) + (found.checkpoints or 0.0)
    where = "" if local else " in its database"
    parts = [f"buffer up to {_gb(found.buffer)}{where}"] if found.buffer else []
    parts += [f"checkpoints about {_gb(found.checkpoints)}"] if found.checkpoints else []
    yield f"disk      {' + '.join(parts) or 'no checkpoints'}; free at {folder}: {_gb(free)}"
    if total > free:
        yield (
            f"warning: the run may need {_gb(total)} and {_gb(free)} are free:"
            " --set trinity_compat.keep_steps=K drops texts and tokens of older steps,"
            " trainer.max_actor_ckpt_to_keep limits the checkpoints, --job DIR puts both elsewhere"
        )


def _buffer(spec: RunSpec, steps: int) -> float:
    if spec.rows:
        return 0.0
    data, rollout = spec.verl["data"], spec.verl["actor_rollout_ref"]["rollout"]
    tokens = _PER_TOKEN * int(data["max_response_length"])
    each = _PER_ANSWER + tokens + _PER_PROMPT_TOKEN * int(data["max_prompt_length"])
    a_step = int(data["train_batch_size"]) * (int(rollout["n"]) + has_baseline(spec.verl))
    whole = steps if spec.keep_steps is None else min(steps, spec.keep_steps + _held(spec))
    return a_step * (whole * each + (steps - whole) * _PER_ANSWER)


def _held(spec: RunSpec) -> int:
    """Steps that stay beside ``keep_steps``: since the last checkpoint, and what is made ahead."""
    return max(1, int(value_at(spec.verl, "trainer.save_freq") or 0)) + spec.sync.interval + 1


def _checkpoints(spec: RunSpec, steps: int) -> float | None:
    every = int(value_at(spec.verl, "trainer.save_freq") or 0)
    if every <= 0:
        return 0.0
    kept = value_at(spec.verl, "trainer.max_actor_ckpt_to_keep")
    count = min(-(-steps // every), int(kept) + 1 if kept else steps)
    size = _parameters(from_home(str(value_at(spec.verl, "actor_rollout_ref.model.path"))))
    return None if size is None else count * size * 4.0 * _ADAM


def _parameters(model: Path) -> float | None:
    """From the files' size, two bytes each as models are published; None where there are none."""
    for pattern in _WEIGHTS:
        if sizes := [path.stat().st_size for path in model.glob(pattern)]:
            return sum(sizes) / 2
    return None


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.0f} MB"
