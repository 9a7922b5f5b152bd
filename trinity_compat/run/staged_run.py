"""A Trinity YAML from its start to its end, its stages one after the other.

Each stage is a run of its own (``run_source``) with its job below the run's folder; the model of the next is
what its last checkpoint holds. ``stages.json`` there says how far the run has come. Killed at any moment,
the same command goes on: with the stage that was at work from its checkpoint, and past those that are done.
A stage whose end was not written down yet is started again, finds itself at its last step, and ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.path_ownership import check_job
from trinity_compat.run.advice import against_stock
from trinity_compat.run.checks import preflight
from trinity_compat.run.job_dir import export, job_dir, stages
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.job_dir.stages import StageState
from trinity_compat.run.plan import error_locations
from trinity_compat.run.plan.source import RunOptions, Source, from_yaml
from trinity_compat.run.plan.stages import StageRun, parts, root_of
from trinity_compat.run.run import run_source

Runner = Callable[[Source, RunOptions], LaunchEnd]


def run_yaml(path: Path, options: RunOptions, *, runner: Runner = run_source) -> LaunchEnd:
    """Run a Trinity YAML, in stages where it has some. Raises UserError and RunError."""
    source, cwd = from_yaml(path), Path.cwd()
    found = parts(source, options, cwd)
    if not found:
        return runner(source, options)
    check(found, cwd)
    job = JobDir(root_of(source, options, cwd))
    check_job(job.root)
    with job_dir.locked(job, "both"):
        states = _earlier_states(job, found, restart=source.config.get("continue_from_checkpoint") is False)
        return _in_order(job, found, states, runner)


def check(found: Sequence[StageRun], cwd: Path) -> None:
    """Check the plan and the files of every stage, before days of training. Raises UserError."""
    databases: dict[str, str] = {}
    for part in found:
        plan = against_stock.plan_and_compare(part.source, part.options, cwd=cwd)
        saves = plan.spec.verl["trainer"]["save_freq"]
        if saves <= 0 and not part.is_last:
            raise UserError(
                f"stage {part.stage.name} saves no checkpoint, and the next one would have no model",
                hint="write trainer.save_interval",
            )
        if missing := next(preflight.missing(plan), None):
            text, where = error_locations.in_file(missing.message, part.source)
            raise UserError(f"stage {part.stage.name}: {text}", where=where)
        if earlier := databases.get(plan.spec.database_url):
            raise UserError(
                f"the stages {earlier} and {part.stage.name} name the same database",
                hint="write another buffer.trainer_input.experience_buffer.path in one of them",
            )
        databases[plan.spec.database_url] = part.stage.name


def _earlier_states(job: JobDir, found: Sequence[StageRun], *, restart: bool) -> list[StageState]:
    """Return each stage's state: the one that an earlier start wrote, else ``waiting``.

    Raises UserError if the earlier run had other stages.
    """
    names = [part.stage.name for part in found]
    earlier = stages.read(job.root)
    if earlier and restart:
        say(f"continue_from_checkpoint is false: the earlier run is now {job_dir.set_aside(job)}")
        earlier = []
    done = [each for each in earlier if each.state != "waiting"]
    if [each.name for each in done] != names[: len(done)]:
        raise UserError(
            f"the run in {job.root} has completed {', '.join(each.name for each in done)}; the file's"
            f" stages are {', '.join(names)}",
            hint="give this one a name of its own, or write continue_from_checkpoint: false",
        )
    return [*done, *map(StageState, names[len(done) :])]


def _in_order(job: JobDir, found: Sequence[StageRun], states: list[StageState], runner: Runner) -> LaunchEnd:
    model: str | None = None
    ended = LaunchEnd(0, str(job.root), "done")
    for number, part in enumerate(found):
        if states[number].state == "done":
            say(f"stage {part.stage.name} is done")
        else:
            states[number] = replace(states[number], state="running")
            stages.write(job.root, states)
            if model is not None:
                part = part.on(model)
                say(f"stage {part.stage.name} begins with the model {model}")
            ended = runner(part.source, part.options)
            if ended.code:
                return ended
            states[number] = StageState(part.stage.name, "done", None if part.is_last else _left(part))
            stages.write(job.root, states)
        model = states[number].model
    return replace(ended, job=str(job.root))


def _left(part: StageRun) -> str:
    """The model of a stage's last checkpoint in Hugging Face's form: veRL's own, or merged here.

    Raises RunError.
    """
    job = JobDir.at(str(part.options.job))
    step = job.latest_checkpoint
    if step is None:
        raise RunError(f"stage {part.stage.name} left no checkpoint in {job.root}")
    folder = job.root / f"global_step_{step}"
    saved, merged = folder / "actor" / "huggingface", folder / "hf"
    if any(saved.glob("*.safetensors")):
        return str(saved)
    if not merged.is_dir():
        say(f"writing step {step} of {part.stage.name} as a Hugging Face model for the next stage")
        unfinished = folder / "hf.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        export.to_hf(job.root, step=step, out=unfinished).rename(merged)
    return str(merged)
