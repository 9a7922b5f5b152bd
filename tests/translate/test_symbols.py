"""Environment variables stay symbolic, unless they feed a number or --resolve fills them in."""

import pytest
import yaml
from omegaconf import OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.translate import TranslateOptions, translate_launch

from .helpers import script

SCRIPT = """
export HF_TOKEN=abc
export NCCL_DEBUG=WARN
MODEL=${MODEL:-$HOME/models/x}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=$MODEL \\
  data.train_files="['$HOME/a/train.parquet','$HOME/b/train.parquet']" data.val_files=$HOME/a/test.parquet \\
  actor_rollout_ref.rollout.name=vllm trainer.experiment_name=run_$USER trainer.nnodes=${NNODES:-2} \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
"""


def yaml_of(text=SCRIPT, env=None, **options):
    launch = script(text, env=env or {})
    return yaml.safe_load(translate_launch(launch, TranslateOptions(**options))[1])


def test_paths_and_names_keep_their_variables():
    config = yaml_of()
    assert config["model"]["model_path"] == "${oc.env:MODEL,${oc.env:HOME}/models/x}"
    assert config["name"] == "run_${oc.env:USER,''}"
    files = config["buffer"]["explorer_input"]["tasksets"][0]["workflow_args"]["files"]
    assert files == ["${oc.env:HOME}/a/train.parquet", "${oc.env:HOME}/b/train.parquet"]


def test_a_list_that_is_a_variable_s_default_keeps_the_variables_in_it():
    text = SCRIPT.replace("MODEL=", """FILES=${FILES:-"['$HOME/a','${B:-$HOME/b}']"}\nMODEL=""")
    text = text.replace("\"['$HOME/a/train.parquet','$HOME/b/train.parquet']\"", '"$FILES"')
    files = yaml_of(text)["buffer"]["explorer_input"]["tasksets"][0]["workflow_args"]["files"]
    assert files == ["${oc.env:HOME}/a", "${oc.env:B,${oc.env:HOME}/b}"]


def test_only_a_variable_that_chooses_a_config_file_is_frozen():
    text = SCRIPT.replace("$USER", "${STRATEGY:-dp}")
    config = yaml_of(text.replace("per_gpu=4", "per_gpu=4 model_engine=${STRATEGY:-dp}"))
    assert config["name"] == "run_dp"
    assert config["model"]["model_path"] == "${oc.env:MODEL,${oc.env:HOME}/models/x}"


@pytest.mark.parametrize(
    "default", ["false", "True", "null", "1e-6", "0.10", "1_000", "007", "a.b", "12", ""]
)
def test_a_default_reads_back_as_it_was_written(default, monkeypatch):
    monkeypatch.delenv("TAG", raising=False)
    text = SCRIPT.replace("$USER", f"${{TAG:-{default}}}")
    config = yaml_of(text.replace("NCCL_DEBUG=WARN", f"NCCL_DEBUG=${{TAG:-{default}}}"))
    node = {"name": config["name"], "alone": config["explorer"]["env_vars"]["NCCL_DEBUG"]}
    read = OmegaConf.create(node)
    assert (read.name, read.alone) == (f"run_{default}", default)


def test_a_number_takes_the_default():
    assert yaml_of()["cluster"]["node_num"] == 2


def test_a_number_without_a_value_is_refused_by_name():
    with pytest.raises(UserError) as error:
        yaml_of(SCRIPT.replace("${NNODES:-2}", "$NNODES"))
    assert "--env NNODES=" in str(error.value)


def test_resolve_fills_in_from_what_is_given():
    config = yaml_of(resolve=True, env={}, environ={"HOME": "/home/u", "USER": "u"})
    assert config["model"]["model_path"] == "/home/u/models/x"
    assert config["name"] == "run_u"
    assert "oc.env" not in str(config)


def test_resolve_names_what_is_missing():
    with pytest.raises(UserError) as error:
        yaml_of(resolve=True, environ={"HOME": "/home/u"})
    assert "--env USER=" in str(error.value)


def test_exports_go_to_the_explorer_and_secrets_do_not():
    launch = script(SCRIPT)
    translation, text = translate_launch(launch, TranslateOptions())
    assert yaml.safe_load(text)["explorer"]["env_vars"] == {"NCCL_DEBUG": "WARN"}
    assert "abc" not in text
    assert any(caution.code == "TW012" and "HF_TOKEN" in caution.message for caution in translation.warnings)


def test_an_open_value_in_free_text_is_kept_and_told():
    launch = script(SCRIPT.replace("run_$USER", "run_$(hostname)"))
    translation, text = translate_launch(launch, TranslateOptions())
    assert yaml.safe_load(text)["name"] == "run_$(hostname)"
    assert any(caution.code == "TW013" for caution in translation.warnings)


@pytest.mark.parametrize(
    ("script_start", "spelling", "without", "with_it"),
    [
        ("", "$RUN", "run_", "run_5"),
        ("", "${RUN:-a b}", "run_a b", "run_5"),
        ("", "${RUN:-${OTHER}x}", "run_x", "run_5"),
        ("", "${RUN:-}", "run_", "run_5"),
        ("NAME=$RUN", "$NAME", "run_", "run_5"),
    ],
)
def test_omegaconf_gives_an_unset_variable_bash_s_meaning(
    script_start, spelling, without, with_it, monkeypatch
):
    text = SCRIPT.replace("run_$USER", f'"run_{spelling}"')
    config = OmegaConf.create(yaml_of(f"{script_start}\n{text}"))
    for name in ("RUN", "OTHER"):
        monkeypatch.delenv(name, raising=False)
    assert OmegaConf.to_container(config, resolve=True)["name"] == without
    monkeypatch.setenv("RUN", "5")
    assert OmegaConf.to_container(config, resolve=True)["name"] == with_it


@pytest.mark.parametrize(("script_start", "spelling"), [("set -u", "$RUN"), ("", "${RUN:?name it}")])
def test_a_required_bash_variable_stays_required_in_omegaconf(script_start, spelling):
    text = SCRIPT.replace("run_$USER", f'"run_{spelling}"')
    assert yaml_of(f"{script_start}\n{text}")["name"] == "run_${oc.env:RUN}"


BOTH = """
LR=${LR:-1e-6}
ALGO=${ALGO:-grpo}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=${MODEL:-/m} algorithm.adv_estimator=$ALGO \\
  data.train_files=/a.parquet data.val_files=/b.parquet actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 trainer.project_name=${PROJECT:-p} \\
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("actor_rollout_ref.actor.optim.lr=$LR trainer.experiment_name=lr$LR", "lr1e-6"),  # a number needs it
        ("trainer.experiment_name=$ALGO", "grpo"),  # Trinity's algorithm was chosen by it
        # nothing but the name has it; OmegaConf reads 1e-6 without quotes as 1e-06
        ("trainer.experiment_name=lr$LR", "lr${oc.env:LR,'1e-6'}"),
    ],
)
def test_a_variable_is_symbolic_everywhere_or_nowhere(words, name):
    config = yaml_of(f"{BOTH}  {words}\n")
    assert config["name"] == name
    assert config["model"]["model_path"] == "${oc.env:MODEL,/m}"
    assert config["project"] == "${oc.env:PROJECT,p}"
