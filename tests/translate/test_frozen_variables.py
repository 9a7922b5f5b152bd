"""Variables whose values a translated YAML holds: it names them, and what reads it says when one is set."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common.errors import UserError
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
    assert "# Replaced by their values, no effect if set later: LR=2e-6, N\n" in written.read_text()


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


HYDRA_FILE = """
hydra: {searchpath: ['file://verl/trainer/config']}
defaults: [ppo_trainer, _self_]
trainer: {project_name: "${oc.env:PROJECT,'a b'}"}
actor_rollout_ref:
  actor: {optim: {lr: "${oc.decode:${oc.env:LR,2e-6}}"}}
"""


@pytest.fixture
def hydra_script():
    """A script whose values come from a Hydra file that reads the environment."""
    Path("conf").mkdir()
    Path("conf/mine.yaml").write_text(HYDRA_FILE)
    words = SCRIPT.format(words="actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1")
    script = words.replace("main_ppo", 'main_ppo --config-path="$PWD/conf" --config-name=mine')
    Path("run.sh").write_text(re.sub(r"(trainer.project_name|\S+optim.lr)=\S+", "", script))
    return Path("run.sh")


@pytest.fixture(params=["run.sh", "conf/mine.yaml"])
def hydra(request, hydra_script):
    return request.param


def test_what_a_hydra_file_reads_is_frozen_and_named(hydra, monkeypatch, capsys):
    assert run("translate", hydra, "-q", "-o", "x.yaml").exit_code == 0
    frozen = compat_of(from_yaml(Path("x.yaml")).config)["frozen"]
    assert {"LR": "2e-6", "PROJECT": "a b"}.items() <= frozen.items()
    assert "LR=2e-6" in Path("x.yaml").read_text().partition("\n\n")[0]
    monkeypatch.setenv("LR", "5e-7")
    next(dry_run.sources("x.yaml", (), RunOptions(dry_run=True)))
    assert "x.yaml: warning TP123 LR is set in this shell" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["translate", "audit", "diff"])
@pytest.mark.parametrize(("value", "said"), [("5e-7", True), ("2e-6", False)])
def test_a_variable_of_a_hydra_file_that_is_set_is_named(hydra, command, value, said):
    result = run(command, hydra, *(["verl==0.9.1"] if command == "diff" else []), LR=value)
    assert result.exit_code == 0
    line = next(n for n, text in enumerate(HYDRA_FILE.splitlines(), 1) if "LR" in text)
    text = " ".join(result.output.split())  # audit breaks lines
    told = (f"mine.yaml:{line}", "TP123", "LR is set in this shell, where Hydra would use it")
    assert all(part in text for part in told) == said and ("TP123" in text) == said


@pytest.mark.parametrize("options", [["--env", "LR=5e-7"], ["--resolve"]])
def test_a_variable_that_is_given_reaches_a_hydra_file(hydra, options):
    result = run("translate", hydra, *options, "-o", "x.yaml", LR="5e-7")
    assert result.exit_code == 0 and "TP123" not in result.stderr
    config = from_yaml(Path("x.yaml")).config
    assert to_verl(config)["actor_rollout_ref.actor.optim.lr"] == 5e-7
    assert "LR" not in compat_of(config).get("frozen", {})


def test_a_dry_run_takes_it_from_the_shell(hydra_script, monkeypatch):
    monkeypatch.setenv("LR", "5e-7")
    source, _ = next(dry_run.sources(str(hydra_script), (), RunOptions(dry_run=True)))
    assert to_verl(source.config)["actor_rollout_ref.actor.optim.lr"] == 5e-7


@pytest.mark.parametrize("exported", ["export LR=7e-6", "export LR=${LR:-7e-6}"])
def test_a_hydra_file_gets_what_the_script_exports(hydra_script, exported):
    launch = read_text(f"{exported}\n{hydra_script.read_text()}").launches[0]
    made, _ = translate_launch(launch, TranslateOptions())
    assert to_verl(made.config)["actor_rollout_ref.actor.optim.lr"] == 7e-6


def test_what_nobody_knows_does_not_become_the_hydra_files_default(hydra_script):
    launch = read_text(f"export LR=$(cmd)\n{hydra_script.read_text()}").launches[0]
    with pytest.raises(UserError, match=r"LR is \$\(cmd\), which is known only at run time: .* --set"):
        translate_launch(launch, TranslateOptions())


def test_a_variable_that_a_script_exports_with_a_default_is_named(monkeypatch):
    text = Path("run.sh").read_text().replace("lr=${LR:-2e-6}", "lr=$LR")
    Path("run.sh").write_text(f"export LR=${{LR:-2e-6}}\n{text}")
    assert run("translate", "run.sh", "-q", "-o", "x.yaml").exit_code == 0
    assert compat_of(from_yaml(Path("x.yaml")).config)["frozen"]["LR"] == "2e-6"


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


@pytest.mark.parametrize("options", [[], ["--env", "API_KEY=s3cr3t-t0k3n"]])
def test_a_secret_of_a_hydra_file_stands_in_no_yaml(hydra, options):
    file = Path("conf/mine.yaml")
    file.write_text(file.read_text().replace("PROJECT,'a b'", "API_KEY,s3cr3t-d3fault"))
    result = run("translate", hydra, *options, API_KEY="s3cr3t-sh3ll")
    assert result.exit_code == 0
    config = yaml.safe_load(result.stdout)
    assert compat_of(config).get("frozen", {}).get("API_KEY") is None
    assert "t0k3n" not in result.output and "sh3ll" not in result.output
