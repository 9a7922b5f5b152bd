"""Record what the commands say of recorded launches and YAMLs, byte for byte: a net below a rebuilding.

    .venv/bin/python scripts/judge/record_behaviour.py DIR [--every N] [--jobs N]
    .venv/bin/python scripts/judge/record_behaviour.py --digests

DIR gets a file for each launch: translate, audit as JSON, and the dry run on a CPU and on the launch's GPUs
with the files of its config folder, or exit code and message. Two commits are compared by ``diff -r``.
``--digests`` writes tests/facts/behaviour.txt, of which tests/house/test_behaviour.py checks a part.
``--every N``: each Nth launch. The checks by veRL's and vLLM's own objects are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import facts  # noqa: E402

DIGESTS = ROOT / "tests" / "facts" / "behaviour.txt"
DEVICES = ("cpu", "cuda")
CONFIG = ("run.json", "verl.yaml", "trinity.yaml")
_DIGITS = 12  # of sha256: enough to see a change


def inputs() -> dict[str, tuple[str, str]]:
    """Name → (name of a file, its text): each recorded launch once, and the repository's YAMLs."""
    found: dict[str, tuple[str, str]] = {}
    seen = set()
    for script in [*facts.public_scripts(), *facts.load("main")["scripts"]]:
        for number, launch in enumerate(script["launches"]):
            words = ("python3", "-m", launch["module"], *launch["args"])
            if words not in seen:
                seen.add(words)
                name = f"{script.get('tag', 'main')}/{script['path']}"
                found[f"{name}#{number}" if number else name] = ("run.sh", shlex.join(words) + "\n")
    for folder in ("examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            if "mode:" in (text := path.read_text()) and "algorithm:" in text:
                found[str(path.relative_to(ROOT))] = ("run.yaml", text)
    return found


def told(file: str, text: str) -> str:
    """Everything that the commands say of one input."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(file).write_text(text)
        parts = []
        if file.endswith(".sh"):
            parts += [_said("translate", file), _said("audit", file, "--format", "json")]
        for device in DEVICES:
            parts.append(_said("run", file, "--dry-run", "--show-yaml", "--job", device, "--device", device))
            config = Path(device, "config")
            parts += [f"== {path.name}\n{path.read_text()}" for path in _there(config)]
            parts.append(_engine(config / "run.json", device))
        return _settled("\n".join(parts), folder)


def _there(config: Path) -> Iterator[Path]:
    return (path for name in CONFIG if (path := config / name).exists())


def _said(*words: str) -> str:
    """Run a command; its output and exit code."""
    from trinity_compat.cli import main

    sys.argv = ["trinity-compat", *words]
    out, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
    out.flush()
    return f"== {shlex.join(words)}: {code}\n{out.buffer.getvalue().decode()}"


def _engine(spec: Path, device: str) -> str:
    from trinity_compat.explorer.engine.arguments import engine_arguments

    if not spec.exists():
        return ""
    arguments = engine_arguments(json.loads(spec.read_text())["verl"], model_path="/model", device=device)
    return f"== engine\n{json.dumps(arguments, indent=1, sort_keys=True)}\n"


def _settled(text: str, folder: str) -> str:
    """Without what differs from one folder, day and machine to the next."""
    text = text.replace(str(Path(folder).resolve()), "/w").replace(folder, "/w").replace(str(ROOT), "/repo")
    text = re.sub(r"/dev/shm/trinity-compat-\d+-[0-9a-f]+", "/dev/shm/X", text)
    text = re.sub(r"\d[\d.]* [KMGT]B?(?=\s*(free|\)|$))", "N", text, flags=re.M)
    text = re.sub(r"(free at [^:]+|free there): [^)\n]+", r"\1: N", text)
    return re.sub(
        r'"(secret|token|started|time|digest|fingerprint|python|version|host|pid)": "[^"]*"',
        r'"\1": "X"',
        text,
    )


def _without_the_check() -> None:
    """A process for each launch that imports veRL and vLLM would take ten seconds."""
    from trinity_compat.run.checks import start_check
    from trinity_compat.run.checks.report import StartReport

    start_check.check = lambda *args, **more: StartReport()
    os.environ.update({"COLUMNS": "200", "TZ": "UTC", "HOME": "/home/user", "NO_COLOR": "1"})


def recorded(every: int, jobs: int) -> Iterator[tuple[str, str]]:
    """Name and text of each input's answers."""
    chosen = list(inputs().items())[::every]
    with ProcessPoolExecutor(jobs, initializer=_without_the_check) as pool:
        answers = pool.map(told, *zip(*(given for _, given in chosen), strict=True), chunksize=4)
        yield from zip((name for name, _ in chosen), answers, strict=True)


def digest(text: str) -> str:
    """The digits that stand in the file."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--digests", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    lines = []
    if args.out:
        shutil.rmtree(args.out, ignore_errors=True)
    for name, text in recorded(args.every, args.jobs):
        lines.append(f"{digest(text)} {name}\n")
        if args.out:
            path = args.out / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if args.digests:
        DIGESTS.write_text("".join(lines))


if __name__ == "__main__":
    main()
