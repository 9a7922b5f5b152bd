"""Variables that a script unsets for its launch: ``${oc.env:X}`` reads what the launched process sees."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.env_references import resolved_launch
from trinity_compat.verl_config import effective_config

KEY = "trainer.experiment_name"
MAIN = "python3 -m verl.trainer.main_ppo data.train_files=/a data.val_files=/b " + KEY + "='${oc.env:X%s}'"
UNSET = [
    "unset X; MAIN",
    "export X=1; unset -v X; MAIN",
    "env -u X MAIN",
    "env --unset=X MAIN",
    "env -i MAIN",
    "env - PATH=$PATH MAIN",
    "env -i bash train.sh",
    "env -u X bash -c 'bash train.sh'",
    "(unset X; bash train.sh)",
    "unset X; nohup MAIN",
]


@pytest.fixture
def launch(tmp_path):
    def read(command, default="", given=()):
        (tmp_path / "train.sh").write_text(MAIN % default)
        (tmp_path / "run.sh").write_text(command.replace("MAIN", MAIN % default))
        return read_script(tmp_path / "run.sh", cwd=tmp_path, env=dict(given)).launches[0]

    return read


def named(launch):
    return effective_config(launch).get(KEY)


@pytest.mark.parametrize("given", [{}, {"X": "5"}], ids=["open", "given"])
@pytest.mark.parametrize("command", UNSET)
def test_one_that_is_unset_is_its_default(launch, command, given):
    read = launch(command, ",none", given)
    assert named(read) == "none"
    assert named(resolved_launch(read, {"X": "5", "PATH": "/bin"})) == "none"
    assert not effective_config(read).frozen()


@pytest.mark.parametrize("command", UNSET)
def test_without_a_default_it_is_an_error(launch, command):
    with pytest.raises(
        UserError, match=rf"{KEY}: \$X is unset by the script: give the key's value with --set"
    ):
        translate_launch(launch(command), TranslateOptions(resolve=True, environ={"X": "5", "PATH": "/bin"}))


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("X= MAIN", ""),
        ("unset X; X=2 MAIN", "2"),
        ("env -i X=2 MAIN", "2"),
        ("env -u X X=2 bash train.sh", "2"),
        ("(unset X); MAIN", "5"),
        ("f() { local X; unset Y; }; f; MAIN", "5"),
        ("env -u Y MAIN", "5"),
        ("MAIN; unset X", "5"),
    ],
)
def test_any_other_is_what_the_launch_has(launch, command, value):
    assert named(resolved_launch(launch(command, ",none"), {"X": "5", "PATH": "/bin"})) == value


@pytest.mark.parametrize("command", ["env -u X bash a.sh", "env -i bash a.sh", "unset X; bash a.sh"])
def test_a_script_in_such_an_environment_takes_its_own_default(launch, command, tmp_path):
    (tmp_path / "a.sh").write_text("python3 -m verl.trainer.main_ppo trainer.nnodes=${X:-2}\n")
    word = launch(command).arguments[0]
    assert word.text == "trainer.nnodes=2" and not word.env_refs


ASSIGNED = [
    "X=5; MAIN",
    "X=5; nohup bash -c 'bash train.sh'",
    "declare X=5; MAIN",
    "X=4; (X=5; bash train.sh)",
    "read X <<< 5; bash -c 'bash train.sh'",
    "f() { local X=5; MAIN; }; f",
    "X=5; set -a; Y=1; MAIN",
]


@pytest.mark.parametrize("command", ASSIGNED)
def test_one_that_is_assigned_alone_arrives_where_the_environment_has_it(launch, command):
    read = launch(command, ",none")
    assert named(read) == "none"
    assert effective_config(read).frozen()["X"][0] == "none"
    assert named(resolved_launch(read, {"X": "7", "PATH": "/bin"})) == "5"
    assert named(resolved_launch(read, {"PATH": "/bin"})) == "none"
    assert named(launch(command, ",none", {"X": "7"})) == "5"


@pytest.mark.parametrize("command", ASSIGNED)
def test_one_that_is_assigned_alone_is_there_where_nothing_else_is_possible(launch, command):
    config = effective_config(launch(command))
    assert config.get(KEY) == "5"
    (note,) = [note for note in config.diagnostics if note.code == "TP119"]
    assert "sets without export" in note.message and note.where.line == 1


KEPT = ["export -n X; MAIN", "declare +x X; MAIN", "X=5; export -n X; MAIN", "unset X; X=5; bash train.sh"]


@pytest.mark.parametrize(
    "command", [*KEPT, "export X=5; declare +x X; nohup MAIN", "typeset +x X; X=5; MAIN"]
)
@pytest.mark.parametrize("given", [{}, {"X": "7"}], ids=["open", "given"])
def test_one_that_is_not_exported_stays_behind(launch, command, given):
    read = launch(command, ",none", given)
    assert named(read) == named(resolved_launch(read, {"X": "7", "PATH": "/bin"})) == "none"
    assert not effective_config(read).frozen()


@pytest.mark.parametrize("command", ["export -n X", "declare +x X", "declare -i X", "readonly X", "export X"])
def test_a_declaration_leaves_the_value_that_the_environment_gives(launch, command):
    read = launch(
        f"{command}; python3 -m verl.trainer.main_ppo {KEY}=a${{X:-q}} trainer.project_name=${{X-r}}"
    )
    assert [word.text for word in read.arguments] == [f"{KEY}=aq", "trainer.project_name=r"]
    filled = [word.text for word in resolved_launch(read, {"X": "7"}).arguments]
    assert filled == [f"{KEY}=a7", "trainer.project_name=7"]


@pytest.mark.parametrize("command", ["X=5; bash a.sh", "X=5; nohup bash a.sh", "X=5; srun bash a.sh"])
def test_a_script_takes_one_that_is_assigned_alone_where_the_environment_has_it(launch, command, tmp_path):
    (tmp_path / "a.sh").write_text("python3 -m verl.trainer.main_ppo trainer.nnodes=${X:-2}\n")
    launch(command)
    reading = read_script(tmp_path / "run.sh", cwd=tmp_path)
    (word,) = reading.launches[0].arguments
    assert word.text == "trainer.nnodes=2" and not word.env_refs
    assert reading.surroundings["X"].line == 1
    assert launch(command, given={"X": "7"}).arguments[0].text == "trainer.nnodes=5"


@pytest.mark.parametrize(
    "command", ["docker run -e X image MAIN", "sudo --preserve-env=X MAIN", "srun --export=X MAIN"]
)
def test_a_launcher_hands_on_one_that_is_assigned_alone_where_the_environment_has_it(launch, command):
    read = launch(f"X=5; {command}", ",none")
    assert named(read) == "none"
    assert named(resolved_launch(read, {"X": "7"})) == "5"
    assert named(launch(f"X=5; {command}", ",none", {"X": "7"})) == "5"
