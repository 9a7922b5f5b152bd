"""`upgrade` on a sample of the launches that bash made of veRL's own scripts (tests/facts/public.json.xz).

The scripts themselves are not ours to keep: each launch is written as a script of one command.
scripts/judge/upgrade_corpus.py judges the scripts themselves.
"""

import shlex
import sys
from collections import Counter
from pathlib import Path

import facts
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "judge"))
from upgrade_corpus import MAIN, judged, version_of

EVERY = 9
LAUNCHES = [
    (entry["tag"], entry["path"], launch["args"])
    for entry in facts.public_scripts()
    if entry["kind"] == "file"
    for launch in entry["launches"]
    if launch["module"] == MAIN and not any(word.startswith("--config") for word in launch["args"])
]


@pytest.mark.parametrize(
    ("tag", "path", "words"), [pytest.param(*each, id=f"{each[0]}:{each[1]}") for each in LAUNCHES[::EVERY]]
)
def test_the_new_launch_means_what_the_old_one_did(
    tag: str, path: str, words: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    lines = [f"python3 -m {MAIN}", *(f"    {shlex.quote(word)}" for word in words)]
    script.write_text(" \\\n".join(lines) + "\n")
    how = {"cwd": str(tmp_path), "env": {}, "args": ()}
    assert list(judged(script, how, version_of(tag), Counter())) == []
