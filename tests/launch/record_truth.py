"""Record what real bash hands to Python, for every script in fixtures/.

    python tests/launch/record_truth.py          # writes fixtures/truth.json

Each script runs under bash in a folder of its own, with recording stubs for python3, torchrun and
ray in front of PATH. Comments at its top set the stage: ``# args: …``, ``# env: K=V …``,
``# file: PATH: CONTENT``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

FIXTURES = Path(__file__).with_name("fixtures")
TRUTH = FIXTURES / "truth.json"
RECORD = '#!/bin/bash\nprintf "%s\\0" "$#" "$@" >> "$TC_RECORD"\n'
STUBS = {
    "python3": RECORD,
    "ray": '#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n',
    # --key=value options only: enough for the fixtures.
    "torchrun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec python3 "$@"\n',
}


@dataclass
class Stage:
    """What a script finds when it starts."""

    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def stage_of(text: str) -> Stage:
    stage = Stage()
    for kind, rest in re.findall(r"(?m)^# (args|env|file): (.*)$", text):
        if kind == "args":
            stage.args = shlex.split(rest)
        elif kind == "env":
            stage.env.update(pair.split("=", 1) for pair in rest.split())
        else:
            name, content = rest.split(": ", 1)
            stage.files[name] = content + "\n"
    return stage


def set_up(stage: Stage, script: Path, folder: Path) -> Path:
    """The folder as the script expects it; the script's own copy in it."""
    for name, content in stage.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return Path(shutil.copy(script, folder / script.name))


def launches_of(data: bytes) -> list[dict[str, object]]:
    """The training mains among the recorded calls, as `parse --format json` names them."""
    fields = data.decode(errors="surrogateescape").split("\0")[:-1]
    found = []
    while fields:
        count = int(fields[0])
        argv, fields = fields[1 : count + 1], fields[count + 1 :]
        while argv and argv[0] == "-u":
            argv = argv[1:]
        if argv[:1] == ["-m"]:
            module, args = argv[1], argv[2:]
        else:
            module, args = argv[0].removesuffix(".py").removeprefix("./").replace("/", "."), argv[1:]
        if re.search(r"\.(main_ppo|main_dapo|fsdp_sft_trainer)$", module):
            found.append({"module": module, "args": args})
    return found


def run_bash(script: str, stage: Stage, folder: Path, stubs: Path) -> list[dict[str, object]]:
    """The launches that bash makes of ``script``, a path relative to ``folder``."""
    record = folder / ".record"
    record.write_bytes(b"")
    env = {"PATH": f"{stubs}:/usr/bin:/bin", "TC_RECORD": str(record), "LC_ALL": "C.UTF-8", **stage.env}
    command = ["bash", script, *stage.args]
    subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    return launches_of(record.read_bytes())


def write_stubs(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in STUBS.items():
        (folder / name).write_text(text)
        os.chmod(folder / name, 0o755)
    return folder


def main() -> None:
    truth = {}
    with tempfile.TemporaryDirectory() as root:
        stubs = write_stubs(Path(root, "stubs"))
        for script in sorted(FIXTURES.glob("*.sh")):
            folder = Path(root, script.stem)
            folder.mkdir()
            stage = stage_of(script.read_text())
            set_up(stage, script, folder)
            truth[script.stem] = run_bash(script.name, stage, folder, stubs)
    TRUTH.write_text(json.dumps(truth, indent=1, ensure_ascii=True) + "\n")
    print(f"{len(truth)} scripts, {sum(map(len, truth.values()))} launches: {TRUTH}")


if __name__ == "__main__":
    main()
