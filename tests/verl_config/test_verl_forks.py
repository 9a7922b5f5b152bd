"""A script that starts from a tree of veRL's code: that tree's configuration is the one it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from verl_samples import DAPO, make_launch, write_repository

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script
from trinity_compat.launch.model import Launch
from trinity_compat.verl_config import VERSIONS, config_from_yaml, effective_config, upgrade

PENALTY = "actor_rollout_ref.actor.use_invalid_action_penalty"
MAIN = """\
import hydra
raise RuntimeError("read, never run")

@hydra.main(config_path={folder!r}, config_name={name!r}, version_base=None)
def main(config):
    pass
"""


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """veRL 0.3.0's config files with a key of the fork's own, another default, and one key fewer."""
    root = write_repository("0.3.0", tmp_path / "fork")
    file = root / "verl/trainer/config/ppo_trainer.yaml"
    edit(file, "entropy_coeff: 0.001", "entropy_coeff: 0.01")
    edit(
        file,
        "    grad_clip: 1.0\n",
        "    use_invalid_action_penalty: false # costs a point\n    grad_clip: 1.0\n",
    )
    edit(file, "  balance_batch: true\n", "")
    (root / "run.sh").write_text("python3 -m verl.trainer.main_ppo\n")
    return root


def launch_in(
    root: Path, *arguments: str, cwd: Path | None = None, module: str = "verl.trainer.main_ppo"
) -> Launch:
    return make_launch(*arguments, file=str(root / "run.sh"), cwd=str(cwd or root), module=module)


def test_the_defaults_are_the_tree_s(fork: Path) -> None:
    config = effective_config(launch_in(fork, f"{PENALTY}=True"))
    assert not config.diagnostics and not config.unknown
    assert config.set_keys == (PENALTY,)
    assert (config.get("actor_rollout_ref.actor.entropy_coeff"), config.get(PENALTY)) == (0.01, True)
    assert "trainer.balance_batch" not in config.settings


def test_the_nearest_release_is_named_with_what_differs(fork: Path) -> None:
    config = effective_config(launch_in(fork))
    found = config.fork
    assert found and (found.folder, config.version.value) == (
        "verl/trainer/config",
        "0.3.0",
    )
    assert found.removed == ("trainer.balance_batch",)
    assert found.changed == {"actor_rollout_ref.actor.entropy_coeff": (0.01, 0.001)}
    assert list(found.keys) == [PENALTY]
    assert config.version.why == (
        "nearest to the fork in verl/trainer/config, which adds 1 key, lacks 1 key, changes 1 default"
    )


def test_a_fork_key_has_its_line_and_the_comment_there(fork: Path) -> None:
    found = effective_config(launch_in(fork)).fork
    place = found.keys[PENALTY]
    line = (fork / place.where.file).read_text().splitlines()[place.where.line - 1]
    assert line.strip().startswith("use_invalid_action_penalty") and place.comment == "costs a point"


@pytest.mark.parametrize("above", ["# one\n    # of two lines\n", "\n    # one of\n    # two lines\n"])
def test_the_comment_above_a_key_counts_where_none_is_behind_it(fork: Path, above: str) -> None:
    file = fork / "verl/trainer/config/ppo_trainer.yaml"
    edit(
        file,
        "use_invalid_action_penalty: false # costs a point",
        f"{above}    use_invalid_action_penalty: '#'",
    )
    place = effective_config(launch_in(fork)).fork.keys[PENALTY]
    assert place.comment in ("one of two lines",)


def test_a_key_of_a_later_release_is_none_of_the_fork_s_own(fork: Path) -> None:
    file = fork / "verl/trainer/config/ppo_trainer.yaml"
    edit(file, "entropy_coeff: 0.01", "entropy_coeff: 0.01\n    loss_agg_mode: token-mean")
    found = effective_config(launch_in(fork)).fork
    assert "actor_rollout_ref.actor.loss_agg_mode" in found.added and list(found.keys) == [PENALTY]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stock_tree_is_its_release(version: str, tmp_path: Path) -> None:
    root = write_repository(version, tmp_path)
    config = effective_config(launch_in(root, "data.seed=1" if version != "0.2.0" else "data.shuffle=False"))
    assert (config.fork, config.version.value) == (None, version)
    assert config.settings == effective_config(config.launch, version=version).settings


def test_a_release_that_is_asked_for_leaves_the_tree_out(fork: Path) -> None:
    for options in ({"version": "0.3.0"}, {"fork_config": False}):
        config = effective_config(launch_in(fork, f"{PENALTY}=True"), **options)
        assert config.fork is None and config.unknown == (PENALTY,)
    assert config.version.value == "0.9.1"


def test_a_key_that_the_tree_lacks_is_refused(fork: Path) -> None:
    notes = effective_config(launch_in(fork, "trainer.balance_batch=True")).diagnostics
    assert [note.code for note in notes] == ["TP201"]
    assert "the fork's configuration (verl/trainer/config)" in notes[0].message


@pytest.mark.parametrize("inner", ["", "verl", "src", "train", "train/verl"])
def test_the_tree_is_found_from_the_script_upwards(fork: Path, tmp_path: Path, inner: str) -> None:
    """Where Python starts elsewhere: the package is installed from the script's own repository."""
    repository = tmp_path / "repository"
    (repository / "train" / "scripts").mkdir(parents=True)
    (repository / ".git").mkdir()
    (repository / inner).mkdir(exist_ok=True)
    (fork / "verl").rename(repository / inner / "verl")
    script = repository / "train" / "scripts" / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo")
    (tmp_path / "elsewhere").mkdir()
    config = effective_config(make_launch(file=str(script), cwd=str(tmp_path / "elsewhere")))
    folder = f"{inner}/verl/trainer/config".lstrip("/")
    assert config.fork and config.fork.folder == folder


def test_nothing_above_the_script_s_repository_is_read(fork: Path, tmp_path: Path) -> None:
    (fork / "own" / ".git").mkdir(parents=True)
    (fork / "own" / "run.sh").write_text("true")
    assert effective_config(make_launch(file=str(fork / "own" / "run.sh"), cwd=str(tmp_path))).fork is None
    (fork / "own" / "verl").symlink_to(fork / "verl")
    assert effective_config(make_launch(file=str(fork / "own" / "run.sh"), cwd=str(tmp_path))).fork is None


@pytest.mark.parametrize("rest", ["", "def broken(: here"])
def test_a_main_of_its_own_is_composed_from_what_its_decorator_names(fork: Path, rest: str) -> None:
    (fork / "mine").mkdir()
    (fork / "mine" / "main_ppo.py").write_text(MAIN.format(folder="conf", name="mine") + rest)
    (fork / "mine" / "conf").mkdir()
    (fork / "mine" / "conf" / "mine.yaml").write_text(
        "hydra:\n  searchpath: ['file://verl/trainer/config']\n"
        "defaults: [ppo_trainer, _self_]\nenv:\n  seed: 7\ndata: {train_batch_size: 48}\n"
    )
    config = effective_config(launch_in(fork, "env.seed=8", module="mine.main_ppo"))
    assert not config.diagnostics and config.set_keys == ("env.seed",)
    assert config.get("data.train_batch_size") == 48
    assert set(config.fork.keys) == {PENALTY, "env.seed"}


@pytest.mark.parametrize("start", ["", "cd scripts\n", "cd /n/clone\n"])
@pytest.mark.parametrize(
    ("folder", "given", "size"),
    [("conf", "", 48), ("../conf", "", 64), ("x", "--config-path=conf --config-name=mine", 48)],
)
def test_a_main_by_its_path_on_the_cluster_has_the_configuration_of_its_file(
    tmp_path: Path, start: str, folder: str, given: str, size: int
) -> None:
    root = tmp_path / "clone"
    for name, batch in (("my/conf", 48), ("conf", 64)):
        (root / name).mkdir(parents=True)
        (root / name / "mine.yaml").write_text(
            "hydra:\n  searchpath: ['file://verl/trainer/config']\n"
            f"defaults: [ppo_trainer, _self_]\ndata: {{train_batch_size: {batch}}}\n"
        )
    (root / "scripts").mkdir()
    (root / "my" / "main_dapo.py").write_text(MAIN.format(folder=folder, name="mine"))
    script = tmp_path / "run.sh"
    script.write_text(f"{start}python3 /n/clone/my/main_dapo.py {given} actor_rollout_ref.rollout.n=2\n")
    (launch,) = read_script(script, cwd=root).launches
    assert effective_config(launch).get("data.train_batch_size") == size


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package on top of an installed veRL: its mains name its configuration by ``pkg://``, and a config
    group of it leads to veRL's own."""
    files = {
        "agent/config/base.yaml": "defaults: [agent: common, agent/engine: verl, _self_]\n"
        "hydra:\n  searchpath: ['pkg://verl.trainer.config', 'pkg://agent.more']\n",
        "agent/config/agent/common.yaml": "steps: 20\n",
        "agent/config/agent/engine/verl.yaml": "# @package _global_\n"
        "defaults: [/ppo_trainer, /extra, _self_]\ndata: {train_batch_size: 48}\n",
        "agent/config/agent/engine/other.yaml": "# @package _global_\nlearner: {rate: 1}\n",
        "agent/more/extra.yaml": "retries: 3\n",
        "recipes/math/train.py": MAIN.format(folder="pkg://agent.config", name="base"),
        "recipes/math/run.sh": "python3 train.py\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    return tmp_path


def started_in_package(package: Path, *arguments: str) -> Launch:
    folder = package / "recipes" / "math"
    given = ("actor_rollout_ref.rollout.n=2", *arguments)
    launch = make_launch(*given, file=str(folder / "run.sh"), cwd=str(folder), module="train")
    return replace(launch, main="verl.trainer.main_ppo")


def test_a_main_that_names_the_folder_of_a_package_is_composed_from_it(package: Path) -> None:
    config = effective_config(started_in_package(package, "agent.steps=30", "retries=4"))
    assert not config.diagnostics and config.version.value == "0.9.1"
    assert config.set_keys == ("actor_rollout_ref.rollout.n", "agent.steps", "retries")
    assert config.get("data.train_batch_size") == 48
    assert config.fork and set(config.fork.keys) == {"agent.steps", "retries"}
    assert config.fork.keys["agent.steps"].where.file == "agent/config/agent/common.yaml"


def test_the_release_below_a_package_s_group_is_inferred_from_the_keys(package: Path) -> None:
    config = effective_config(
        started_in_package(package, "actor_rollout_ref.actor.checkpoint.contents=[model]")
    )
    assert not config.diagnostics and config.get("agent.steps") == 20
    assert config.version.value == "0.3.0"


def test_a_config_group_of_a_package_is_chosen(package: Path) -> None:
    config = effective_config(started_in_package(package, "agent/engine=verl"))
    assert not config.diagnostics and config.get("data.train_batch_size") == 48


def test_a_package_s_folder_outside_of_what_may_be_read_is_not(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (package / "agent").rename(outside / "agent")
    (package / "agent").symlink_to(outside / "agent")
    config = effective_config(started_in_package(package))
    assert config.fork is None and config.get("agent.steps") is None


def test_a_package_s_own_copy_of_the_tree_is_taken(fork: Path) -> None:
    (fork / "mine" / "trainer").mkdir(parents=True)
    (fork / "mine" / "trainer" / "main_ppo.py").write_text(MAIN.format(folder="config", name="ppo_trainer"))
    (fork / "verl" / "trainer" / "config").rename(fork / "mine" / "trainer" / "config")
    config = effective_config(launch_in(fork, f"{PENALTY}=1", module="mine.trainer.main_ppo"))
    assert not config.diagnostics and config.fork.folder == "mine/trainer/config"


@pytest.mark.parametrize(
    "text", ["def main(:", "import os", MAIN.replace("{folder!r}", "x()").replace("{name!r}", "'y'")]
)
def test_a_main_that_names_nothing_readable_keeps_veRL_s_own(fork: Path, text: str) -> None:
    (fork / "verl" / "trainer" / "main_ppo.py").write_text(text)
    assert effective_config(launch_in(fork)).get(PENALTY) is False


def test_a_recipe_of_the_tree_is_composed_over_the_tree(fork: Path) -> None:
    (fork / "recipe" / "dapo").mkdir(parents=True, exist_ok=True)
    (fork / "recipe" / "dapo" / "main_dapo.py").write_text(MAIN.format(folder="config", name="dapo_trainer"))
    (fork / "recipe" / "dapo" / "config").mkdir(exist_ok=True)
    (fork / "recipe" / "dapo" / "config" / "dapo_trainer.yaml").write_text(
        "hydra:\n  searchpath: ['file://verl/trainer/config']\n"
        "defaults: [ppo_trainer, _self_]\nreward_model: {overlong_buffer: {len: 77}}\n"
    )
    config = effective_config(launch_in(fork, module=DAPO))
    assert config.get("reward_model.overlong_buffer.len") == 77 and config.get(PENALTY) is False


def test_a_config_group_of_the_tree_is_chosen_from_the_tree(fork: Path) -> None:
    folder = fork / "verl" / "trainer" / "config"
    (folder / "agent").mkdir()
    (folder / "agent" / "short.yaml").write_text("turns: 2\n")
    (folder / "agent" / "long.yaml").write_text("turns: 9\ndeep: 1\n")
    edit(folder / "ppo_trainer.yaml", "data:\n", "defaults: [{agent@env.agent: short.yaml}, _self_]\ndata:\n")
    assert effective_config(launch_in(fork)).get("env.agent.turns") == 2
    chosen = effective_config(launch_in(fork, "agent@env.agent=long"))
    assert chosen.get("env.agent.turns") == 9
    assert chosen.fork.keys["env.agent.deep"].where.file == "verl/trainer/config/agent/long.yaml"


def test_what_a_fork_lacks_of_its_nearest_release_is_done_as_before_it(tmp_path: Path) -> None:
    """Until 0.3 clip_ratio was both bounds; without their keys, and otherwise like 0.4.1, it still is."""
    root = write_repository("0.4.1", tmp_path)
    file = root / "verl/trainer/config/ppo_trainer.yaml"
    edit(file, "    clip_ratio_low: 0.2\n    clip_ratio_high: 0.2\n", "")
    config = effective_config(launch_in(root, "actor_rollout_ref.actor.clip_ratio=0.3"))
    assert config.version.value == "0.4.1"
    forward = upgrade(config).config
    assert [forward.get(f"actor_rollout_ref.actor.clip_ratio_{end}") for end in ("low", "high")] == [0.3, 0.3]


ACTOR = "actor_rollout_ref.actor"
CLASSES = """\
from dataclasses import dataclass
raise RuntimeError("read, never run")

@dataclass
class ActorConfig:
    ppo_epochs: int = 1
    slip_cost: float = 0.0

@dataclass
class FSDPActorConfig(ActorConfig):
    strategy: str = "fsdp"
"""


def test_a_dataclass_field_of_a_fork_is_its_key_without_a_yaml(tmp_path: Path) -> None:
    root = write_repository("0.6.1", tmp_path)
    edit(root / "verl/trainer/config/actor/actor.yaml", "clip_ratio: 0.2", "clip_ratio: 0.3")
    (root / "verl" / "workers" / "config").mkdir(parents=True)
    (root / "verl" / "workers" / "config" / "actor.py").write_text(CLASSES)
    config = effective_config(launch_in(root, f"+{ACTOR}.slip_cost=1", f"+{ACTOR}.slip_cosst=1"))
    assert str(config.fork.keys[f"{ACTOR}.slip_cost"].where) == "verl/workers/config/actor.py:7"
    assert config.unknown == (f"{ACTOR}.slip_cosst",)
    assert [note.code for note in config.diagnostics] == ["TP214"]


@pytest.mark.parametrize("fields", ["tau_pos: float = 1.0", "other: float = 1.0"])
def test_a_key_below_its_section_in_veRL_may_be_a_field_of_the_fork_s(tmp_path: Path, fields: str) -> None:
    root = write_repository("0.9.1", tmp_path)
    folder = root / "verl" / "workers" / "config"
    folder.mkdir(parents=True)
    (folder / "actor.py").write_text(f"@dataclass\nclass PolicyLossConfig:\n    {fields}\n")
    config = effective_config(launch_in(root, f"+{ACTOR}.policy_loss.tau_pos=1"))
    codes = [] if fields.startswith("tau_pos") else ["TP215"]
    assert [note.code for note in config.diagnostics] == codes


def test_the_old_name_of_a_reward_manager_s_argument_is_none_of_the_fork_s_own(tmp_path: Path) -> None:
    root = write_repository("0.9.1", tmp_path)
    edit(root / "verl/trainer/config/ppo_trainer.yaml", "balance_batch:", "mine: 1\n  balance_batch:")
    (root / "verl" / "manager.py").write_text("cut = config.reward_model.reward_kwargs.cut\n")
    key = "reward_model.reward_kwargs.cut"
    config = effective_config(launch_in(root, f"+{key}=3"))
    assert list(config.fork.keys) == ["trainer.mine"] and not config.unknown and not config.diagnostics
    assert upgrade(config).config.get("reward.reward_kwargs.cut") == 3


# --config-path and YAML that name such a folder (review K 1.1)


@pytest.mark.parametrize(
    ("key", "pinned", "written", "value"),
    [
        ("trainer.balance_batch", "  balance_batch: true\n", "  balance_batch: 1\n", 1),
        ("algorithm.gamma", "  gamma: 1.0\n", "  gamma: 1\n", 1),
        ("algorithm.gamma", "  gamma: 1.0\n", "  gamma: true\n", True),
    ],
)
def test_a_default_of_the_fork_keeps_its_type_where_it_equals_the_pinned_one(
    tmp_path: Path, key: str, pinned: str, written: str, value: object
) -> None:
    root = write_repository("0.3.0", tmp_path / "fork")
    edit(root / "verl/trainer/config/ppo_trainer.yaml", pinned, written)
    found = upgrade(effective_config(launch_in(root))).config.get(key)
    assert (found, type(found)) == (value, type(value))


def test_a_named_folder_is_read_though_it_is_called_as_verl_s(fork: Path) -> None:
    words = (f"--config-path={fork}/verl/trainer/config", "data.train_batch_size=8")
    config = effective_config(make_launch(*words, cwd=str(fork.parent)), root=fork.parent)
    assert config.get("actor_rollout_ref.actor.entropy_coeff") == 0.01 and config.set_keys == (
        "data.train_batch_size",
    )
    assert config.fork.folder == "fork/verl/trainer/config"
    relative = make_launch("--config-path=verl/trainer/config", cwd=str(fork))
    assert effective_config(relative, root=fork, fork_config=False).get(PENALTY) is False


def test_a_config_that_stands_beside_verl_s_counts_as_set_by_its_lines(fork: Path) -> None:
    file = fork / "verl" / "trainer" / "config" / "grpo_trainer.yaml"
    file.write_text("defaults: [ppo_trainer, _self_]\nactor_rollout_ref:\n  rollout:\n    n: 13\n")
    launch = make_launch(
        "--config-path=config", "--config-name=grpo_trainer", file=str(fork / "run.sh"), cwd=str(fork)
    )
    for config in (config_from_yaml(file), effective_config(launch)):
        assert config.set_keys == ("actor_rollout_ref.rollout.n",) and not config.unknown
        assert config.settings["actor_rollout_ref.rollout.n"].where.line == 4
        assert config.get("actor_rollout_ref.actor.entropy_coeff") == 0.01


def test_a_folder_of_that_name_without_verl_s_files_lies_over_verl_s(tmp_path: Path) -> None:
    folder = tmp_path / "x" / "verl" / "trainer" / "config"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "hydra:\n  searchpath: ['pkg://verl.trainer.config']\n"
        "defaults: [ppo_trainer, _self_]\ndata: {seed: 3}\n"
    )
    config = config_from_yaml(folder / "mine.yaml", "0.6.1")
    assert config.set_keys == ("data.seed",) and not config.diagnostics and config.fork is None


def test_a_folder_that_isn_t_there_is_the_release_s(tmp_path: Path) -> None:
    launch = make_launch("--config-path=/opt/verl/verl/trainer/config", cwd=str(tmp_path))
    assert effective_config(launch, root=tmp_path, version="0.5.0").get("data.max_prompt_length") == 512


def test_broken_yaml_in_the_tree_is_an_error_with_its_line(fork: Path) -> None:
    edit(fork / "verl/trainer/config/ppo_trainer.yaml", "data:\n", "data: [\n")
    with pytest.raises(UserError, match=r"^verl/trainer/config/ppo_trainer\.yaml:\d+: not a YAML file"):
        effective_config(launch_in(fork))
