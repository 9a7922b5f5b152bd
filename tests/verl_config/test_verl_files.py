"""Config files: those of the user's own, dumps, and what may be read."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run

import pytest
import yaml
from verl_samples import PPO, make_launch, real_hydra, write_repository

from trinity_compat.common.errors import UserError, Where
from trinity_compat.verl_config import FLAVOURS, VERSIONS, as_tree, config_from_yaml, effective_config
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS

OWN = """\
hydra:
  searchpath:
    - pkg://verl.trainer.config
defaults:
  - ppo_trainer
  - _self_

data:
  train_batch_size: 32
algorithm:
  adv_estimator: grpo
my:
  own: 1e-3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(OWN)
    return path


def test_a_config_of_one_s_own_counts_as_set_by_its_lines(own: Path) -> None:
    config = config_from_yaml(own, "0.6.1")
    assert {key: config.settings[key].where.line for key in config.set_keys} == {
        "data.train_batch_size": 9,
        "algorithm.adv_estimator": 11,
        "my.own": 13,
    }
    assert config.get("my.own") == 0.001 and config.get("data.max_prompt_length") == 512


@pytest.mark.parametrize(
    ("folder", "entry", "noted"),
    [
        ("sub", "file://verl/trainer/config", True),
        ("sub", "pkg://verl.trainer.config", False),
        ("sub/repo", "file://verl/trainer/config", False),
        ("", "file://verl/trainer/config", False),
    ],
)
def test_a_search_path_that_leads_nowhere_from_where_the_launch_starts_is_told(
    own: Path, tmp_path: Path, folder: str, entry: str, noted: bool
) -> None:
    own.write_text(OWN.replace("pkg://verl.trainer.config", entry))
    (tmp_path / "sub" / "repo" / "verl" / "trainer" / "config").mkdir(parents=True)
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine", cwd=str(tmp_path / folder))
    found = effective_config(launch, root=tmp_path).diagnostics
    assert [note.code for note in found] == ["TP213"] * noted
    assert all("where the launch starts, so that Hydra finds none" in note.message for note in found)


def test_a_launch_reads_it_by_config_path(own: Path, tmp_path: Path) -> None:
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine", "data.train_batch_size=8")
    config = effective_config(launch, root=tmp_path)
    assert not config.diagnostics
    assert (config.get("data.train_batch_size"), config.get("algorithm.adv_estimator")) == (8, "grpo")
    assert config.set_keys == ("algorithm.adv_estimator", "my.own", "data.train_batch_size")
    assert config.unknown == ()


def test_a_file_that_its_folder_lacks_is_told_where_to_put(own: Path, tmp_path: Path) -> None:
    launch = make_launch(f"--config-path={own.parent}", "--config-name=written_later")
    with pytest.raises(UserError) as refused:
        effective_config(launch, root=tmp_path)
    assert f"put written_later.yaml into {own.parent}" in (refused.value.hint or "")


def test_nothing_outside_the_root_is_read(own: Path, tmp_path: Path) -> None:
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(own.parent)
    for spelled in (str(own.parent), str(tmp_path / "root" / "link"), "../conf", "link"):
        launch = make_launch(f"--config-path={spelled}", "--config-name=mine")
        with pytest.raises(UserError):
            effective_config(launch, root=tmp_path / "root")


@pytest.mark.parametrize("spelled", ["/home/ann/clone/conf", "/users//clone/conf", "/conf", "/a/../b/conf/"])
def test_the_folder_of_another_copy_is_the_one_of_this(own: Path, tmp_path: Path, spelled: str) -> None:
    launch = make_launch(f"--config-path={spelled}", "--config-name=mine")
    config = effective_config(launch, root=tmp_path)
    assert config.get("my.own") == 0.001
    (note,) = config.diagnostics
    assert (note.code, note.severity) == ("TP213", "warning")
    assert "its conf is taken, which has mine.yaml" in note.message
    written = replace(launch, wrote={str(own): "my:\n  own: 0.5\n"})  # by the script, before its launch
    assert effective_config(written, root=tmp_path).get("my.own") == 0.5


@pytest.mark.parametrize("name", ["other", "../conf/mine2"])
def test_a_folder_of_that_end_without_the_config_is_not_it(own: Path, tmp_path: Path, name: str) -> None:
    launch = make_launch("--config-path=/home/ann/clone/conf", f"--config-name={name}")
    with pytest.raises(UserError, match="there is no such folder below"):
        effective_config(launch, root=tmp_path)


def test_a_relative_config_path_is_told_to_be_the_main_s(own: Path, tmp_path: Path) -> None:
    launch = make_launch("--config-path=conf", "--config-name=mine")
    notes = effective_config(launch, root=tmp_path).diagnostics
    assert [(note.code, note.severity) for note in notes] == [("TP208", "error")]


def test_a_config_that_doesn_t_say_where_verl_s_configs_are(own: Path) -> None:
    own.write_text(OWN.partition("defaults:")[1] + OWN.partition("defaults:")[2])
    notes = config_from_yaml(own, "0.6.1").diagnostics
    assert [note.code for note in notes] == ["TP208"] and "hydra.searchpath" in notes[0].message


def test_an_own_config_composes_as_hydra_composes_it(own: Path, tmp_path: Path) -> None:
    root = write_repository("0.9.1", tmp_path / "verl")
    own.write_text(OWN.replace("pkg://verl.trainer.config", f"file://{root}/verl/trainer/config"))
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine", "+extra=${my.own}")
    config = effective_config(launch, root=tmp_path, version="0.9.1")
    assert as_tree(config) == real_hydra(root, launch)


def test_a_config_group_can_be_a_list(own: Path, tmp_path: Path) -> None:
    """Hydra merges a file that holds a list as the group's whole value."""
    root = write_repository("0.9.1", tmp_path / "verl")
    (own.parent / "tasks").mkdir()
    (own.parent / "tasks" / "two.yaml").write_text("- {name: a, size: '${data.train_batch_size}'}\n- b\n")
    text = OWN.replace("pkg://verl.trainer.config", f"file://{root}/verl/trainer/config")
    own.write_text(text.replace("  - _self_\n", "  - tasks: two\n  - _self_\n"))
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine")
    config = effective_config(launch, root=tmp_path, version="0.9.1")
    assert as_tree(config) == real_hydra(root, launch)
    assert as_tree(config)["tasks"] == [{"name": "a", "size": 32}, "b"]
    assert config.settings["tasks"].where == Where(str(own.parent / "tasks" / "two.yaml"), 1)


def test_a_list_at_the_top_is_refused_as_hydra_refuses_it(own: Path, tmp_path: Path) -> None:
    (own.parent / "two.yaml").write_text("- 1\n")
    own.write_text(OWN.replace("  - _self_\n", "  - two\n  - _self_\n"))
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine")
    with pytest.raises(UserError, match="must be a mapping of keys, not a list") as refused:
        effective_config(launch, root=tmp_path, version="0.9.1")
    assert refused.value.where == Where(str(own.parent / "two.yaml"))


def test_a_choice_that_names_a_group_without_a_choice_is_refused(own: Path, tmp_path: Path) -> None:
    own.write_text(OWN.replace("  - _self_\n", "  - tasks: ${size}_tasks\n  - _self_\n"))
    launch = make_launch(f"--config-path={own.parent}", "--config-name=mine")
    with pytest.raises(UserError, match="the defaults list refers to 'size', which no config group sets"):
        effective_config(launch, root=tmp_path, version="0.9.1")


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_dump_is_read_back_as_the_launch_that_made_it(version: str, flavour: str, tmp_path: Path) -> None:
    launch = make_launch(f"--config-name={flavour}", "data.max_prompt_length=333", "trainer.nnodes=2")
    config = effective_config(launch, version=version)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(as_tree(config)))
    back = config_from_yaml(tmp_path / "config.yaml")
    assert (back.version.value, back.flavour) == (version, flavour)
    assert as_tree(back) == as_tree(config)
    assert set(back.set_keys) == {"data.max_prompt_length", "trainer.nnodes"} and not back.unknown


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("flavour", "engine"), ENGINE_FLAVOURS.items())
def test_a_dump_of_another_engine_has_the_keys_of_that_engine(engine, flavour, named, tmp_path) -> None:
    size = f"actor_rollout_ref.actor.{engine}.expert_parallel_size"
    config = effective_config(make_launch(f"model_engine={engine}", f"{size}=2"), version="0.9.1")
    dump = as_tree(config)
    assert dump["model_engine"] == engine
    if not named:
        del dump["model_engine"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(dump))
    back = config_from_yaml(tmp_path / "config.yaml")
    assert (back.version.value, back.flavour) == ("0.9.1", flavour)
    assert as_tree(back) == as_tree(config)
    assert back.set_keys == (size,) and not back.unknown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not a YAML file"),
        ("- 1", "a list, not the configuration of a training"),
        ("text", "mapping"),
        ("a: 1\na: 2", "duplicate key"),
        ("model:\n  x: 1", "not a configuration of veRL's PPO training"),
        ("!!python/object/apply:os.system ['true']", "not a YAML file"),
        ("defaults: ppo_trainer", "'defaults' holds a list"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        config_from_yaml(path)
    assert message in str(refused.value) and str(path) in str(refused.value)


def test_a_configuration_of_easyr1_is_refused_by_its_name(tmp_path: Path) -> None:
    """It has three sections of veRL's name, and another meaning in them."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "data: {rollout_batch_size: 512}\nalgorithm: {adv_estimator: grpo}\n"
        "worker:\n  actor: {global_batch_size: 128}\n  rollout: {n: 5}\ntrainer: {total_epochs: 15}\n"
    )
    with pytest.raises(UserError, match=r"config\.yaml:3: .*EasyR1"):
        config_from_yaml(path)


def test_a_file_of_aliases_to_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["data: {train_batch_size: 8}", "a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    (tmp_path / "loop.yaml").write_text("\ndata: &data {train_batch_size: 8, again: *data}")
    wide = [f"a0: &a0 [{'0, ' * 100}]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 100}]" for i in (1, 2))]
    (tmp_path / "wide.yaml").write_text("\n".join(wide))
    for name, line in (("bomb", 7), ("loop", 2), ("wide", 3)):
        with pytest.raises(UserError, match=f"{name}.yaml:{line}: .*more than 100000 values"):
            config_from_yaml(tmp_path / f"{name}.yaml")


def test_aliases_of_a_configuration_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("data: {train_batch_size: &n 8, val_batch_size: *n}\na: &a [*n]\nb: [*a, *a, *n]\n")
    assert config_from_yaml(path, "0.6.1").get("b") == [[8], [8], 8]


@pytest.mark.parametrize("value", ["3", "null", "[]", "text"])
@pytest.mark.parametrize("top", ["", "defaults: [ppo_trainer, _self_]"])
@pytest.mark.parametrize("key", ["data", "trainer", "actor_rollout_ref", "critic"])
def test_a_value_in_a_section_s_place_is_refused_with_its_line(key, top, value, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"algorithm: {{adv_estimator: grpo}}\n{key}: {value}\n{top}\n")
    with pytest.raises(UserError, match=r"x\.yaml:2: .*should be a mapping") as error:
        config_from_yaml(path)
    assert f"{key}: {value} where" in str(error.value)


def test_an_inner_section_may_be_null_or_follow_another(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("critic: {optim: '${actor_rollout_ref.actor.optim}', profiler: null}\ndata: {}\n")
    assert config_from_yaml(path, "0.6.1").get("critic.profiler", 1) is None


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError):
        config_from_yaml("/no/such/file.yaml")


def test_a_plain_launch_needs_neither_hydra_nor_yaml() -> None:
    """Importing them costs more than reading the launch."""
    code = (
        "import sys; from trinity_compat.verl_config import *\n"
        "from trinity_compat.common.errors import Where\n"
        "from trinity_compat.launch.model import *\n"
        f"words = tuple(Word((WordPart(t),), Where('x', 1)) for t in {ARGUMENTS!r})\n"
        f"upgrade(effective_config(Launch({PPO!r}, words, Where('x', 1))))\n"
        "print([name for name in ('hydra', 'omegaconf', 'yaml', 'antlr4') if name in sys.modules])"
    )
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


ARGUMENTS = [
    "data.train_files=['/d/a.parquet','/d/b.parquet']",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "+actor_rollout_ref.model.override_config={attn_implementation:sdpa}",
    "trainer.default_local_dir=ckpts/${trainer.project_name}",
    "trainer.logger=[console,wandb]",
    "data.val_files=/data/x y.parquet",
]


@pytest.mark.parametrize(
    ("text", "version", "why"),
    [
        ("actor_rollout_ref: {rollout: {n: 5}}", "0.9.1", "keys of 0.2.0, "),
        (
            "data: {train_batch_size: 8}\nreward: {num_workers: 2}",
            "0.9.1",
            "of 0.8.0, 0.9.0, 0.9.1; the",
        ),
        ("critic: {model: {fsdp_config: {param_offload: true}}}\ntrainer: {nnodes: 1}", "0.7.0", "is taken"),
    ],
)
def test_some_keys_alone_are_of_the_newest_release_that_has_them(tmp_path, text, version, why):
    (tmp_path / "own.yaml").write_text(text)
    choice = config_from_yaml(tmp_path / "own.yaml").version
    assert (choice.value, choice.candidates[-1]) == (version, version)
    assert why in choice.why


SEARCHED = """\
defaults: [ppo_trainer, _self_]
data: {train_batch_size: 32}
"""


@pytest.fixture
def two_folders(tmp_path: Path) -> Path:
    """veRL's repository, the user's config in ``conf``, and a config group in ``more``."""
    root = write_repository("0.6.1", tmp_path)
    trial = "# @package _global_\ndata: {max_prompt_length: 7}\n"
    for name, text in (("conf/mine.yaml", SEARCHED), ("more/trial/long.yaml", trial)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "given",
    [
        "hydra.searchpath=[file://verl/trainer/config,file://more]",
        "hydra.searchpath=[file://{root}/more,pkg://verl.trainer.config]",
        "hydra.searchpath=['file://more',file://verl/trainer/config]",
    ],
)
def test_a_search_path_on_the_command_line_is_used_as_hydra_does(two_folders: Path, given: str) -> None:
    words = (f"--config-path={two_folders}/conf", "--config-name=mine", given.format(root=two_folders))
    launch = make_launch(*words, "+trial=long", "trainer.nnodes=2")
    config = effective_config(launch, version="0.6.1", root=two_folders)
    assert [note.code for note in config.diagnostics] == []
    assert (config.get("data.train_batch_size"), config.get("data.max_prompt_length")) == (32, 7)
    if "pkg" not in given:  # veRL is installed here in another release
        assert as_tree(config) == real_hydra(two_folders, launch)


def test_a_search_path_on_the_command_line_replaces_the_config_s(two_folders: Path) -> None:
    file = two_folders / "conf" / "mine.yaml"
    file.write_text("hydra:\n  searchpath: [file://more]\n" + SEARCHED)
    words = [f"--config-path={two_folders}/conf", "--config-name=mine", "+trial=long"]
    launch = make_launch(*words, "hydra.searchpath=[file://verl/trainer/config]")
    config = effective_config(launch, version="0.6.1", root=two_folders)
    assert config.get("trial") == "long"  # a key, where no folder has that group
    assert as_tree(config) == real_hydra(two_folders, launch)


def test_the_primary_config_is_not_sought_in_the_command_line_s_search_path(two_folders: Path) -> None:
    words = ("--config-name=mine", "hydra.searchpath=[file://conf]")
    with pytest.raises(UserError, match="mine"):
        effective_config(make_launch(*words), version="0.6.1", root=two_folders)
    with pytest.raises(Exception, match="mine"):
        real_hydra(two_folders, make_launch(*words))


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (
            "hydra.searchpath=[file:///elsewhere/conf]",
            "TP213",
            "file:///elsewhere/conf is not a folder below",
        ),
        ("hydra.searchpath=file://more", "TP208", "Hydra demands a list of texts"),
        ("++hydra.searchpath=[file://more]", "TP210", "is Hydra's own setting"),
    ],
)
def test_a_search_path_that_is_not_used_is_said(two_folders: Path, given: str, code: str, said: str) -> None:
    (note,) = effective_config(make_launch(given), version="0.6.1", root=two_folders).diagnostics
    assert note.code == code and said in note.message and note.where.line
