"""Texts for the page Translate, of unlike kinds and veRL releases, and the command line's answers to them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import facts

ROOT = Path(__file__).resolve().parents[1]
MAIN = "verl.trainer.main_ppo"
HOSTILE = f"""#!/bin/bash
# </script><script>window.stolen=1</script><img src=x onerror="window.stolen=1">
touch ran; :(){{ :|:& }};:
while true; do x=$x$x; done &
python3 -m {MAIN} data.train_files='</textarea><img src=x onerror="window.stolen=1">' \\
    trainer.project_name="<b onclick=alert(1)>" actor_rollout_ref.actor.lr=1 trainer.n_gpus_per_node=8
"""


def _recorded() -> dict[str, str]:
    """Return one of veRL's own launches for each recorded revision, as a script of one command."""
    found: dict[str, str] = {}
    for entry in facts.public_scripts():
        known = "math" in entry["path"] or "seq_balance" in entry["path"]  # without a <path> to fill in
        if entry["kind"] == "file" and known and entry["tag"] not in found:
            for launch in entry["launches"][:1]:
                if launch["module"] == MAIN:
                    words = [f"python3 -m {MAIN}", *map(shlex.quote, launch["args"])]
                    found[entry["tag"]] = " \\\n    ".join(words) + "\n"
    return {f"veRL-{tag}.sh": text for tag, text in found.items()}


def scripts() -> dict[str, str]:
    """Return name → text of scripts that have a translation."""
    files = [
        *(ROOT / "examples/verl_scripts").glob("*.sh"),
        *(ROOT / "tests/translate/published").glob("*.sh"),
    ]
    return {path.name: path.read_text() for path in sorted(files)} | _recorded()


_EACH = """
import json, os, sys
from trinity_compat.cli import main
for number, words in enumerate(json.load(sys.stdin)):
    for descriptor, end in ((1, "out"), (2, "err")):
        sys.stdout.flush()
        os.dup2(os.open(f"{number}.{end}", os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["trinity-compat", *words]
    try:
        main(words)
    except SystemExit as ended:
        open(f"{number}.code", "w").write(str(ended.code or 0))
    sys.stdout.flush()
"""


def command_lines(commands: list[str], texts: dict[str, str], folder: Path) -> list[tuple[int, bytes, str]]:
    """Run the commands one after the other in one process: exit code, stdout, stderr."""
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    given = json.dumps([shlex.split(command)[1:] for command in commands])
    words = [sys.executable, "-P", "-c", _EACH]
    subprocess.run(words, cwd=folder, input=given, text=True, check=True)
    places = [folder / str(number) for number in range(len(commands))]
    return [
        (
            int(place.with_suffix(".code").read_text()),
            place.with_suffix(".out").read_bytes(),
            place.with_suffix(".err").read_text(),
        )
        for place in places
    ]


def command_line(command: str, name: str, text: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the command that the page shows, in ``folder``, where the text is a file."""
    (folder / name).write_bytes(text.encode())
    program, *words = shlex.split(command)
    assert program == "trinity-compat"
    return subprocess.run(
        [sys.executable, "-P", "-m", "trinity_compat", *words], cwd=folder, capture_output=True
    )
