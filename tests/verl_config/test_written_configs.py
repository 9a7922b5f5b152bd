"""Config files that a script writes before its launch: read as it would write them, nothing on the disk."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.verl_config import effective_config

SCRIPT = """\
CONF=${{CONF:-$PWD/conf}}
mkdir -p "$CONF/data"
cat > "$CONF/mine.yaml" <<EOF
hydra:
  searchpath: [pkg://verl.trainer.config]
defaults: [ppo_trainer, {group}_self_]
data:
  train_batch_size: {size}
EOF
echo "seed: 7" > "$CONF/data/few.yaml"
python3 -m verl.trainer.main_ppo --config-path="$CONF" --config-name=mine data.max_prompt_length=64
"""


@pytest.fixture
def config(tmp_path):
    def read(size="128", group="", after=""):
        (tmp_path / "run.sh").write_text(
            SCRIPT.format(size=size, group=group).replace("python3", after + "python3")
        )
        (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
        return effective_config(launch, root=tmp_path)

    return read


def test_a_config_that_the_script_writes_counts_as_the_user_s(config, tmp_path):
    found = config()
    assert found.get("data.train_batch_size") == 128
    assert found.set_keys == ("data.train_batch_size", "data.max_prompt_length")
    assert str(found.settings["data.train_batch_size"].where) == f"{tmp_path / 'conf' / 'mine.yaml'}:5"
    assert not (tmp_path / "conf").exists()


def test_it_has_config_groups_of_its_own(config):
    assert config(group="data@data: few, ").get("data.seed") == 7


def test_what_the_script_writes_comes_before_what_lies_there(config, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 9}\n"
    )
    assert config().get("data.train_batch_size") == 128


def test_one_with_text_that_only_running_could_tell_is_not_guessed(config):
    with pytest.raises(UserError, match=r"mine\.yaml: \$\(nvidia-smi -L \| wc -l\) writes or changes it"):
        config(size="$(nvidia-smi -L | wc -l)", after='rm "$CONF/data/few.yaml"; ')


MINE = "defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 9}\n"
OTHER = MINE.replace("9", "5")
MAIN = 'python3 -m verl.trainer.main_ppo --config-path="$PWD" --config-name=mine'


WRITERS = [
    "python3 gen.py > FILE",
    "python3 patch.py FILE",
    "python3 gen.py --out=FILE",
    "envsubst < other > FILE",
    "envsubst < other | tee FILE",
    "sed -i s/9/5/ FILE",
    "yq -i .data.train_batch_size=5 FILE",
    "cp /cluster/FILE .",
    "mv /cluster/FILE FILE",
    "curl -o FILE http://host/x",
    "wget -O FILE https://host/x",
    "wget https://host/folder/FILE",
    "scp host:/folder/FILE .",
    "rsync -a host:FILE ./",
    "sort -o FILE rows",
    "exec 3> FILE; python3 gen.py >&3",
    "rsync -a host:confs/ .",
    "rsync -a host:confs/ $PWD/",
    "rm FILE; ./make_it",
    "mv FILE FILE.old; ./make_it",
    "find . -name 'mine*' -exec sed -i s/9/5/ {} +",
    "ls | xargs perl -pi -e s/9/5/",
    "hostname >> FILE",
    "python3 patch.py FILE; echo >> FILE",
    "cd sub; python3 gen.py > ../FILE; cd ..",
    "cat > FILE <<EOF\n# $(hostname)\nEOF",
    """python3 -c 'open("FILE", "w").write("")'""",
    "python3 - <<'EOF'\nimport pathlib\npathlib.Path('FILE').write_text('')\nEOF",
]
LAUNCHES = [
    ("mine.yaml", MAIN),
    ("reward.py", "python3 -m verl.trainer.main_ppo custom_reward_function.path=reward.py"),
    ("mine.py", 'python3 -m verl.trainer.main_ppo reward.custom_reward_function.path="$PWD/mine.py"'),
    ("rows.py", "python3 -m verl.trainer.main_ppo data.custom_cls.path=./rows.py data.custom_cls.name=Rows"),
    (
        "tools.yaml",
        f"{MAIN.split(' --')[0]} actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
    ),
]


@pytest.mark.parametrize("launch", LAUNCHES, ids=[name for name, _ in LAUNCHES])
@pytest.mark.parametrize("command", WRITERS)
def test_a_file_that_an_unread_program_may_have_written_is_refused(command, launch, tmp_path):
    name, main = launch
    (tmp_path / name).write_text(MINE)
    (tmp_path / "other").write_text(OTHER)
    (tmp_path / "sub").mkdir()
    (tmp_path / "run.sh").write_text(f"{command.replace('FILE', name)}\n{main}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    with pytest.raises(
        UserError, match=f"{name}: (.|\\n)* before the launch, so that what it holds cannot be known here"
    ) as error:
        effective_config(launch, root=tmp_path)
    assert error.value.where is not None and error.value.where.line <= 2


@pytest.mark.parametrize(
    "command",
    [
        "cat reward.py; grep def reward.py",
        "scp -P 22 reward.py host:; rsync -a reward.py me@host:/folder/",
        "python3 gen.py > other.py",
        "cat > reward.py <<EOF\ndef compute_score(*args): return 1\nEOF",
        "sed -i s/9/7/ reward.py; cp other reward.py",
        """python3 -c 'print(open("reward.py").read())'""",
    ],
)
def test_a_reward_file_whose_text_is_known_is_taken(command, tmp_path):
    (tmp_path / "reward.py").write_text("")
    (tmp_path / "other").write_text("")
    (tmp_path / "run.sh").write_text(f"{command}\n{LAUNCHES[1][1]}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert effective_config(launch, root=tmp_path).set_keys == ("custom_reward_function.path",)


@pytest.mark.parametrize(
    ("command", "size"),
    [
        ("cat mine.yaml; grep 9 mine.yaml; head -n 3 mine.yaml", 9),
        ("python3 gen.py > new.yaml", 9),
        ("cp other.yaml mine.yaml", 5),
        ("mv other.yaml mine.yaml", 5),
        ("sed -i s/9/7/ mine.yaml; cat other.yaml > mine.yaml", 5),
    ],
)
def test_one_whose_text_is_known_is_read(command, size, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "run.sh").write_text(f"{command}\n{MAIN}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert effective_config(launch, root=tmp_path).get("data.train_batch_size") == size


def test_one_that_is_not_yaml_is_named(config, tmp_path):
    with pytest.raises(UserError, match=r"mine\.yaml:"):
        config(size="[")
