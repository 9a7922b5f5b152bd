"""Audit of 400 launch scripts in one process, against veRL composing as many configurations.

    python benchmarks/audit_speed.py [--launches 400]

The scripts are the public launches of ../shared/corpus/public.json where that is there, else variants of the
45-override script of translate_speed.py; one launch a file. The audit is the command itself, start and HTML
included. veRL's side is ``python -m verl.trainer.main_ppo --cfg job``: three runs, their median times the
number of launches, for one launch needs one process there. Exit code 1 above 20 s of CPU: wall time is the
same on an idle machine, and says more about its neighbours on a busy one.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from translate_speed import OVERRIDES

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "facts" / "public.json.xz"
LIMIT_S = 20


def commands() -> tuple[str, list[list[str]]]:
    """(where they are from, module and overrides of each launch)."""
    if CORPUS.is_file():
        scripts = json.loads(lzma.decompress(CORPUS.read_bytes()))["scripts"]
        found = [[x["module"], *x["args"]] for script in scripts for x in script.get("launches", [])]
        return "public launches", found
    return "made up", [
        ["verl.trainer.main_ppo", *OVERRIDES[: 45 - i % 20], f"trainer.experiment_name=run{i}"]
        for i in range(400)
    ]


def write_scripts(folder: Path, launches: list[list[str]]) -> None:
    for number, (module, *arguments) in enumerate(launches):
        lines = " \\\n    ".join(shlex.quote(argument) for argument in arguments)
        text = f'set -x\nexport RUN={number}\n\npython3 -m {module} \\\n    {lines} "$@"\n'
        (folder / f"{number:04}.sh").write_text(text)


def timed(command: list[str], folder: str) -> float:
    """Seconds of one run. Raises CalledProcessError when it fails."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    start = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env=environment
    )
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=400)
    wanted = parser.parse_args().launches
    source, found = commands()
    launches = (found * (wanted // len(found) + 1))[:wanted]
    with tempfile.TemporaryDirectory() as folder:
        write_scripts(Path(folder), launches)
        audit = [
            sys.executable,
            "-m",
            "trinity_compat",
            "audit",
            folder,
            "--format",
            "html",
            "-o",
            "audit.html",
        ]
        ours = timed(audit, folder)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        verl = [sys.executable, "-m", "verl.trainer.main_ppo", "--cfg", "job", *OVERRIDES]
        theirs = statistics.median(timed(verl, folder) for _ in range(3))
    cpu, keys = used.ru_utime + used.ru_stime, sum(len(arguments) for _, *arguments in launches)
    print(
        f"audit of {wanted} scripts ({source}, {keys} overrides): {ours:.1f} s wall, "
        f"{cpu:.1f} s CPU; verl --cfg job {theirs:.2f} s each, {theirs * wanted:.0f} s for {wanted} "
        f"(extrapolated from 3 runs), ratio {theirs * wanted / ours:.0f}"
    )
    return int(cpu > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
