"""Records of a run are launches for every command: printed configurations, W&B's, and those of Hydra."""

from __future__ import annotations

import pprint
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from verl_samples import make_launch

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
from trinity_compat.compare.effective_settings import read_in_effect
from trinity_compat.launch import read_script
from trinity_compat.rewrite.record import is_record, upgrade_record
from trinity_compat.rewrite.script import UpgradeOptions
from trinity_compat.verl_config import VERSIONS, as_tree, config_from_yaml, effective_config

WORDS = (
    "data.train_files=['/d/a b.parquet','/d/c.parquet']",
    "data.train_batch_size=128",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.rollout.n=5",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.model.path='it\\'s/a model'",
    "+trainer.of_nobody=1.5",
)


def printed(tree: dict[str, object], before: str) -> str:
    lines = pprint.pformat(tree).splitlines()
    return "".join(f"{before}{line}\n" for line in ("hostname: x", *lines, "step:1 - actor/lr:0.1"))


def wandbs(tree: dict[str, object]) -> str:
    own = {key: {"desc": None, "value": value} for key, value in tree.items()}
    return yaml.safe_dump(
        {"wandb_version": 1, "_wandb": {"desc": None, "value": {"cli_version": "0.16"}}, **own}
    )


def record(kind: str, folder: Path, version: str = "0.9.1", words: tuple[str, ...] = WORDS) -> Path:
    tree = as_tree(effective_config(make_launch(*words), version=version))
    overrides = [word for word in words if "train_files" not in word]
    name, text = {
        "printed": ("run.log", printed(tree, "")),
        "under Ray": ("run.log", printed(tree, "\x1b[36m(TaskRunner pid=7)\x1b[0m ")),
        "wandb": ("config.yaml", wandbs(tree)),
        "overrides": ("overrides.yaml", yaml.safe_dump(overrides)),
        "error": ("run.log", f"Error executing job with overrides: {overrides!r}\n"),
    }[kind]
    (folder / name).write_text(text)
    return folder / name


CONFIGURATIONS = ("printed", "under Ray", "wandb")
ALL = (*CONFIGURATIONS, "overrides", "error")


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@pytest.mark.parametrize("version", [VERSIONS[0], "0.7.0", "0.9.1"])
def test_a_recorded_configuration_is_read_with_the_line_of_each_key(kind, version, tmp_path):
    path = record(kind, tmp_path, version)
    found = config_from_yaml(path)
    assert (found.version.value, as_tree(found)) == (
        version,
        as_tree(effective_config(make_launch(*WORDS), version=version)),
    )
    named = {word.partition("=")[0].lstrip("+") for word in WORDS}
    assert (
        named - {"actor_rollout_ref.rollout.name"} <= set(found.set_keys) <= named
    )  # 0.2.0's default is vllm
    assert found.unknown == ("trainer.of_nobody",)
    lines = path.read_text().splitlines()
    for key in found.set_keys:
        assert key.rpartition(".")[2] in lines[found.settings[key].where.line - 1]


@pytest.mark.parametrize("kind", ALL)
def test_every_command_reads_a_record(kind, tmp_path):
    path = record(kind, tmp_path)
    assert is_record(str(path))
    side = read_in_effect(str(path))
    assert side.config.get("data.train_batch_size") == 128
    shown = {
        "translate": "data.train_batch_size=128",
        "audit": "trainer.of_nobody=1.5",
        "sizes": "data.train_batch_size=128",
    }
    for command, words in shown.items():
        result = CliRunner().invoke(cli, [command, str(path)])
        assert words in result.output, (command, result.output)


@pytest.mark.parametrize("kind", ALL)
def test_upgrade_prints_the_command_of_a_record(kind, tmp_path):
    path = record(kind, tmp_path)
    result = CliRunner().invoke(cli, ["upgrade", "-q", str(path)])
    assert result.exit_code == 0, result.output
    (tmp_path / "again.sh").write_text(result.stdout)
    (launch,) = read_script(tmp_path / "again.sh").launches
    words = WORDS if kind in CONFIGURATIONS else WORDS[1:]
    expected = as_tree(effective_config(make_launch(*words), version="0.9.1"))
    assert as_tree(effective_config(launch, version="0.9.1")) == expected


def test_the_command_of_an_old_record_has_the_new_spelling(tmp_path):
    words = ("actor_rollout_ref.actor.ppo_micro_batch_size=8", "actor_rollout_ref.rollout.name=vllm")
    for kind in ("printed", "error"):
        path = record(kind, tmp_path, "0.3.0", words)
        text = upgrade_record(str(path), UpgradeOptions(version="0.3.0")).after.decode()
        assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1" in text


@pytest.mark.parametrize("kind", ALL)
def test_a_record_is_neither_rewritten_nor_run(kind, tmp_path):
    path = record(kind, tmp_path)
    before = path.read_bytes()
    planned = (["run", "--dry-run"], ["advise"], ["to-verl"], ["debug", "--module", "workflow"])
    for words in (["upgrade", "--write"], *planned):
        result = CliRunner().invoke(cli, [*words, str(path)])
        assert isinstance(result.exception, UserError)
        assert "is the record of a run" in str(result.exception)
    assert path.read_bytes() == before


def test_a_log_in_the_place_of_a_script_is_named(tmp_path):
    text = record("under Ray", tmp_path).read_text()
    for result in (
        CliRunner().invoke(cli, ["parse", str(tmp_path / "run.log")]),
        CliRunner().invoke(cli, ["translate", "-"], input=text),
    ):
        assert isinstance(result.exception, UserError)
        assert "a log with the configuration that veRL printed" in str(result.exception)


def test_a_yaml_of_trinitys_is_judged_as_one(tmp_path):
    (tmp_path / "x.yaml").write_text("mode: both\nmode: both\nbuffer: {}\nexplorer: {}\n")
    result = CliRunner().invoke(cli, ["run", "--dry-run", str(tmp_path / "x.yaml")])
    assert "the key 'mode' appears twice in one section" in str(result.exception)


def test_the_beginning_of_a_long_log_is_enough(tmp_path):
    path = record("printed", tmp_path)
    with path.open("a") as log:
        log.writelines(f"step:{step} - actor/lr:0.1\n" for step in range(60_000))
    assert path.stat().st_size > 1 << 20
    assert config_from_yaml(path).get("data.train_batch_size") == 128


def test_a_configuration_of_ones_own_may_have_keys_called_value(tmp_path):
    (tmp_path / "own.yaml").write_text("data: {value: {train_batch_size: 128}}\n")
    assert config_from_yaml(tmp_path / "own.yaml").unknown == ("data.value.train_batch_size",)
    assert not is_record(str(tmp_path / "own.yaml"))
