"""Variables whose values a translated YAML holds: it names them, and what reads it says when one is set."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.nested import value_at
from trinity_compat.launch import read_text
from trinity_compat.run import dry_run
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.translate import translate_launch
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.verl_from_trinity import compat_of, to_verl

SCRIPT = """
N=${{N:-4}}
B=$((N * 16))
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=$B \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.project_name=p \\
  trainer.experiment_name=${{NAME:-e}} actor_rollout_ref.actor.optim.lr=${{LR:-2e-6}} {words}
"""


def run(*words, **env):
    return CliRunner().invoke(cli, words, env=env)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(SCRIPT.format(words=""))


@pytest.fixture
def written():
    assert run("translate", "run.sh", "-q", "-o", "x.yaml").exit_code == 0
    return Path("x.yaml")


def test_the_yaml_names_what_it_has_frozen(written):
    config = from_yaml(written).config
    assert compat_of(config)["frozen"] == {"LR": "2e-6", "N": None}  # NAME is there by its name
    assert "# Set later, without effect here: LR=2e-6, N\n" in written.read_text()


@pytest.mark.parametrize(
    "name, value, said",
    [("LR", "5e-7", True), ("LR", "2e-6", False), ("N", "8", True), ("NAME", "other", False)],
)
def test_a_run_of_the_yaml_says_what_has_no_effect(written, monkeypatch, capsys, name, value, said):
    monkeypatch.setenv(name, value)
    next(dry_run.sources("x.yaml", (), RunOptions(dry_run=True)))  # of dry run, advise and debug
    assert (f"x.yaml: warning TP123 {name} is set in this shell" in capsys.readouterr().err) == said


def test_diff_says_it_of_both_sides(written):
    result = run("diff", "run.sh", "x.yaml", LR="5e-7")
    assert result.exit_code == 0
    found = [line for line in result.stderr.splitlines() if "TP123 LR" in line]
    assert [line.partition(":")[0] for line in found] == ["run.sh", "x.yaml"]


def test_a_yaml_without_variables_names_none():
    assert run("translate", "run.sh", "-q", "--resolve", "-o", "x.yaml").exit_code == 0
    assert "frozen" not in compat_of(from_yaml(Path("x.yaml")).config)


@pytest.mark.parametrize(
    "word, key, value",
    [
        ('"[${TM:-q_proj,v_proj}]"', "actor_rollout_ref.model.target_modules", ["q_proj", "v_proj"]),
        ('"[${VF:-/a,/b},/c]"', "data.val_files", ["/a", "/b", "/c"]),
        ('"[${VF:-/a},/c]"', "data.val_files", ["${oc.env:VF,/a}", "/c"]),
    ],
)
def test_a_list_with_a_variable_keeps_its_elements(word, key, value):
    text = SCRIPT.format(words=f"actor_rollout_ref.model.lora_rank=16 {key}={word}")
    made, _ = translate_launch(read_text(text).launches[0], TranslateOptions())
    assert to_verl(made.config)[key] == value
    Path("run.sh").write_text(text)
    assert run("translate", "run.sh", "-q", "-o", "x.yaml").exit_code == 0
    assert run("to-verl", "x.yaml").exit_code == 0


def test_a_yaml_for_the_old_release_names_them_too():
    made, _ = translate_launch(
        read_text(SCRIPT.format(words="")).launches[0], TranslateOptions(target="0.4.1")
    )
    assert value_at(made.config, f"{made.facts['compat']}.frozen") == {"LR": "2e-6"}
