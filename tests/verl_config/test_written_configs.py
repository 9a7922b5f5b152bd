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


@pytest.mark.parametrize(
    "command",
    [
        "python3 gen.py > mine.yaml",
        "python3 patch.py mine.yaml",
        "python3 gen.py --out=mine.yaml",
        "envsubst < other.yaml > mine.yaml",
        "envsubst < other.yaml | tee mine.yaml",
        "sed -i s/9/5/ mine.yaml",
        "yq -i .data.train_batch_size=5 mine.yaml",
        "cp /cluster/mine.yaml .",
        "mv /cluster/mine.yaml mine.yaml",
        "curl -o mine.yaml http://host/x",
        "hostname >> mine.yaml",
        "cd sub; python3 gen.py > ../mine.yaml; cd ..",
    ],
)
def test_one_that_an_unread_program_may_have_written_is_refused(command, tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "sub").mkdir()
    (tmp_path / "run.sh").write_text(f"{command}\n{MAIN}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    with pytest.raises(
        UserError, match="before the launch, so that what it holds cannot be known here"
    ) as error:
        effective_config(launch, root=tmp_path)
    assert error.value.where is not None and error.value.where.line == 1


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
