"""A trial: one launch at several offsets, each with several seeds, one job after the other.

TRIAL/trial.json   TRIAL/offsetO/seedK/ (jobs)   TRIAL/log/offsetO-seedK.log (what `run` printed)

`trinity-compat run` runs the jobs. Which of them are finished their own records say, so that the same command
goes on where an earlier one was cut. The lowest offset is what the others are compared with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trinity_compat.common import regular_files
from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.output_text import console
from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.common.process_limits import signal_group
from trinity_compat.common.python_command import of_module
from trinity_compat.common.redaction import masked
from trinity_compat.compare import mode_answer
from trinity_compat.compare.margins import CompareOptions, Margins
from trinity_compat.compare.sources import read_side
from trinity_compat.compare.verdict import Comparison, compare
from trinity_compat.run import dry_run
from trinity_compat.run.advice import against_stock
from trinity_compat.run.job_dir import start_record, status
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise.supervisor import StopSignal, catch_signals

_FILE = "trial.json"
_OFFSET = "synchronizer.sync_offset"
# ++: of releases that have no such key, too.
_SEEDS = ("data.seed", "actor_rollout_ref.rollout.seed")
_NAME = "trainer.experiment_name"
_DECIDED = (_OFFSET, *_SEEDS, "explorer.rollout_model.seed", _NAME)
_POLL_S = 1.0
_LOOKS = 4  # at a running job, spread evenly over its steps


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial as the command line asks for it. ``words``: options of `run`."""

    source: str
    arguments: tuple[str, ...]
    offsets: tuple[int, ...]
    seeds: int
    words: tuple[str, ...]
    root: Path
    margins: Margins = field(default_factory=Margins)

    def __post_init__(self) -> None:
        if len(self.offsets) < 2:
            raise UserError("a trial compares offsets, and there is only one", hint="write --offsets 0 1 2")
        if twice := [offset for offset in self.offsets if self.offsets.count(offset) > 1]:
            raise UserError(
                f"--offsets names {twice[0]} twice", hint="write each offset once: --offsets 0 1 2"
            )
        if self.offsets[0] < 0:
            raise UserError(
                f"--offsets {self.offsets[0]}: an explorer cannot be behind its trainer",
                hint="write 0 for veRL's order, 1 for an explorer that is a step ahead: --offsets 0 1 2",
            )
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: no run", hint="write --seeds 3; a verdict needs two")

    def folder(self, offset: int) -> Path:
        """Return the folder of a mode, which has its jobs."""
        return self.root / f"offset{offset}"

    def job(self, offset: int, seed: int) -> JobDir:
        """Return one of the jobs."""
        return JobDir(self.folder(offset) / f"seed{seed}")

    def finished(self, offset: int) -> list[Path]:
        """Return the folders of a mode's finished jobs."""
        jobs = (self.job(offset, seed) for seed in range(1, self.seeds + 1))
        return [job.root for job in jobs if _is_done(job)]


def _is_done(job: JobDir) -> bool:
    ends = [start.end for start in start_record.read(job)]
    return bool(ends) and all(end is not None and end.code == 0 for end in ends)


def settings(trial: Trial, offset: int, seed: int, r: int) -> list[str]:
    """Return the settings of one job. ``r``: updates per step."""
    return [
        f"{_OFFSET}={offset * r}",
        *(f"++{key}={seed}" for key in _SEEDS),
        f"{_NAME}={Path(trial.source).stem}_offset{offset}_seed{seed}",
        "continue_from_checkpoint=true",
    ]


def updates_per_step(trial: Trial, options: RunOptions) -> int:
    """Plan the launch in each mode, so that none is refused after hours; returns its updates per step.

    Raises UserError.
    """
    for text in options.sets:
        if (key := text.partition("=")[0].lstrip("+")) in _DECIDED:
            raise UserError(f"--set {text}: the trial sets {key} itself", hint="leave it out")
    sets = (*options.sets, *settings(trial, 0, 1, 1)[1:])
    found = list(dry_run.sources(trial.source, trial.arguments, replace(options, sets=sets)))
    source, rest = found[0]
    if len(found) > 1 or source.stage:
        what = "stages" if source.stage else "launches"
        one = "write a file with one of them"
        raise UserError(f"{trial.source} has {len(found)} {what}, and a trial is of one", hint=one)
    rest = replace(rest, job=str(trial.job(trial.offsets[0], 1).root))
    spec = against_stock.plan_and_compare(source, rest, cwd=Path.cwd()).spec
    if spec.rows is not None or spec.mode not in ("both", "colocate"):
        why = "it trains on rows of files" if spec.rows else f"its mode is {spec.mode}"
        needs = "a trial is for a launch with explorer and trainer"
        raise UserError(f"{trial.source}: {why}, so no offset acts", hint=needs)
    if spec.sync.style != "fixed":
        raise UserError(
            f"{trial.source}: under its sync_style {spec.sync.style} no offset acts",
            hint="a trial is for a launch of main_ppo, or a YAML with synchronizer.sync_style: fixed",
        )
    for offset in trial.offsets:
        sets = (*rest.sets, f"{_OFFSET}={offset * spec.updates_per_step}")
        try:
            against_stock.plan_and_compare(source, replace(rest, sets=sets), cwd=Path.cwd())
        except UserError as error:
            raise UserError(f"offset {offset}: {error.message}", where=error.where, hint=error.hint) from None
    return spec.updates_per_step


def begin(trial: Trial) -> dict[int, str]:
    """Make the trial's folder, or join the one that is there; returns the modes that it has stopped and why.

    Raises UserError for a folder of anything else.
    """
    path, another = trial.root / _FILE, "--out names another folder"
    if not path.exists():
        if trial.root.is_dir() and any(trial.root.iterdir()):
            raise UserError(f"{trial.root} is not a trial: {_FILE} is missing", hint=another)
        trial.root.mkdir(parents=True, exist_ok=True)
        _write(trial, {})
    try:
        found = json.loads(regular_files.followed_text(path))
        before, stopped = found["trial"], {int(key): str(why) for key, why in found["stopped"].items()}
        others = [name for name, value in _asked(trial).items() if before.get(name) != value]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a trial's record ({error})", hint=another) from None
    if others:
        own = f"the trial's own command goes on with it; {another}"
        raise UserError(f"{trial.root} holds a trial with other {', '.join(others)}", hint=own)
    return stopped


def _asked(trial: Trial) -> dict[str, object]:
    return {
        "source": str(Path(trial.source).resolve()),
        "content of the source": hashlib.sha256(Path(trial.source).read_bytes()).hexdigest(),
        "arguments": list(masked(trial.arguments)),
        "offsets": list(trial.offsets),
        "seeds": trial.seeds,
        "options": list(masked(trial.words)),
    }


def _write(trial: Trial, stopped: Mapping[int, str]) -> None:
    record = {"version": 1, "trial": _asked(trial), "stopped": stopped}
    write_text(trial.root / _FILE, json.dumps(record, indent=1) + "\n")


def start_job(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a group of its own, which ends with this process; its output goes to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


@dataclass
class TrialRun:
    """A trial at work. ``stopped``: the modes that it has stopped, with the reason."""

    trial: Trial
    updates_per_step: int
    stopped: dict[int, str]

    def __post_init__(self) -> None:
        out = console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._shown = Progress(*columns, console=out, disable=not out.is_terminal)
        self._bar = self._shown.add_task("", total=len(self.trial.offsets) * self.trial.seeds)

    def to_the_end(self) -> int:
        """Run every job that is missing. Returns 0, or 128 and the number of the signal that came.

        Raises UserError and RunError for a job that failed.
        """
        jobs = [(o, seed) for seed in range(1, self.trial.seeds + 1) for o in self.trial.offsets]
        with catch_signals() as stop, self._shown:
            for number, (offset, seed) in enumerate(jobs):
                if _is_done(self.trial.job(offset, seed)) or offset in self.stopped:
                    continue
                if seed == 1 or not self._stop_if_worse(offset, f"before seed {seed}"):
                    self._run_job(offset, seed, number, stop)
                if stop.number:
                    return 128 + stop.number
        return 0

    def _stop_if_worse(self, offset: int, when: str, running: Sequence[Path] = ()) -> bool:
        if offset == self.trial.offsets[0]:
            return False
        with contextlib.suppress(UserError):  # nothing in common yet
            found = compared(self.trial, offset, [*self.trial.finished(offset), *running])
            if why := mode_answer.why_worse(found):
                self.stopped[offset] = f"{when}: {why}"
                _write(self.trial, self.stopped)
                self._say(f"offset {offset} is stopped {self.stopped[offset]}")
        return offset in self.stopped

    def _run_job(self, offset: int, seed: int, number: int, stop: StopSignal) -> None:
        from trinity_compat.compare.inference.within import FEWEST

        job, name = self.trial.job(offset, seed), f"offset {offset}, seed {seed} of {self.trial.seeds}"
        log = self.trial.root / "log" / f"offset{offset}-seed{seed}.log"
        log.parent.mkdir(exist_ok=True)
        sets = settings(self.trial, offset, seed, self.updates_per_step)
        arguments = ["--", *self.trial.arguments] if self.trial.arguments else []
        options = ["--job", str(job.root), *self.trial.words, *(w for item in sets for w in ("--set", item))]
        self._say(f"{name}: {job.root}")
        process = start_job(of_module("trinity_compat", "run", *options, self.trial.source, *arguments), log)
        looked, is_ending = 0, False
        while (code := _waited(process)) is None:
            step, total = _steps(job)
            done, title = number + step / (total or step + 1), f"{name}, step {step}"
            self._shown.update(self._bar, completed=done, description=title)
            every = max(FEWEST, -(-(total or 0) // _LOOKS))
            if is_ending:
                continue
            if step // every > looked // every and step < (total or step + 1):
                looked = step
                is_ending = self._stop_if_worse(offset, f"at step {step} of seed {seed}", [job.root])
            if is_ending := is_ending or bool(stop.number):
                signal_group(process.pid, signal.SIGINT)
        if code and not is_ending and not stop.number:
            raise _failure(f"offset {offset}, seed {seed}", code, log)

    def _say(self, text: str) -> None:
        self._shown.console.print(text, soft_wrap=True, markup=False, highlight=False)


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit status, None if the process still runs after a moment."""
    try:
        return process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def _steps(job: JobDir) -> tuple[int, int | None]:
    """Return the steps that a running job has done, and those of the whole run where they are known."""
    try:
        snapshot = status.read_job(job.root)[1]
    except Exception:  # it has not begun, or its database is busy: never the trial's end
        return 0, None
    return snapshot.step, snapshot.total


def _failure(which: str, code: int, log: Path) -> UserError | RunError:
    """Return the error of a job that failed, in the words of its `run`."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error:")]
    said = "\n  ".join(lines[errors[-1] if errors else -3 :][:6]).removeprefix("error: ")
    kind = UserError if code == 2 else RunError
    return kind(
        f"{which} ended with {code}: {said}\n  log: {log}", hint="the same command goes on with this job"
    )


def compared(trial: Trial, offset: int, jobs: Sequence[Path]) -> Comparison:
    """Compare jobs of a mode with the finished ones of the lowest offset. Raises UserError."""
    first = trial.offsets[0]
    sides = ((first, trial.finished(first)), (offset, jobs))
    a, b = (read_side(paths, trial.folder(of).name) for of, paths in sides)
    return compare(a, b, CompareOptions(margins=trial.margins))


def answers(trial: Trial) -> dict[int, Comparison]:
    """Compare each mode with the lowest offset, as `compare` does with their folders. Raises UserError."""
    return {offset: compared(trial, offset, [trial.folder(offset)]) for offset in trial.offsets[1:]}


def lines(trial: Trial, stopped: Mapping[int, str], found: Mapping[int, Comparison]) -> Iterator[str]:
    """Yield the answer in one line for each offset, and the command that shows more."""
    first = trial.offsets[0]
    yield f"offset {first}: {mode_answer.of_baseline(found[trial.offsets[1]])}"
    for offset, comparison in found.items():
        early = f"; stopped {stopped[offset]}" if offset in stopped else ""
        yield f"offset {offset}: {mode_answer.in_words(comparison)}{early}"
    folders = " ".join(str(trial.folder(offset)) for offset in trial.offsets)
    yield f"trinity-compat compare {folders} --format html -o {trial.root}/trial.html"


def record(trial: Trial, stopped: Mapping[int, str], found: Mapping[int, Comparison]) -> dict[str, object]:
    """Return the answer for programs; a figure that is not known is null."""
    return {
        "version": 1,
        "folder": str(trial.root),
        "seeds": trial.seeds,
        "baseline": trial.offsets[0],
        "modes": [
            {
                "offset": offset,
                "folder": str(trial.folder(offset)),
                "runs": len(comparison.b.runs),
                "stopped": stopped.get(offset),
                **mode_answer.record(comparison),
            }
            for offset, comparison in found.items()
        ],
    }
