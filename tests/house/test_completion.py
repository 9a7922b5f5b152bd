"""`trinity-compat completion`: a real bash completes; zsh and fish get answers in their protocols."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli

COMMAND = Path(sys.executable).parent / "trinity-compat"


def script(shell):
    return CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False).output


@pytest.fixture
def typed(tmp_path):
    """Return the output of an interactive bash for typed keys, of which TAB completes."""
    (tmp_path / "my_script.sh").write_text("")
    (tmp_path / "rc").write_text(f"{script('bash')}\nPS1=\nbind 'set enable-bracketed-paste off'\n")

    def type_keys(keys):
        ours, theirs = pty.openpty()
        env = os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "TERM": "dumb"}
        words = ["bash", "--noprofile", "--rcfile", "rc", "-i"]
        try:
            os.write(ours, f"{keys}\nexit\n".encode())
            done = subprocess.run(
                words, cwd=tmp_path, env=env, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return done.stdout.decode()

    return type_keys


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("transl\t", ["translate"]),
        ("buffer sta\t", ["buffer", "stats"]),
        ("audit --form\tsar\t", ["audit", "--format", "sarif"]),
        ("audit my_\t", ["audit", "my_script.sh"]),
        ("diff my_\tmy_\t", ["diff", "my_script.sh", "my_script.sh"]),
        ("audit --rules my_\t", ["audit", "--rules", "my_script.sh"]),
    ],
)
def test_bash_completes_commands_options_values_and_files(typed, keys, words):
    # printf takes the command's place once the line is complete: its function is bound to the name
    told = typed(f"trinity-compat() {{ builtin printf '<%s>' \"$@\"; }}\ntrinity-compat {keys}")
    assert "".join(f"<{word}>" for word in words) in told


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_ask_the_same_command(shell):
    text = script(shell)
    assert f"_TRINITY_COMPAT_COMPLETE={shell}_complete" in text and "trinity-compat" in text


@pytest.mark.parametrize(
    ("shell", "words", "said"),
    [
        ("zsh", {"COMP_WORDS": "trinity-compat exp", "COMP_CWORD": "1"}, ["plain", "explain"]),
        ("fish", {"COMP_WORDS": "trinity-compat exp", "COMP_CWORD": "exp"}, ["plain", "explain"]),
    ],
)
def test_zsh_and_fish_are_answered(shell, words, said):
    env = os.environ | {"_TRINITY_COMPAT_COMPLETE": f"{shell}_complete"} | words
    done = subprocess.run([COMMAND], env=env, capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in said)


def test_another_shell_is_refused():
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2 and "'bash', 'zsh', 'fish'" in done.output
