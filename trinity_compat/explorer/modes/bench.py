"""Mode ``bench``: evaluation of every checkpoint of a job on the validation rows.

Tasks, sampling, seeds and metric names are those of the validation that the trainer requests, so that a
checkpoint gives the figures of the step that wrote it. Answers are stored as they come, under its
fingerprint: a bench that was stopped continues with the rows that lack one, and a checkpoint that was
rewritten is evaluated again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinity_compat.buffer.model import Group, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import UserError
from trinity_compat.common.paths import from_home
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.explorer.trackers import Trackers
from trinity_compat.job.checkpoints import BENCHED, actor_of
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.shards import actor_weights
from trinity_compat.synchronizer.versions import write_version

_log = logging.getLogger(__name__)

ROLE = "bench"


class Bench:
    """Evaluates ``spec.checkpoints`` in their order; 0 is the model path and comes first."""

    def __init__(
        self,
        spec: RunSpec,
        buffer: Buffer,
        builder: GroupBuilder,
        jobs: Sequence[RolloutTask],
        trackers: Trackers,
        heart: Heartbeat,
    ) -> None:
        self._spec, self._buffer, self._builder, self._jobs = spec, buffer, builder, jobs
        self._trackers, self._heart = trackers, heart
        self._settings = settings_of(spec.verl)

    async def run(self) -> None:
        """Evaluate them. Raises UserError without validation rows, or for an unreadable checkpoint."""
        if not self._jobs:
            raise UserError("data.val_files names no rows", hint="bench evaluates data.val_files")
        for step in self._spec.checkpoints:
            mark = fingerprint(self._folder(step), self._settings)
            if BENCHED.at(step).get(self._buffer) == mark:
                _log.info("step %d: evaluated before", step)
                continue
            await self._evaluate(step, mark)

    def _folder(self, step: int) -> Path:
        if step == 0:
            return from_home(self._spec.verl["actor_rollout_ref"]["model"]["path"])
        return actor_of(Path(self._spec.job_dir), step)

    async def _evaluate(self, step: int, mark: str) -> None:
        kind = f"{ROLE}:{step}:{mark}"
        done = {group.task_no for group in self._buffer.groups(kind)}
        todo = [job for job in self._jobs if job.task_no not in done]
        self._heart.state, self._heart.detail = "running", {"step": step, "rows": len(todo)}
        if todo:
            with self._weights(step) as version:
                await self._answer(StepWork(step, kind, todo), version)
        metrics = validation_metrics(self._buffer.groups(kind))
        self._buffer.log_metrics(ROLE, step, metrics)
        self._trackers.log(step, metrics)
        BENCHED.at(step).set(self._buffer, mark)
        core = (f"{name} {value:.5g}" for name, value in metrics.items() if name.startswith("val-core/"))
        _log.info("step %d: %s", step, ", ".join(core))

    async def _answer(self, work: StepWork, version: WeightVersion) -> None:
        if version is not INITIAL:
            await self._builder.load(version)
        async for group in self._builder.groups(work, work.step, 0):
            self._heart.check()
            self._buffer.put_groups([replace(group, key=f"{work.kind}/{group.task_no}")])
            rows = self._heart.detail["rows"]
            assert isinstance(rows, int)
            self._heart.detail = {**self._heart.detail, "rows": rows - 1}

    @contextlib.contextmanager
    def _weights(self, step: int) -> Iterator[WeightVersion]:
        if step == 0:
            yield INITIAL
            return
        with checkpoint_version(self._spec, step) as version:
            yield version


@contextlib.contextmanager
def checkpoint_version(spec: RunSpec, step: int) -> Iterator[WeightVersion]:
    """Write the actor of a checkpoint as a version into the spec's folder, and delete it at the end.

    Raises UserError for an unreadable checkpoint.
    """
    tensors = published_actor(spec.verl, actor_of(Path(spec.job_dir), step))
    version = write_version(spec.sync.directory, step, tensors)
    try:
        yield version
    finally:
        shutil.rmtree(version.path, ignore_errors=True)


def published_actor(verl: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Read a checkpoint's actor as the trainer publishes it, merged; the engine rounds it."""
    model = verl["actor_rollout_ref"]["model"]
    lora = model.get("lora") or {}
    rank = lora.get("rank") or model.get("lora_rank") or 0
    alpha = (lora.get("alpha") if lora.get("rank") else model.get("lora_alpha")) or 0
    yield from actor_weights(folder, lora_scale=float(alpha) / float(rank) if rank else 0.0).items()


def settings_of(verl: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an evaluation depends on."""
    data, rollout = verl["data"], verl["actor_rollout_ref"]["rollout"]
    names = ("val_files", "val_max_samples", "seed", "max_prompt_length", "max_response_length", "truncation")
    sampling = data.get("taskset_sampling") or {}
    of_tasksets = {name: value for name, value in sampling.items() if name.startswith("eval/")}
    return {
        "val_kwargs": rollout["val_kwargs"],
        **({"taskset_sampling": of_tasksets} if of_tasksets else {}),
        "rollout": {name: rollout.get(name) for name in ("seed", "dtype", "repetition_penalty")},
        "data": {name: data.get(name) for name in names},
        "reward": verl.get("reward"),
    }


def fingerprint(folder: Path, settings: Mapping[str, Any]) -> str:
    """Hash the model's files in ``folder`` (name, size, time of writing) and the evaluation's settings."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    files = [path for path in found if path.name.startswith("model") or path.suffix == ".safetensors"]
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([stats, settings], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def validation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Compute veRL's val-core/val-aux metrics of stored answers, in the order of its ``_validate``."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    pairs = [(group, part) for group in groups for part in group.experiences]
    sources = np.array([group.task.get("data_source", "unknown") for group, _ in pairs], dtype=object)
    infos: dict[str, list[Any]] = {"reward": [float(np.float32(part.reward)) for _, part in pairs]}
    for name in dict.fromkeys(name for _, part in pairs for name in part.info):
        infos[name] = [part.info.get(name) for _, part in pairs]
    turns = [np.array([part.num_turns for _, part in pairs], dtype=np.int32)]
    uids = [str(group.task_no) for group, _ in pairs]
    # The method does not use its trainer.
    metrics = RayPPOTrainer._val_metrics_update(None, sources, uids, infos, turns)
    return {name: float(value) for name, value in metrics.items()}
