"""`trinity-compat parse`: its output, its exit codes, its messages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from trinity_compat.cli import main

MAIN = "python3 -m verl.trainer.main_ppo"


def run(capsys, *argv):
    with pytest.raises(SystemExit) as left:
        main(["parse", *argv])
    captured = capsys.readouterr()
    return left.value.code, captured.out, captured.err


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(f'export A=1\n{MAIN} \\\n  a=$HOME/x \\\n  b=$(nvidia-smi) c=${{V:-d}} "$@"\n')
    return path


def test_json_has_every_launch_with_its_words_and_line(capsys, script, tmp_path):
    code, out, _ = run(capsys, str(script), "--format", "json", "--cwd", str(tmp_path), "--", "k=v", "-x")
    assert code == 0
    assert json.loads(out) == {
        "version": 1,
        "launches": [
            {
                "module": "verl.trainer.main_ppo",
                "args": ["a=/x", "b=", "c=d", "k=v", "-x"],
                "line": 2,
                "env": {"A": "1"},
                "unresolved": [
                    {"arg": 0, "expression": "${HOME}", "line": 3, "variable": "HOME"},
                    {"arg": 1, "expression": "$(nvidia-smi)", "line": 4, "variable": ""},
                ],
            }
        ],
        "diagnostics": [],
    }


def test_a_variable_given_by_env_is_expanded(capsys, script, tmp_path):
    options = ["--cwd", str(tmp_path), "--env", "HOME=/h", "--env", "V=a=b", "--format", "json"]
    _, out, _ = run(capsys, *options, str(script))
    (launch,) = json.loads(out)["launches"]
    assert launch["args"][:3] == ["a=/h/x", "b=", "c=a=b"]


def test_text_shows_each_word_with_its_line_and_what_is_open(capsys, script):
    code, out, _ = run(capsys, str(script), "--env", "HOME=/h")
    assert code == 0
    assert f"{script}:2: verl.trainer.main_ppo" in out
    assert "    3  a=/h/x" in out
    assert "[known only at run time: $(nvidia-smi)]" in out


@pytest.mark.parametrize("form", ["text", "json"])
def test_bytes_that_are_no_text(capsys, tmp_path, form):
    path = tmp_path / "run.sh"
    path.write_bytes(MAIN.encode() + b" a=\xff b=1\n")
    code, out, _ = run(capsys, str(path), "--format", form)
    assert code == 0
    assert "b=1" in out and "udcff" in out


def test_a_script_is_read_from_stdin(capsys, monkeypatch):
    class Stdin:
        class buffer:
            @staticmethod
            def read():
                return f"{MAIN} a=1 $1\n".encode()

    monkeypatch.setattr(sys, "stdin", Stdin)
    code, out, _ = run(capsys, "-", "--format", "json", "--", "b=2")
    assert (code, json.loads(out)["launches"][0]["args"]) == (0, ["a=1", "b=2"])


def test_a_command_line_is_read_without_expansion(capsys):
    code, out, _ = run(capsys, "--argv", "--format", "json", "--", *MAIN.split(), "a=$x", "+b=1")
    assert (code, json.loads(out)["launches"][0]["args"]) == (0, ["a=$x", "+b=1"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "no script is given"),
        (("nothing.sh",), "no such script: nothing.sh"),
        (("--env", "X", "y.sh"), "--env X: not of the form NAME=VALUE"),
        (("--argv",), "no command line is given"),
    ],
)
def test_bad_input_ends_with_2_and_its_reason(capsys, argv, message):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err


def test_line_ends_of_another_system_are_said_and_shown(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_bytes(b"set -x\r\npython3 -m verl.trainer.main_ppo a.a=1 \\\r\n  b.b=2\r\n")
    _, text, _ = run(capsys, "run.sh")
    assert text.splitlines() == [
        "run.sh:2: verl.trainer.main_ppo, 2 arguments",
        "      2  a.a=1",
        "      2  \\r",
        "run.sh:1: warning TP005 lines end in CR LF: bash reads the carriage return as part of the"
        " last word (dos2unix removes it)",
        "run.sh:3: warning TP003 bash reads 'b.b' as a command, the override is lost: a carriage return"
        " follows the backslash of the line above"
        ", as of every line here that ends in CR LF",
    ]


def test_a_byte_order_mark_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_bytes(b"\xef\xbb\xbf#!/bin/bash\npython3 -m verl.trainer.main_ppo a.a=1\n")
    _, text, _ = run(capsys, "run.sh")
    assert "run.sh:2: verl.trainer.main_ppo, 1 arguments" in text
    assert "run.sh:1: warning TP006 begins with a byte order mark" in text


@pytest.mark.parametrize(("words", "unwanted"), [
    (["parse", "run.sh"], "trinity_compat.translate"),
    (["compare", "--help"], "trinity_compat.translate"),
])  # fmt: skip
def test_a_command_loads_no_more_than_it_needs(tmp_path, words, unwanted):
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_ppo a=1\n")
    code = (
        "import sys; from trinity_compat.cli import cli; "
        f"cli({words!r}, standalone_mode=False); print({unwanted!r} in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(("value", "named"), [("7", ["TP123"]), ("3", [])])
def test_a_variable_of_the_calling_shell_that_would_change_the_launch_is_named(
    value, named, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("STEPS", value)
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo a.b=${STEPS:-3}\n")
    _, out, _ = run(capsys, str(path), "--format", "json")
    assert [found["code"] for found in json.loads(out)["diagnostics"]] == named


def test_a_script_that_launches_nothing_ends_with_2(capsys, tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("echo hi\n")
    code, out, _ = run(capsys, str(path))
    assert code == 2 and "no veRL training is started" in out


@pytest.mark.parametrize(
    ("words", "main"),
    [
        ("data.gen_batch_size=64 trainer.use_v1=true", "verl.trainer.main_ppo"),
        ("data.gen_batch_size=64 reward_model.overlong_buffer.enable=True", "recipe.dapo.main_dapo"),
    ],
)
def test_a_main_of_the_users_is_taken_for_the_one_that_is_translated(capsys, tmp_path, words, main):
    (tmp_path / "run.sh").write_text(f"python3 mine.py algorithm.adv_estimator=grpo {words}\n")
    _, out, _ = run(capsys, str(tmp_path / "run.sh"), "--format", "json")
    assert [launch["taken_for"] for launch in json.loads(out)["launches"]] == [main]
