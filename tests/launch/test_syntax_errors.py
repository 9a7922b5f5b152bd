"""What is left of a script with a syntax error: the commands that bash has run before it finds the error."""

import subprocess

import pytest

from trinity_compat.launch import read_text

LAUNCH = "python3 -m verl.trainer.main_ppo"
BEFORE = f"{LAUNCH} data.seed=1"


@pytest.mark.parametrize(
    "broken",
    [
        f"{LAUNCH} a=b \\\n  c='d \\\n  e=f\n",
        f"{LAUNCH} a=b \\\n  c=d \\\n  e=f ) \\\n  g=h\n",
        f"{LAUNCH} a=b; {LAUNCH} \\\n  c=d )\n",
        f"if true; then\n  {LAUNCH} a=b\n  {LAUNCH} \\\n c=d )\nfi\n",
        f"{LAUNCH} a=b 'c\n d' \\\n  e=f )\n",
        f"# a comment \\\n{LAUNCH} a=b )\n",
    ],
)
def test_the_command_with_the_error_and_all_after_it_is_not_read(tmp_path, broken):
    text = f"{BEFORE}\n{broken}{LAUNCH} later=1\n"
    (tmp_path / "python3").write_text('#!/bin/sh\nshift 2; echo "$*"\n')
    (tmp_path / "python3").chmod(0o755)
    told = subprocess.run(
        ["bash", "-c", f"PATH={tmp_path}:$PATH; . /dev/stdin"], input=text, capture_output=True, text=True
    )
    reading = read_text(text)
    assert [" ".join(word.text for word in launch.arguments) for launch in reading.launches] == [
        "data.seed=1"
    ]
    assert told.stdout.splitlines() == ["data.seed=1"]
    assert [(note.code, note.severity) for note in reading.diagnostics] == [("TP001", "error")]
