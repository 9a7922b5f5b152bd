"""``git rev-parse --show-toplevel``: where a script asks git for the folder of its repository."""

import pytest

from trinity_compat.launch import read_script

MAIN = 'python3 -m verl.trainer.main_ppo a="$top"\n'


def word(tmp_path, line, below="a/b"):
    """What a script in ``below`` of a clone hands on after ``line``."""
    script = tmp_path / "clone" / below / "run.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"{line}\n{MAIN}")
    (launch,) = read_script(script, cwd=tmp_path).launches
    return launch.arguments[0], str(tmp_path / "clone")


@pytest.mark.parametrize(
    "line",
    [
        "cd clone/a; top=$(git rev-parse --show-toplevel)",
        'top=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)',
        'top="$(cd "$(dirname "${BASH_SOURCE[0]}")" && git rev-parse --show-toplevel)"',
        "cd clone; top=$(git rev-parse --show-toplevel 2>/dev/null || pwd)",
    ],
)
@pytest.mark.parametrize("kind", ["folder", "worktree"])
def test_the_next_folder_upwards_with_a_git(tmp_path, line, kind):
    mark = tmp_path / "clone" / ".git"
    mark.mkdir(parents=True) if kind == "folder" else mark.parent.mkdir()
    if kind == "worktree":
        mark.write_text("gitdir: /elsewhere\n")
    argument, clone = word(tmp_path, line)
    assert argument.text == f"a={clone}"


@pytest.mark.parametrize("line", ["top=$(git rev-parse --show-toplevel)", "top=$(git describe --tags)"])
def test_what_no_folder_says_stays_open(tmp_path, line):
    argument, _ = word(tmp_path, line)
    assert [part.source.expression for part in argument.parts if part.source] == [line.partition("=")[2]]
