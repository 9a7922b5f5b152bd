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
    assert note.message.endswith("main; if it needs arguments, give them after --, as in: run.sh -- 8 out")
    assert len(read_text(text, args=["x"]).launches) == 1
    (note,) = read_text("exit 1\n" + MAIN).diagnostics
    assert "--" not in note.message


@pytest.mark.parametrize("path", ["/users/$USER/x/train.parquet", "$SCRATCH/x/train.parquet"])
def test_a_file_below_an_unset_folder_may_be_there(tmp_path, path):
    check = f'if [ -f "{path}" ]; then echo found; else echo none; exit 1; fi\n'
    count, told = read(tmp_path, check + MAIN)
    assert count == 1
    assert [note for note in told if f"this depends on -f {path}, which is known only at run time" in note]


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


@pytest.mark.parametrize(
    "call", ["bash /n/a/b/jobs/x.sh", "cd /n/a/b\nsource jobs/x.sh", "cd /n\nsh a/b/jobs/x.sh"]
)
def test_a_script_by_its_path_on_the_cluster_is_found_by_the_longest_end(tmp_path, call):
    for folder, value in (("jobs", 1), ("b/jobs", 2)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.sh").write_text(f"python3 -m verl.trainer.main_ppo a={value}\n")
    (tmp_path / "run.sh").write_text(call + "\n")
    reading = read_script(tmp_path / "run.sh", cwd=tmp_path)
    assert [launch.arguments[0].text for launch in reading.launches] == ["a=2"]
    assert "/n/a/b/jobs/x.sh: b/jobs/x.sh, the end of that path below --cwd, is read" in str(
        reading.diagnostics
    )


def test_a_name_alone_is_not_taken_for_the_clusters_script(tmp_path):
    (tmp_path / "setup.sh").write_text("A=2\n")
    count, told = read(tmp_path, "source /opt/none/setup.sh\n" + MAIN)
    assert count == 1
    assert any("if it is setup.sh, read that: trinity-compat parse setup.sh" in note for note in told)


def test_an_end_of_a_path_that_leads_somewhere_is_not_read(tmp_path):
    elsewhere = tmp_path / "elsewhere" / "jobs"
    for folder in (elsewhere, tmp_path / "here" / "jobs"):
        folder.mkdir(parents=True)
        (folder / "x.sh").write_text(MAIN)
    count, told = read(tmp_path / "here", f"bash {elsewhere}/x.sh\n")
    assert count == 0
    assert any(f"--also-read {elsewhere} reads it" in note for note in told)
