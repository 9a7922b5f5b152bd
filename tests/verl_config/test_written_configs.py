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
    "wget -OFILE https://host/x",
    "wget -qP . https://host/x/FILE",
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
    "curl -LoFILE https://host/x",
    "curl -sLO https://host/FILE?raw=true",
    "curl -JLO https://host/download",
    "wget $STORE/FILE",
    "wget 'https://host/FILE?download=true'",
    "cp -r /cluster/FILE . && cp -r /cluster/confs/. .",
    "cp -t . /cluster/FILE",
    "cp $STORE/FILE .",
    "cp -r $STORE/* $PWD",
    "ln -sf /cluster/FILE .",
    "rm -rf $PWD",
    "git pull",
    "cd sub && git -C .. pull --rebase; cd ..",
    "git checkout v2",
    "git checkout -- FILE",
    "git restore .",
    "git reset --hard origin/main",
    "git stash",
    "git apply fix.patch",
    "git clone https://host/confs.git .",
    "tar xzf bundle.tgz",
    "tar -C $PWD -x -f bundle.tgz",
    "curl -L https://host/b.tgz | tar xz",
    "tar xf bundle.tar FILE",
    "unzip -o bundle.zip",
    "7z x bundle.7z -o$PWD",
    "huggingface-cli download org/confs --local-dir .",
    "hf download org/confs FILE --local-dir=$PWD",
    "modelscope download --model org/confs --local_dir ./",
    "aws s3 sync s3://b/confs .",
    "aws s3 cp s3://b/FILE .",
    "aws s3 cp --recursive s3://b/confs .",
    "gsutil -m rsync -r gs://b/confs .",
    "gsutil cp gs://b/FILE .",
    "hdfs dfs -get /confs/FILE .",
    "rclone copy store:confs .",
    "docker cp box:/FILE .",
    "kubectl cp pod:/x FILE",
    "patch -p1 < fix.patch",
    "wget -r -nd https://host/confs/",
    "wget -i list.txt",
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
        UserError, match=f"{name}: (.|\\n)* before the launch, so that its content is known only at run time"
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
        "git clone https://host/tools.git; git -C tools pull; cd tools; cd ..",
        "git clone -b v2 --depth 1 https://host/x third/party",
        "git checkout -b mine; git add reward.py; git fetch origin; git reset; git submodule update --init",
        "tar xzf data.tgz -C data; tar czf all.tgz reward.py; tar xf b.tar rows.csv; unzip b.zip -d data",
        "huggingface-cli download org/model --local-dir models; hf download org/m",
        "hf download o/m a.bin --local-dir .; hf download org/m --include '*.parquet' --local-dir .",
        "wget -P data -i list.txt; curl -o data/reward.py http://x; curl http://x/reward.py",
        "aws s3 sync . s3://b/x; aws s3 cp reward.py s3://b/; rsync -a host:rows .; rsync -a reward.py data/",
        "cp -r /cluster/data .; cp /cluster/*.parquet .; cp -r $STORE/data .; rm -rf out; cp -r sub out",
        "git pull; echo > reward.py",
    ],
)
def test_a_reward_file_whose_text_is_known_is_taken(command, tmp_path):
    (tmp_path / "reward.py").write_text("")
    (tmp_path / "other").write_text("")
    (tmp_path / "run.sh").write_text(f"{command}\n{LAUNCHES[1][1]}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert launch.cwd == str(tmp_path)
    assert effective_config(launch, root=tmp_path).set_keys == ("custom_reward_function.path",)


@pytest.mark.parametrize(
    "command", ["cp -r conf $PWD/new", "cp -rT conf new", "mv conf new", "mkdir new; cp -r conf/. new/"]
)
def test_a_folder_that_is_copied_whole_holds_what_it_held(command, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(MINE)
    main = MAIN.replace("$PWD", "$PWD/new")
    (tmp_path / "run.sh").write_text(f"{command}\n{main}\n")
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert effective_config(launch, root=tmp_path).get("data.train_batch_size") == 9


def test_a_folder_that_a_program_brings_is_entered_and_its_files_are_open(tmp_path):
    text = f"git clone https://host/confs.git\ncd confs/ppo\n{MAIN} trainer.nnodes=$(cat nodes)\n"
    (tmp_path / "run.sh").write_text(text)
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert launch.cwd == str(tmp_path / "confs/ppo") and launch.arguments[-1].open
    with pytest.raises(
        UserError, match=r"mine\.yaml: git clone https://host/confs\.git writes or changes it"
    ):
        effective_config(launch, root=tmp_path)


@pytest.mark.parametrize(
    "command", ["git pull", "cp -r /cluster/. .", "tar xf b.tar", "rsync -a host:envs/ ./"]
)
def test_a_sourced_file_of_a_folder_that_is_changed_is_open(command, tmp_path):
    (tmp_path / "env.sh").write_text("SIZE=5\n")
    (tmp_path / "run.sh").write_text(
        f"{command}\n. env.sh\npython3 -m verl.trainer.main_ppo data.train_batch_size=$SIZE\n"
    )
    (launch,) = read_script(tmp_path / "run.sh", cwd=tmp_path).launches
    assert launch.arguments[0].open


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
