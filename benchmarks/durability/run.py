"""The toy killed with SIGKILL at random moments, on stock veRL and on ours: what each kill costs.

    python benchmarks/durability/run.py --out DIR [--kills 30] [--ways stock_v0 ours_v0 …] [--jobs 1]
    python benchmarks/durability/run.py --out DIR --report      # the table of what is finished

A job is ``examples/verl_scripts/run_toy_grpo.sh`` with the profile for CPU, 20 steps of 32 prompts over a
data set of exactly 640 (one epoch), a checkpoint every 5 steps. It is killed ``--per-job`` times: every
process of it at once, Ray's too. Each time the same command is given again, at last to the end. The moments
are drawn from the seed, uniformly over the steps, and are the same for all ways: a whole step to wait for and
a part of the last step's time. Job 0 of each way, its last, is not killed: what it lacks is not the kills'
doing.

Finished jobs are DIR/WAY/jobN/done.json and are not repeated, so the command goes on where it was stopped;
``--jobs`` bounds how many it begins, ``--within`` until when.
docs/measurements/durability.md defines the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
PLUGINS = Path(__file__).resolve().parent / "plugin"
HANDOVER = (
    ROOT / "benchmarks" / "paced" / "plugin"
)  # weights through a file: stock's separate_async needs NCCL
PROMPTS, ANSWERS, DIGITS = 32, 8, 4  # of a step, of a prompt, of the toy's task
LIMIT_S = 900.0  # of one start, on a busy machine
MARKER = "latest_checkpointed_iteration.txt"
_MARK = "TC_DURABILITY_RUN"

STOCK: dict[str, tuple[str, ...]] = {
    "stock_v0": (),
    "stock_v1": ("trainer.use_v1=True",),
    "stock_v1_async": (
        "trainer.use_v1=True",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",  # the script's two mini-batches
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=paced_file",
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=paced_handover",
        "ray_kwargs.ray_init.num_gpus=2",
    ),
}
OURS: dict[str, tuple[str, ...]] = {
    "ours_v0": ("--set", "trinity_compat.trainer=v0"),
    "ours_v1": ("--set", "trinity_compat.trainer=v1"),
}
WAYS = (*STOCK, *OURS)
TITLES = {
    "stock_v0": "stock v0",
    "stock_v1": "stock v1",
    "stock_v1_async": "stock v1, separate_async",
    "ours_v0": "ours v0",
    "ours_v1": "ours v1",
}

COMPLETED = "SELECT max(step) FROM metrics WHERE role = 'trainer' AND voided_in IS NULL"
BEGUN = "SELECT max(started_at) FROM histories"
TRAINED = """SELECT e.prompt_text, count(DISTINCT l.trainer_step), count(*)
FROM ledger l JOIN experiences e ON e.id = l.experience_id GROUP BY 1"""


class Failed(Exception):
    """A start that ended with an error, or did not end."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that struck: the newest step completed, and the checkpoint from which the next start goes on."""

    at: float
    step: int
    checkpoint: int


@dataclass(slots=True)
class Job:
    """One job of one way in ``folder``."""

    way: str
    folder: Path
    toy: Path
    steps: int
    save_freq: int
    kills: list[Kill] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def work(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / ("job" if self.way in OURS else "checkpoints/toy/grpo")

    @property
    def database(self) -> Path:
        return self.folder / "job" / "buffer" / "experiences.db"

    @property
    def checkpoint(self) -> int:
        with suppress(OSError, ValueError):
            return int((self.work / MARKER).read_text())
        return 0

    def run(self, moments: Sequence[float]) -> dict[str, Any]:
        """Kill at the moments, one per start; then to the end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "engine").mkdir(parents=True)
        began = time.time()
        for number, moment in enumerate([*moments, None]):
            self.start(number, moment)
        return {
            "way": self.way,
            "kills": [[kill.step, kill.checkpoint] for kill in self.kills],
            "wall_s": round(time.time() - began, 1),
            **self.figures(),
        }

    # -- one start --------------------------------------------------------------------------------------

    def command(self) -> list[str]:
        words = [
            f"data.train_files={self.toy}/data/durability.parquet",
            f"trainer.total_training_steps={self.steps}",
            f"trainer.save_freq={self.save_freq}",
            "trainer.test_freq=-1",
        ]
        if self.way in OURS:
            job = ["--job", str(self.folder / "job"), *OURS[self.way]]
            return [str(BIN / "trinity-compat"), "run", str(SCRIPT), *job, "--", *words]
        profile = [str(BIN / "trinity-compat"), "profile", "cpu", "--as-overrides"]
        overrides = subprocess.run(profile, check=True, capture_output=True, text=True).stdout.split()
        words += ['trainer.logger=["console","file"]', f"trainer.rollout_data_dir={self.folder}/rollout"]
        return ["bash", str(SCRIPT), *overrides, *STOCK[self.way], *words]

    def start(self, number: int, moment: float | None) -> None:
        """Start, and kill at ``moment`` (step and fraction); None: wait for the end. Raises Failed."""
        shutil.rmtree(self.folder / "handover", ignore_errors=True)
        (self.folder / "handover").mkdir()
        plugins = [PLUGINS, *([HANDOVER] if self.way == "stock_v1_async" else [])]
        env = {**os.environ, "TOY_DIR": str(self.toy), _MARK: self.mark, "RAY_DEDUP_LOGS": "0"}
        env |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_WAIT_POLICY": "PASSIVE"}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, plugins)), "ENGINE_LOG": str(self.folder / "engine")}
        env |= {"PACED_STEP_S": "0", "PACED_LOG": str(self.folder / "handover")}
        env |= {"VERL_FILE_LOGGER_PATH": str(self.metrics(number))} if self.way in STOCK else {}
        with (
            tempfile.TemporaryDirectory(prefix="tc-d-", dir="/tmp", ignore_cleanup_errors=True) as ray,
            (self.folder / f"output.{number}.log").open("wb") as log,
        ):
            env |= {"RAY_TMPDIR": ray} if self.way in STOCK else {}
            began = time.time()
            process = subprocess.Popen(
                self.command(), env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
            try:
                self.attend(process, number, began, moment)
            finally:
                self.sweep()
                process.wait()
        rollout = self.folder / "rollout"
        if rollout.exists():
            rollout.rename(self.folder / f"rollout.{number}")

    def attend(
        self, process: subprocess.Popen[bytes], number: int, began: float, moment: float | None
    ) -> None:
        times: dict[int, float] = {}
        resumed = self.checkpoint
        while process.poll() is None:
            now = time.time()
            if now - began > LIMIT_S:
                raise Failed(f"{self.way}: start {number} was not done after {LIMIT_S:.0f} s")
            if moment is None:
                time.sleep(0.5)
                continue
            step = self.completed(number, began)
            if step is not None and step not in times:
                times[step] = now
            if step is not None and step >= int(moment):
                time.sleep((moment % 1) * _step_s(times))
                self.sweep()
                self.kills.append(
                    Kill(time.time(), self.completed(number, began) or resumed, self.checkpoint)
                )
                return
            time.sleep(0.1)
        if moment is not None:
            raise Failed(f"{self.way}: start {number} ended with {process.returncode} before its kill")
        if process.returncode:
            raise Failed(f"{self.way}: start {number} ended with {process.returncode}")

    def completed(self, number: int, began: float) -> int | None:
        """The newest step whose metrics this start, or one before it, has logged; None before it resumed."""
        if self.way in OURS:
            if not self.database.exists():
                return None
            with suppress(sqlite3.Error), closing(self.connect()) as conn:
                # The first start is in the history that the database begins with, and so is one after a kill
                # before the first step. Others begin a history when they resume.
                resumes = number and self.kills[-1].step
                if resumes and (conn.execute(BEGUN).fetchone()[0] or 0) < began:
                    return None
                return int(conn.execute(COMPLETED).fetchone()[0] or 0)
            return None
        steps = [row["step"] for row in _lines(self.metrics(number))]
        return max(steps) if steps else None

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)

    def metrics(self, number: int) -> Path:
        return self.folder / f"metrics.{number}.jsonl"

    def sweep(self) -> None:
        """SIGKILL to every process of the job, until none is left."""
        for _ in range(50):
            found = set(_marked(self.mark))
            for process in tuple(found):
                with suppress(psutil.Error):
                    found.update(process.children(recursive=True))
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            if not found:
                return
            time.sleep(0.1)

    # -- the figures ------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Count the figures that docs/measurements/durability.md defines."""
        wanted = set(tasks(self.toy))
        uses, answers, unseen = self.trained()
        asked = self.asked()
        thrown = [s for task, each in asked.items() for s in each[: max(0, len(each) - answers[task])]]
        every = [seconds for each in asked.values() for seconds in each]
        return {
            "unseen": unseen,
            "lost": sum(1 for task in wanted if not uses[task]),
            "twice": sum(count - 1 for count in uses.values() if count > 1),
            "answers": len(every),
            "answers_thrown": len(thrown),
            "generation_s": sum(every),
            "thrown_s": sum(thrown),
            "redone": sum(kill.step - kill.checkpoint for kill in self.kills),
        }

    def trained(self) -> tuple[Counter[str], Counter[str], list[int]]:
        """Per task the steps of the final history with it, and their answers there; steps without a dump."""
        uses: Counter[str] = Counter()
        answers: Counter[str] = Counter()
        if self.way in OURS:
            with closing(self.connect()) as conn:
                for prompt, steps, rows in conn.execute(TRAINED):
                    uses[_task(prompt)] += steps
                    answers[_task(prompt)] += rows
            return uses, answers, []
        unseen = []
        resumes = [0, *(kill.checkpoint for kill in self.kills)]
        for number, (first, last) in enumerate(zip(resumes, [*resumes[1:], self.steps], strict=True)):
            for step in range(first + 1, last + 1):
                rows = list(_lines(self.folder / f"rollout.{number}" / f"{step}.jsonl"))
                if len(rows) < PROMPTS * ANSWERS:
                    unseen.append(step)
                    continue
                of_step = Counter(_task(row["input"]) for row in rows)
                answers += of_step
                uses += Counter({task: -(-count // ANSWERS) for task, count in of_step.items()})
        return uses, answers, unseen

    def asked(self) -> dict[str, list[float]]:
        """Per task the engine's seconds of each sampled answer, in order of their first request."""
        from transformers import AutoTokenizer

        decode = AutoTokenizer.from_pretrained(self.toy / "model").decode
        spent: dict[str, list[float]] = defaultdict(list)
        plain: dict[str, int] = {}
        for file in sorted(
            (self.folder / "engine").glob("*.jsonl"), key=lambda one: one.name.split(".", 1)[1]
        ):
            places: dict[int, tuple[str, int]] = {}
            for kind, *row in _lines(file):
                if kind == "ask":
                    number, ids, greedy = row
                    task = _task(decode(ids))
                    if greedy or not task:
                        continue
                    length = plain.setdefault(task, len(ids))
                    if len(ids) <= length or not spent[task]:
                        spent[task].append(0.0)
                    places[number] = task, len(spent[task]) - 1  # a longer prompt goes on with an answer
                else:
                    begin, end, numbers = row
                    for number in numbers:
                        if number in places:
                            task, place = places[number]
                            spent[task][place] += (end - begin) / len(numbers)
        return spent


def _step_s(times: dict[int, float]) -> float:
    """Seconds of the last step, 2 before there is one."""
    seen = sorted(times.values())
    return seen[-1] - seen[-2] if len(seen) > 1 else 2.0


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Every process of the job: Ray detaches its own, but all inherit the environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _lines(path: Path) -> Iterator[Any]:
    """JSON lines; a torn last one is left out."""
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                yield json.loads(line)


def _task(prompt: str) -> str:
    """The digits to sort: all that a prompt of the toy differs by."""
    return "".join(re.findall(r"\d", prompt))[:DIGITS]


def tasks(toy: Path) -> list[str]:
    rows = pq.read_table(toy / "data" / "durability.parquet").column("prompt").to_pylist()
    return [_task(row[0]["content"]) for row in rows]


def make_toy(folder: Path, steps: int) -> None:
    """Model and data; the data set of the jobs has one row per task, as many as the steps take."""
    subprocess.run([BIN / "trinity-compat", "toy", folder], check=True, stdout=subprocess.DEVNULL)
    table = pq.read_table(folder / "data" / "train.parquet")
    seen: dict[str, int] = {}
    for place, prompt in enumerate(table.column("prompt").to_pylist()):
        seen.setdefault(_task(prompt[0]["content"]), place)
    pq.write_table(table.take(list(seen.values())[: steps * PROMPTS]), folder / "data" / "durability.parquet")


def moments(seed: int, job: int, steps: int, kills: int) -> list[float]:
    """Ascending, so that no start begins behind its moment."""
    rng = random.Random(f"{seed} {job}")
    return sorted(rng.uniform(0, steps - 1) for _ in range(kills))


def run_all(args: argparse.Namespace) -> None:
    jobs = -(-args.kills // args.per_job)
    begun, end = 0, time.monotonic() + args.within
    for number in (*range(1, jobs + 1), 0):
        kills = min(args.per_job, args.kills - (number - 1) * args.per_job) if number else 0
        for way in args.ways:
            folder = args.out / way / f"job{number}"
            if (folder / "done.json").exists() or begun >= args.jobs or time.monotonic() > end:
                continue
            begun += 1
            job = Job(way, folder, args.toy, args.steps, args.save_freq)
            try:
                row = job.run(moments(args.seed, number, args.steps, kills))
            except Failed as failed:
                row = {
                    "way": way,
                    "kills": [[k.step, k.checkpoint] for k in job.kills],
                    "failed": str(failed),
                }
            part = folder / "done.part"
            part.write_text(json.dumps(row) + "\n")
            part.replace(folder / "done.json")
            print(f"{time.strftime('%H:%M:%S')} {way} job {number}: {row}", flush=True)


def report(args: argparse.Namespace) -> None:
    """The table, as docs/measurements/durability.md has it."""
    columns = (
        "jobs",
        "kills",
        "lost",
        "twice",
        "steps redone",
        "answers thrown away",
        "in s",
        "of all",
        "not counted",
    )
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for way in args.ways:
        rows = [json.loads(p.read_text()) for p in sorted((args.out / way).glob("job[0-9]*/done.json"))]
        killed = [row for row in rows if row["kills"]]
        for title, some in (
            (f"{TITLES[way]}, not killed", [row for row in rows if row not in killed]),
            (TITLES[way], killed),
        ):
            if some:
                print(f"| {title} | {' | '.join(_cells(some))} |")


def _cells(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    done = [row for row in rows if "failed" not in row and not row["unseen"]]

    def total(key: str) -> float:
        return sum(row[key] for row in done)

    yield str(len(done))
    yield str(sum(len(row["kills"]) for row in done))
    for key in ("lost", "twice", "redone", "answers_thrown"):
        yield f"{total(key):.0f}"
    yield f"{total('thrown_s'):.1f}"
    yield f"{total('answers_thrown') / total('answers'):.0%}" if done else ""
    yield str(len(rows) - len(done))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--toy", type=Path, help="model and data (default: made in --out)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--kills", type=int, default=30, help="of each way")
    parser.add_argument("--per-job", type=int, default=5, help="kills of one job")
    parser.add_argument("--steps", type=int, default=20, help="veRL steps of a job")
    parser.add_argument("--save-freq", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=sys.maxsize, help="begin no more than these; call again")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds in which a job may begin")
    parser.add_argument("--report", action="store_true", help="run nothing: the table of what is finished")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.toy = (args.toy or args.out / "toy").absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a job's processes are ended
    if not args.report:
        make_toy(args.toy, args.steps)
        run_all(args)
    report(args)


if __name__ == "__main__":
    main()
