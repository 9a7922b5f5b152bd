"""Lengths and speeds of a job, read from its database; nothing is written."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import trainer_gpus
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.job_dir import JobDir

_ANSWERS = 4096  # the newest ones
_WARM = 2  # steps that are left out where there are more
_NOT_TRAINING = ("timing_s/gen", "timing_s/testing", "timing_s/save_checkpoint")


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a job.

    ``answers``: lengths in tokens; ``prompt``: mean length. ``training``: tokens a second that one device of
    the trainer trains. ``step_s``: seconds a step; ``generation_s``: seconds in which the engines made one
    step's answers, of style fixed alone, where nothing else is in flight. None where no step was measured.
    """

    answers: tuple[int, ...]
    prompt: float
    training: float | None
    step_s: float | None
    generation_s: float | None
    spec: RunSpec


def read(root: Path) -> Measured:
    """Read a running or finished job. Raises UserError for a folder without a job, or without an answer."""
    from trinity_compat.common import optional_packages

    optional_packages.need_for_a_run()
    from trinity_compat.buffer.reading import UnwritableDatabase, open_for_reading
    from trinity_compat.buffer.store import Buffer

    job = JobDir.at(root)
    spec = job.load_started_spec()
    url = spec.database_url
    is_file = database_url.file_of(url) is not None
    with closing(Buffer(UnwritableDatabase(url) if is_file else open_for_reading(url))) as buffer:
        lengths = buffer.newest_lengths(_ANSWERS)
        if not lengths:
            raise UserError(f"{job.root}: this job has no answers yet", hint="wait for its first step")
        trained = _settled([values for step, values in buffer.read_metrics("trainer") if step > 0])
        made = _settled([values for step, values in buffer.read_metrics("explorer") if step > 0])
        steps = [values["timing_s/step"] for values in trained if "timing_s/step" in values]
        generated = [values["time/rollout"] for values in made if "time/rollout" in values]
        is_fixed = spec.sync.style == "fixed" and spec.sync.interval == 1
        return Measured(
            answers=tuple(answer for answer, _ in lengths),
            prompt=mean(prompt for _, prompt in lengths),
            training=_training(trained, trainer_gpus(spec.verl)),
            step_s=median(steps) if steps else None,
            generation_s=median(generated) if generated and is_fixed else None,
            spec=spec,
        )


def _settled(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Leave out the first steps, in which kernels are compiled."""
    return rows[_WARM:] or rows


def _training(rows: list[dict[str, float]], devices: int) -> float | None:
    """Return the tokens a second of one device, over the time in which the trainer waits for nothing."""
    rates = []
    for values in rows:
        tokens, spent = values.get("perf/total_num_tokens"), values.get("timing_s/step")
        if not tokens or not spent:
            continue
        worked = spent - sum(values.get(name, 0.0) for name in _NOT_TRAINING)
        if worked > 0:
            rates.append(tokens / worked / devices)
    return median(rates) if rates else None
