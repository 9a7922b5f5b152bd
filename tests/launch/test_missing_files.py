"""Scripts that end because a file isn't there: where the training is started, it will be."""

import pytest

from trinity_compat.launch import read_script, read_text

MAIN = "python3 -m verl.trainer.main_ppo a=1\n"


def read(tmp_path, text):
    (tmp_path / "run.sh").write_text(text)
    reading = read_script(tmp_path / "run.sh", cwd=tmp_path, name="run.sh")
    return len(reading.launches), [str(note) for note in reading.diagnostics]


@pytest.mark.parametrize(
    "check",
    [
        'if [ ! -f "data/x" ]; then\n  exit 1\nfi\n',
        "if [[ -s data/x ]]; then\n  :\nelse\n  exit 1\nfi\n",
        "[ -f data/x ] || { echo no; exit 1; }\n",
        "die() { exit 2; }\n[[ -e data/x ]] || die\n",
        'for f in data/x data/y; do\n  if [ ! -d "$f" ]; then exit 1; fi\ndone\n',
    ],
)
def test_the_launch_behind_the_check_is_read_and_the_assumption_named(tmp_path, check):
    count, told = read(tmp_path, check + MAIN)
    assert count == 1
    assert [note for note in told if "warning TP114 assumed: it is there; this depends on -" in note]


def test_a_check_that_ends_nothing_is_as_it_is(tmp_path):
    text = "if [ -f data/x ]; then python3 -m verl.trainer.main_ppo b=1; else " + MAIN.strip() + "; fi\n"
    (tmp_path / "run.sh").write_text(text)
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert launch.arguments[0].text == "a=1"


def test_a_file_that_the_script_removed_is_not_there(tmp_path):
    count, _ = read(tmp_path, "rm -f data/x\n[ -f data/x ] || exit 1\n" + MAIN)
    assert count == 0


def test_a_python_whose_path_nobody_knows_starts_the_module(tmp_path):
    for call in ('"$PY"', "$PY"):
        text = f"PY=$(command -v python)\n{call} -m verl.trainer.main_ppo a=1\n{call} -m pip install x\n"
        (launch,) = read_text(text).launches
        assert (launch.module, launch.where.line) == ("verl.trainer.main_ppo", 2)
        assert launch.start.program == "python3"


def test_a_script_that_ends_for_want_of_arguments_says_where_they_stand():
    text = 'if [ -z "$1" ]; then exit 1; fi\npython3 -m verl.trainer.main_ppo a=$1\n'
    (note,) = read_text(text).diagnostics
    assert note.message.endswith("main; arguments that it wants stand after --")
    assert len(read_text(text, args=["x"]).launches) == 1
    (note,) = read_text("exit 1\n" + MAIN).diagnostics
    assert "--" not in note.message


@pytest.mark.parametrize("path", ["/users/$USER/x/train.parquet", "$SCRATCH/x/train.parquet"])
def test_a_file_below_an_unset_folder_may_be_there(tmp_path, path):
    check = f'if [ -f "{path}" ]; then echo found; else echo none; exit 1; fi\n'
    count, told = read(tmp_path, check + MAIN)
    assert count == 1
    assert [note for note in told if f"this depends on -f {path}, which cannot be known here" in note]


@pytest.mark.parametrize("folder", ["/data/out", "$HOME/out", "$(hostname)/out"])
@pytest.mark.parametrize("test", ["[[ -w {0} ]]", "[[ -d {0} && -w {0} ]]", "[ -w {0} ]"])
def test_a_folder_that_the_script_makes_can_be_written_to_and_that_is_said(folder, test):
    text = (
        f"mkdir -p {folder}\nif {test.format(folder)}; then d=made; else d=/tmp; fi\n{MAIN.strip()} a.b=$d\n"
    )
    reading = read_text(text)
    assert [word.text for word in reading.launches[0].arguments] == ["a=1", "a.b=made"]
    (said,) = (note for note in reading.diagnostics if "the script makes that folder" in note.message)
    assert (said.code, said.where.line) == ("TP101", 2)


def test_a_folder_below_a_variable_that_is_removed_again_is_not_there():
    check = "mkdir -p $HOME/out\nrm -r $HOME/out\nif [[ -w $HOME/out ]]; then d=1; else d=0; fi"
    text = f"{check}\n{MAIN.strip()} a.b=$d\n"
    assert [word.text for word in read_text(text).launches[0].arguments] == ["a=1", "a.b=0"]
