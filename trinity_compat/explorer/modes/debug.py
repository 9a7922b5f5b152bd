"""Mode ``debug``: serve a run's model, or run one task through its workflow and print every part."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trinity_compat.buffer.images import kept
from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.buffer.row_fields import carried
from trinity_compat.buffer.typed_json import plain
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.configuration import configuration
from trinity_compat.explorer.data.operators import pipeline_of, prepared
from trinity_compat.explorer.data.tasks import TaskStream, eval_stream, train_stream
from trinity_compat.explorer.engine.arguments import engine_environment, worker_env
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.sampling import make_job
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask, Trajectory
from trinity_compat.explorer.modes.debug_server import EngineServer, HttpEngine
from trinity_compat.explorer.rewards.reward_model.address import is_served
from trinity_compat.explorer.rewards.scoring import LocalScorer, Score
from trinity_compat.explorer.rollout.worker import EngineSlots, RolloutWorker, make_engine
from trinity_compat.explorer.scheduling.group_builder import experience_of
from trinity_compat.job.answer_info import OF_RUN
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.transports.files import WeightFile, write_file
from trinity_compat.trinity.pipelines.runner import DROPPED_BY


@dataclass(frozen=True, slots=True)
class DebugTask:
    """The task to run: row ``task`` of the ``train`` or ``val`` data, ``n`` answers (None: as the run)."""

    task: int = 0
    data: str = "train"
    n: int | None = None


async def serve(spec: RunSpec, port: int, checkpoint: Path | None = None) -> None:
    """Serve ``actor_rollout_ref.model.path``, or the actor of a checkpoint, until cancelled."""
    from verl.utils.config import omega_conf_to_dataclass

    os.environ.update(worker_env(spec.device, spec.env) | engine_environment(spec.verl, spec.device))
    config, _, _ = configuration(spec)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    engine = make_engine(config, model, spec.device, 0)
    server = EngineServer(engine, {"model": str(config.actor_rollout_ref.model.path), "pid": os.getpid()})
    with tempfile.TemporaryDirectory(prefix="tc-debug-") as folder:
        await server.serve(port, _weights(spec, checkpoint, folder) if checkpoint else None)


def _weights(spec: RunSpec, checkpoint: Path, folder: str) -> WeightFile:
    from trinity_compat.explorer.modes.bench import published_actor

    return write_file(folder, 0, published_actor(spec.verl, checkpoint))


class _Worker(RolloutWorker):
    """A rollout worker on a served engine; an agent loop's error is raised with its traceback."""

    def __init__(self, verl: Mapping[str, Any], device: str, engine: HttpEngine) -> None:
        super().__init__(verl, device)
        self._engine, self._requests_in_flight = engine, InflightRequests(engine)

    async def _by_agent(self, job: RolloutTask) -> RolloutResult:
        try:
            return RolloutResult(
                job.task_no, tuple(await self._run_agent(job, EngineSlots(job.answers, self._count_ended)))
            )
        finally:
            if self._workflows:
                await self._workflows.close()


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Result of one task."""

    task: Mapping[str, Any]
    trajectories: Sequence[Trajectory]
    scores: Sequence[Score]
    prompt: str
    responses: Sequence[str]
    rollout_s: float
    reward_s: float
    fates: Sequence[str] = ()  # of each answer, by a pipeline

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        index, source = self.task.get("index"), self.task.get("data_source")
        yield f"task      index {index} of data_source {source!r}"
        yield f"truth     {(self.task.get('reward_model') or {}).get('ground_truth')!r}"
        yield f"prompt    {self.prompt!r}"
        for run, (part, score, text) in enumerate(
            zip(self.trajectories, self.scores, self.responses, strict=True)
        ):
            of_run = score.info.get(OF_RUN)
            place = f"{of_run['run']}.{of_run['row']}" if of_run else f"{run}"
            yield f"answer {place}  {text!r}"
            tokens = f"{len(part.response_ids)} tokens, {np.count_nonzero(part.response_mask)} by the policy"
            info = f", {dict(score.info)}" if score.info else ""
            yield f"          reward {score.reward:g}, {tokens}, {part.num_turns} turns{info}"
            if self.fates:
                yield f"          pipeline: {self.fates[run]}"
        yield f"seconds   rollout {self.rollout_s:.2f}, reward {self.reward_s:.2f}"

    def record(self) -> dict[str, Any]:
        """Return the content of the output file."""
        answers = [
            {**asdict(part), "response_text": text, "reward": score.reward, "info": dict(score.info)}
            for part, score, text in zip(self.trajectories, self.scores, self.responses, strict=True)
        ]
        record = {"task": dict(self.task), "prompt_text": self.prompt, "answers": answers}
        return dict(plain(kept(carried(record, "task"))))


async def run_task(spec: RunSpec, port: int, request: DebugTask) -> TaskOutcome:
    """Run one task with the model that is served at ``port``.

    Raises UserError for a nonexistent task or server, and what agent loop, tool and reward function raise.
    """
    config, tokenizer, processor = configuration(spec)
    if is_served(spec.verl):
        raise UserError(
            "reward.reward_model.enable: only a whole run serves a reward model",
            hint="debug the answers with --set reward.reward_model.enable=False and a reward function",
        )
    os.environ.update(spec.env)  # as in the explorer's processes: plugin folders, among others
    engine = HttpEngine(port, str(config.actor_rollout_ref.model.path))
    await engine.start()
    if request.data == "train":
        rows = train_stream(config, tokenizer, processor)
    else:
        if not config.data.val_files:
            raise UserError("--data val: data.val_files is empty", hint="leave --data out")
        rows = eval_stream(config, tokenizer, processor)
    job = task_of(spec, rows, request)
    began = time.monotonic()
    (rollout,) = [each async for each in _Worker(spec.verl, spec.device, engine).run([job])]
    if rollout.error:
        raise UserError(rollout.error)
    rolled_out = time.monotonic()
    scores = await LocalScorer(config).group(job.task, rollout.trajectories)
    parts, scored = rollout.trajectories, time.monotonic()
    return TaskOutcome(
        task=job.task,
        trajectories=parts,
        scores=scores,
        prompt=tokenizer.decode(parts[0].prompt_ids),
        responses=[tokenizer.decode(part.response_ids) for part in parts],
        rollout_s=rolled_out - began,
        reward_s=scored - rolled_out,
        fates=await _fates(spec, rows, job, parts, scores) if not job.validate else (),
    )


async def _fates(
    spec: RunSpec, rows: TaskStream, job: RolloutTask, parts: Sequence[Trajectory], scores: Sequence[Score]
) -> list[str]:
    """Return the effect of the run's operators on each answer; empty without operators."""
    pipeline = pipeline_of(spec.verl, rows)
    if pipeline is None:
        return []
    pairs = enumerate(zip(parts, scores, strict=True))
    before = tuple(experience_of(run, part, score) for run, (part, score) in pairs)
    group = Group(f"h0/train/{job.task_no}", job.task_no, job.task, 1, before)
    async with prepared(pipeline, spec.verl):
        outcome = await pipeline.process([group], 1)
    (after,) = outcome.kept or outcome.dropped
    return [_fate(*pair) for pair in zip(before, after.experiences, strict=True)]


def _fate(before: Experience, now: Experience) -> str:
    if now.metrics.get(DROPPED):
        return f"dropped by {now.info.get(DROPPED_BY, 'an operator')}"
    tokens = f"{now.response_mask.sum()} tokens are trained"
    return f"reward {before.reward:g} is {now.reward:g}, {tokens}" if before.reward != now.reward else tokens


def task_of(spec: RunSpec, rows: TaskStream, request: DebugTask) -> RolloutTask:
    """Return the run's rollout task of a row. Raises UserError for a nonexistent row."""
    if not 0 <= request.task < len(rows):
        raise UserError(
            f"--task {request.task}: data.{request.data}_files hold {len(rows)} tasks",
            hint=f"0 to {len(rows) - 1} can be taken",
        )
    kind = "eval" if request.data == "val" else "train"
    job = make_job(
        spec.verl, kind, request.task, rows.row(request.task), taskset=rows.taskset_of(request.task)[0]
    )
    return replace(job, n=request.n) if request.n else job


def load_plugins(folder: Path) -> list[str]:
    """Import every Python file of ``folder``, which register agent loops and tools; return their names."""
    sys.path.insert(0, str(folder))
    names = []
    for path in sorted(folder.glob("*.py")):
        module_spec = importlib.util.spec_from_file_location(path.stem, path)
        if module_spec is None or module_spec.loader is None:
            continue
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[path.stem] = module
        module_spec.loader.exec_module(module)
        names.append(path.stem)
    return names
