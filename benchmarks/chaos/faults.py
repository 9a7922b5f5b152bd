"""Faults of a machine under whole jobs: each ends clearly, and the same command brings the job to its end.

``python benchmarks/chaos/run.py --out DIR --faults [NAME …]``. A job trains until it has a checkpoint. Then
a fault strikes; the command ends, or survives; what was damaged is repaired; the same command is given again
until the job is done. SQL then looks for uses that are lost, double or incomplete (``checks.py``). Disks are
small tmpfs mounts, for which it needs root; without it these faults are left out.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from checks import check
from job import ANSWERS, LOOK_S, WORDS, Job, Stuck

STEPS, BATCH = 16, 8
END_S = 420.0
WORDS_OF_JOB = (
    f"trainer.total_training_steps={STEPS}",
    *("trainer.save_freq=2", "trainer.test_freq=-1", "trainer.val_before_train=False"),
    "trainer.max_actor_ckpt_to_keep=3",
)
PROCESSES = {
    "supervisor": "trinity_compat.run.script.intercept",
    **{name: WORDS[name] for name in ("engine", "trainer", "worker")},
    "explorer": f"-m {WORDS['explorer']} ",  # not its scoring processes
    "scoring process": "trinity_compat.explorer.sandbox",  # the youngest is one of the fork server's
    "gcs": "gcs_server",
    "raylet": "raylet/raylet",
}
Act = Callable[[Job], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``strike`` does it to a job that trains. The command then ends with one of ``codes`` and
    ``says`` why (a pattern). ``repair`` does what its user would, before the same command."""

    name: str
    strike: Act
    says: str
    codes: Sequence[int] = (1,)
    repair: Act = lambda job: None
    on_disk: bool = False  # the job lies on a small disk of its own
    again: bool = False  # under --restarts 1
    stop_at: str = ""  # a point (``crash_points``) in place of a checkpoint


# -- strikes --------------------------------------------------------------------------------------------


def found(job: Job, process: str) -> psutil.Process:
    """The process of that kind, once it is there. Raises Stuck."""
    for _ in range(100):
        with suppress(psutil.Error):
            if those := [each for each in job.alive() if PROCESSES[process] in " ".join(each.cmdline())]:
                return max(those, key=lambda each: each.create_time())
        time.sleep(LOOK_S)
    raise Stuck(f"there is no {process}")


def signalled(process: str, number: signal.Signals) -> Act:
    return lambda job: found(job, process).send_signal(number)


def paused(process: str, seconds: float) -> Act:
    def strike(job: Job) -> None:
        victim = found(job, process)
        victim.suspend()
        time.sleep(seconds)
        victim.resume()

    return strike


def locked(seconds: float) -> Act:
    """Lock the database as a backup program may."""

    def strike(job: Job) -> None:
        file = job.root / "buffer" / "experiences.db"
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)

    return strike


def killed(job: Job) -> None:
    """Kill every process of the job, as a machine that loses its power."""
    job.kill("job", [])
    job.until_gone()


def between_starts(damage: Act, **start: object) -> Act:
    """Damage a job that was killed, and start it: that start meets the damage."""

    def strike(job: Job) -> None:
        killed(job)
        damage(job)
        job.start("", **start)

    return strike


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def newest(job: Job) -> Path:
    return job.root / f"global_step_{job.checkpoint}"


def truncate_checkpoint(job: Job) -> None:
    for file in newest(job).rglob("model_world_size_*.pt"):
        shutil.copyfile(file, job.folder / "whole.pt")
        truncated(file)


def restore_checkpoint(job: Job) -> None:
    for file in newest(job).rglob("model_world_size_*.pt"):
        shutil.copyfile(job.folder / "whole.pt", file)


def truncate_weights(job: Job) -> None:
    """Truncate the weights that the stopped trainer will announce next, and let it go on."""
    (trainer,) = job.at_point() or [None]
    if trainer is None:
        raise Stuck("it ended before the point")
    truncated(max(weights_of(job).glob("v*/part-*"), key=lambda file: file.stat().st_mtime_ns))
    trainer.resume()


def weights_of(job: Job) -> Path:
    spec = (job.root / "config" / "run.json").read_text()
    return Path(re.search(r'"directory": "([^"]+)"', spec)[1])


def delete_locks(job: Job) -> None:
    for folder in (job.root.parent, job.root):
        shutil.rmtree(folder / ".locks")


def second_start(job: Job) -> None:
    """Give the command again beside the first, which must not be admitted; the first goes on."""
    first = job.process
    try:
        job.start("")
        if not job.ended_within(120) or job.process.returncode != 2:
            raise Stuck("a second start was admitted")
    finally:
        job.process = first


def two_at_once(job: Job) -> None:
    job.start("")
    first = job.process
    job.start("")
    both = (first, job.process)
    while all(each.poll() is None for each in both):
        time.sleep(LOOK_S)
    if [each.poll() for each in both if each.poll() is not None] != [2]:
        raise Stuck("of two starts at once not just one was refused")
    job.process = next(each for each in both if each.poll() is None)


def moved(job: Job) -> None:
    job.root.rename(job.root.with_name("moved"))


def moved_back(job: Job) -> None:
    if job.root.exists():
        raise Stuck(f"it made a new {job.root}")
    job.root.with_name("moved").rename(job.root)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def read_only(job: Job) -> None:
    mount("--bind", job.root, job.root)
    mount("-o", "remount,ro,bind", job.root)


def writable(job: Job) -> None:
    subprocess.run(["umount", "-l", str(job.root)], check=True)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "ballast").open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()


def unfill(job: Job) -> None:
    (job.root.parent / "ballast").unlink()


def fill_shared_memory(job: Job) -> None:
    """Fill the job's own /dev/shm, a mount of its namespace."""
    fill(Path(f"/proc/{found(job, 'trainer').pid}/root/dev/shm"))


def shell(words: str) -> list[str]:
    return ["sh", "-c", f'{words} && exec "$@"', "sh"]


OWN_SHM = ["unshare", "-m", *shell("mount -t tmpfs -o size=600m tmpfs /dev/shm")]


def no_damage(job: Job) -> None:
    pass


FAULTS = (
    Fault("supervisor paused 40 s", paused("supervisor", 40), "", codes=(0,)),
    *(
        Fault(f"{process} stopped", signalled(process, signal.SIGSTOP), says, codes=codes)
        for process, says, codes in (
            ("explorer", "explorer .*silent for", (1,)),
            ("engine", r"no progress for .*engine 0, pid \d+, stopped", (1,)),
            ("trainer", "trainer .*silent for", (1,)),
            ("worker", r"no progress for .*training process 0, pid \d+, stopped", (1,)),
            ("scoring process", "", (0,)),
            ("gcs", r"Ray's gcs_server \(pid \d+\) was stopped", (1,)),
            ("raylet", r"Ray's raylet \(pid \d+\) was stopped", (1,)),
        )
    ),
    *(
        Fault(f"{process} killed", signalled(process, signal.SIGKILL), says, codes=codes)
        for process, says, codes in (
            ("supervisor", "own process .* was killed", (128 + signal.SIGKILL,)),
            ("explorer", "the explorer was killed by SIGKILL", (1,)),
            ("engine", "error: ", (1,)),
            ("trainer", "the trainer was killed by SIGKILL", (1,)),
            ("worker", "error: ", (1,)),
            ("scoring process", "", (0,)),
            ("gcs", "Ray itself died", (1,)),
            ("raylet", "error: ", (1,)),
        )
    ),
    Fault(
        "engine killed, started again",
        signalled("engine", signal.SIGKILL),
        r"engine 0 \(pid \d+\) died; started again \(0 restarts of an engine left\)",
        codes=(0,),
        again=True,
    ),
    Fault("database locked 45 s", locked(45), "", codes=(0,)),
    Fault("database locked 150 s", locked(150), "was locked by another program for 60 s"),
    Fault("job's disk full", lambda job: fill(job.root.parent), "no space left", repair=unfill, on_disk=True),
    Fault(
        "/dev/shm full",
        lambda job: [
            between_starts(no_damage, prefix=OWN_SHM)(job),
            trained(job, 2),
            fill_shared_memory(job),
        ],
        "no space left",
    ),
    Fault("job's folder read-only", read_only, "[Rr]ead-only", repair=writable, on_disk=True),
    Fault("job moved while it runs", moved, "was deleted or moved", repair=moved_back),
    Fault(
        "newest checkpoint truncated",
        between_starts(truncate_checkpoint),
        "whole",
        codes=(2,),
        repair=restore_checkpoint,
    ),
    Fault("weights truncated", truncate_weights, "not what was published", stop_at="after weights:4"),
    Fault(
        "lock files deleted",
        lambda job: [delete_locks(job), second_start(job)],
        r"another run .*holds the",
        codes=(0,),
    ),
    Fault(
        "two starts at once",
        lambda job: [killed(job), two_at_once(job)],
        r"another run .*holds the",
        codes=(0,),
    ),
    Fault(
        "64 file descriptors",
        between_starts(no_damage, prefix=shell("ulimit -n 64")),
        "only 64 files open here",
        codes=(1, 2),
    ),
    Fault("TMPDIR not writable", between_starts(no_damage, env={"TMPDIR": "/proc"}), "", codes=(0,)),
)


# -- a job under one fault ------------------------------------------------------------------------------


def under(fault: Fault, out: Path, toy: Path) -> dict[str, object]:
    """Run a job under the fault; returns a row of the table."""
    folder = out / fault.name.replace("/", "").replace(" ", "-").replace("'", "")
    shutil.rmtree(folder, ignore_errors=True)
    with disk_at(folder / "disk") if fault.on_disk else nowhere() as place:
        job = Job(folder, toy, WORDS_OF_JOB, STEPS, random.Random(0), batch=BATCH, place=place)
        row: dict[str, object] = {"fault": fault.name}
        try:
            return row | outcome(fault, job)
        except Stuck as error:
            return row | {"stuck": str(error), "clean": False}
        finally:
            job.end()


def outcome(fault: Fault, job: Job) -> dict[str, object]:
    job.start(fault.stop_at, again=fault.again)
    if not fault.stop_at:
        trained(job, 2)
    began, said_before = time.monotonic(), len(output(job))
    checkpoint, then = job.checkpoint, job.standing()
    fault.strike(job)
    end(job)
    code, took = job.process.returncode, time.monotonic() - began
    said = output(job)[said_before:]
    job.until_gone()
    fault.repair(job)
    checkpoint = max(checkpoint, job.checkpoint)
    before = [each for each in (then, job.standing()) if each]
    resumed_from = None
    if code != 0:
        resumed = len(output(job))
        job.start("")
        end(job)
        resumed_from = re.search(r"continues .* from step (\d+)", output(job)[resumed:])
        if job.process.returncode != 0 or resumed_from is None or int(resumed_from[1]) < checkpoint:
            raise Stuck(f"after {code} the same command ended with {job.process.returncode}")
    result = check(job.database, before, steps=STEPS, batch=BATCH, answers=ANSWERS)
    is_clear = code in fault.codes and bool(re.search(fault.says, said)) and "Traceback" not in said
    return {
        "code": code,
        "after_s": round(took),
        "says": message(said),
        "from": resumed_from and int(resumed_from[1]),
        "lost": result.lost,
        "twice": result.twice,
        "broken": result.broken,
        "left": job.left,
        "clean": is_clear and result.clean and not job.left,
    }


def trained(job: Job, steps: int) -> None:
    """Wait for a checkpoint of ``steps`` steps more."""
    wanted = job.checkpoint + steps
    while job.checkpoint < wanted:
        if job.ended_within(LOOK_S / 4):
            raise Stuck(f"it ended before the fault: {message(output(job))}")


def end(job: Job) -> None:
    if not job.ended_within(END_S):
        raise Stuck(f"no end after {END_S:.0f} s")


def output(job: Job) -> str:
    return (job.folder / "output.log").read_text(errors="replace")


def message(text: str) -> str:
    """The error that the command ended with, or its last line."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return next((line for line in reversed(lines) if line.startswith("error:")), lines[-1])


@contextmanager
def disk_at(folder: Path) -> Iterator[Path]:
    """A disk of 300 MB."""
    folder.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", "size=300m", "tmpfs", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-lR", str(folder)], check=True)


@contextmanager
def nowhere() -> Iterator[None]:
    yield None


def chosen(names: Sequence[str]) -> list[Fault]:
    """The faults whose names have one of the words, all without words."""
    root = os.geteuid() == 0
    asked = [fault for fault in FAULTS if not names or any(name in fault.name for name in names)]
    return [fault for fault in asked if root or not (fault.on_disk or "/dev/shm" in fault.name)]


def table(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    heads = ("fault", "exit code", "after", "says", "goes on from step", "lost", "twice", "broken", "left")
    yield f"| {' | '.join(heads)} |"
    yield f"|---|---:|---:|---|{'---:|' * 5}"
    for row in rows:
        if "stuck" in row:
            yield f"| {row['fault']} | NOT SURVIVED: {row['stuck']} |"
            continue
        keys = ("fault", "code", "after_s", "says", "from", "lost", "twice", "broken", "left")
        cells = ["–" if row[key] is None else str(row[key]) for key in keys]
        yield f"| {' | '.join(cells)} |{'' if row['clean'] else ' NOT CLEAN'}"
