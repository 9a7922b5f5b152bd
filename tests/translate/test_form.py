"""A launch made from nothing: the files of the form are those of ``translate`` and ``to-verl``."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from published_forms import FORMS

from trinity_compat.common.nested import value_at
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.compare.configs import compared
from trinity_compat.compare.effective_settings import read_sides
from trinity_compat.launch import read_text
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.defaults import trainer_config
from trinity_compat.translate.form import FIELDS, defaults, made_from
from trinity_compat.translate.form.fields import ALGORITHMS
from trinity_compat.trinity.config import validate

from .helpers import flat
from .test_published import number

HERE = Path(__file__).parent / "published"


def errors(**texts):
    """(field, message, hint) of each error."""
    made = made_from(texts)
    assert made.works is not any(remark.rank == "error" for remark in made.remarks)
    return [(each.name, each.message, each.hint) for each in made.remarks if each.rank == "error"]


def words(script):
    (launch,) = read_text(script, name="run.sh").launches
    return dict(word.text.split("=", 1) for word in launch.arguments)


@pytest.mark.parametrize(
    "texts",
    [
        {"algorithm": "gae", "epochs": "3"},
        {"sharing": "split", "sync_offset": "1", "sync_style": "fully_async", "max_staleness": "2"},
    ],
)
def test_the_files_are_those_of_the_command_line(tmp_path, texts):
    made = made_from(texts)
    (tmp_path / "run.sh").write_text(made.script)

    def told(*command):
        done = subprocess.run(
            [sys.executable, "-m", "trinity_compat", *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert told("translate", "run.sh", *made.options) == made.yaml
    if made.sets:  # which no script has
        return
    (tmp_path / "made.yaml").write_text(made.yaml)
    assert told("to-verl", "made.yaml").replace("made.yaml", "run.sh") == made.script


def test_a_new_form_runs():
    made = made_from(defaults())
    assert made == made_from({}) and made.works
    assert {remark.rank for remark in made.remarks} == {"note"}
    assert validate(made.config, TRINITY) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_one_that_trinity_has(algorithm):
    made = made_from({"algorithm": algorithm})
    assert made.works and {remark.rank for remark in made.remarks} == {"note"}


@pytest.mark.parametrize("name", FORMS)
def test_the_guide_s_examples_are_made_with_its_values(name):
    made = made_from(FORMS[name])
    (launch,) = read_text(made.script, name="run.sh").launches
    _, text = translate_launch(launch, TranslateOptions(as_published=True))
    ours, guide = (
        flat(yaml.safe_load(text)),
        flat(yaml.safe_load((HERE / f"{name}_example.yaml").read_text())),
    )
    below, known = "trainer.trainer_config.", trainer_config(TRINITY_OLD, "fsdp").defaults
    effective = {f"{below}{key}": value for key, value in known.items()} | ours
    assert {path: effective[path] for path in guide} == {path: number(value) for path, value in guide.items()}


@pytest.mark.parametrize("name", FORMS)
def test_nothing_that_the_guide_s_script_says_differs(name, tmp_path):
    (tmp_path / "run.sh").write_text(made_from(FORMS[name]).script)
    found = compared(*read_sides([str(HERE / f"run_{name}.sh"), str(tmp_path / "run.sh")]))
    # What is left is a default of the older veRL that the PPO script is for.
    assert {row.a_place for row in (*found.effective, *found.following)} <= {"default"}


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        ({"gpus": "16"}, {"trainer.nnodes": "2"}),
        ({"gpus": "2"}, {"trainer.n_gpus_per_node": "2"}),
        ({"kl": "reward", "kl_coef": "0.01"}, {"algorithm.kl_ctrl.kl_coef": "0.01"}),
        ({"save_every": "0"}, {}),
        ({"logger": "none"}, {"trainer.logger": "[console]"}),
        (
            {"reward": "function", "reward_source": "/a b/r.py:score"},
            {"reward.custom_reward_function.name": "score"},
        ),
        ({"train_files": "/a.parquet\r\n/b.parquet\n"}, {"data.train_files": "[/a.parquet,/b.parquet]"}),
        ({"settings": "trainer.total_epochs=9"}, {"trainer.total_epochs": "9"}),
        ({"settings": "+trainer.own=1"}, {"+trainer.own": "1"}),
    ],
)
def test_a_field_is_its_settings(texts, settings):
    found = words(made_from(texts).script)
    assert {key: found.get(key) for key in settings} == settings


def test_a_variable_is_the_shell_s_and_the_yaml_s():
    made = made_from({"model": "$MODELS/qwen", "settings": "trainer.experiment_name=a-${RUN}"})
    assert '"actor_rollout_ref.model.path=${MODELS:?}/qwen"' in made.script
    assert value_at(made.config, "model.model_path") == "${oc.env:MODELS}/qwen"
    assert made.config["name"] == "a-${oc.env:RUN}"


@pytest.mark.parametrize("text", ["TCvar0x", "TCvarx0x", "TCvar0x-$RUN"])
def test_a_text_like_the_mark_of_a_variable_is_a_text(text):
    made = made_from({"model": text})
    assert value_at(made.config, "model.model_path") == text.replace("$RUN", "${oc.env:RUN}")


@pytest.mark.parametrize(
    "text", ["$(touch stolen)", "`id`", "a'b", 'a"b', "a b;c", "x,y", "[x", "{a: b}", "é*?"]
)
def test_no_text_is_a_command_or_a_list(text):
    made = made_from({"model": text})
    if made.works:
        assert value_at(made.config, "model.model_path") == text
    else:
        assert [remark.name for remark in made.remarks] == ["model"]


@pytest.mark.parametrize(
    ("texts", "name", "message", "hint"),
    [
        ({"gpus": "12"}, "gpus", "12 are not whole nodes", "8 or 16"),
        ({"gpus": "0"}, "gpus", "0 is too small", "1 or more"),
        ({"gpus": "1", "sharing": "split"}, "sharing", "1 GPU has no room", "take turns"),
        ({"sharing": "split", "rollout_gpus": "8"}, "rollout_gpus", "8 of 8 GPUs are not", "of 1 below 8"),
        (
            {"sharing": "split", "rollout_gpus": "3", "tensor_parallel": "2"},
            "rollout_gpus",
            "not whole engines of 2",
            "a multiple of 2",
        ),
        (
            {"sharing": "split", "rollout_gpus": "5"},
            "rollout_gpus",
            "does not divide by 3 trainer",
            "4, 6, 7",
        ),
        ({"sync_offset": "1"}, "sync_offset", "is for sides that work side by side", "Both sides"),
        ({"max_staleness": "1"}, "max_staleness", "is for the style fully_async", "leave it empty"),
        ({"workflow": "tool_agent"}, "tools", "is empty", "tools' YAML"),
        (
            {"algorithm": "dpo", "columns": "a,b"},
            "columns",
            "'a,b' are not the columns of DPO",
            "prompt,chosen",
        ),
        ({"algorithm": "sft", "train_files": "/a\n/b"}, "train_files", "2 files", "the folder of all"),
        ({"gpus": "eight"}, "gpus", "'eight' is not a whole number", "the default is 8"),
        ({"gpus": "1.5"}, "gpus", "'1.5' is not a whole number", "the default is 8"),
        ({"engine_memory": "0"}, "engine_memory", "0 is too small", "0.01 or more"),
        ({"engine_memory": "60"}, "engine_memory", "60 is too large", "1 or less"),
        ({"learning_rate": "inf"}, "learning_rate", "'inf' is not a number", "1e-6"),
        ({"model": " "}, "model", "is empty", "Qwen"),
        ({"model": "a\x07"}, "model", "has the character '\\x07'", "remove it"),
        ({"model": "a" * 20_001}, "model", "has 20001 characters", "20000"),
        ({"algorithm": "grop"}, "algorithm", "'grop' is not one of its choices", "grpo"),
        ({"group_size": "1"}, "group_size", "GRPO compares", "write 2"),
        ({"reward": "model"}, "reward_source", "is empty", "the folder of the reward model"),
        (
            {"reward": "function", "reward_source": "r.py"},
            "reward_source",
            "names no function",
            "r.py:compute_score",
        ),
        ({"answer_length": "100000"}, "tokens_per_gpu", "16384 do not hold", "write 100512"),
        ({"tensor_parallel": "3"}, "tensor_parallel", "do not divide into engines of 3", "1, 2, 4, 8"),
        ({"settings": "actor_rollout_ref.actor.clip_ration=3"}, "settings", "no such key; did you mean", ""),
        ({"settings": "data.seed=$SEED"}, "settings", "depends on $SEED", "write the value itself"),
        ({"settings": "rm -rf /"}, "settings", "'rm -rf /' is not a setting", "write key=value"),
        ({"settings": "\nhydra.run.dir=/"}, "settings", "line 2: Hydra's own settings", "remove it"),
        ({"settings": "--config-path=/etc"}, "settings", "is not a setting", "key=value"),
    ],
)
def test_a_wrong_text_is_told_at_its_field(texts, name, message, hint):
    ((where, told, what),) = errors(**texts)
    assert where == name and message in told and hint in what


def test_every_wrong_field_is_told_at_once():
    assert [name for name, *_ in errors(gpus="x", epochs="y", model="")] == ["model", "gpus", "epochs"]


def test_what_translate_says_stands_at_its_field():
    made = made_from({"mini_batch": "100"})
    (found,) = [remark for remark in made.remarks if remark.rank == "decide"]
    assert (found.name, found.code) == ("mini_batch", "TC020") and "2 of 128 each" in found.message


def test_a_field_has_a_label_a_help_and_a_default_of_its_kind():
    assert len(FIELDS) == len({field.label for field in FIELDS.values()})
    for field in FIELDS.values():
        assert field.help and (field.choices is None or field.default in field.choices)


@pytest.mark.parametrize(
    ("texts", "paths"),
    [
        (
            {"sharing": "split", "sync_offset": "1", "mini_batch": "64"},
            {"explorer.rollout_model.engine_num": 4, "synchronizer.sync_offset": 4},
        ),
        (
            {"sharing": "split", "rollout_gpus": "6", "tensor_parallel": "2", "sync_interval": "2"},
            {"explorer.rollout_model.engine_num": 3, "synchronizer.sync_interval": 2},
        ),
        (
            {"sync_style": "fully_async", "max_staleness": "1", "mini_batch": "128"},
            {"mode": "colocate", "algorithm.sample_strategy_args.max_staleness": 2},
        ),
    ],
)
def test_how_both_sides_share_stands_in_the_yaml_and_in_settings_of_run(texts, paths):
    made = made_from(texts)
    assert {path: value_at(made.config, path) for path in paths} == paths
    assert set(made.sets) >= {f"{path}={value}" for path, value in paths.items()}


DATA = "buffer.trainer_input.experience_buffer"


@pytest.mark.parametrize(
    ("texts", "paths"),
    [
        ({"algorithm": "sft"}, {f"{DATA}.format.messages_key": "messages"}),
        (
            {"algorithm": "sft", "columns": "q, a", "tokens_per_gpu": "", "micro_batch": "4"},
            {
                f"{DATA}.format.prompt_type": "plaintext",
                f"{DATA}.format.response_key": "a",
                "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
            },
        ),
        (
            {"algorithm": "dpo", "columns": "p,good,bad", "train_files": "$DATA/x.parquet", "gpus": "16"},
            {
                f"{DATA}.path": "${oc.env:DATA}/x.parquet",
                f"{DATA}.format.chosen_key": "good",
                f"{DATA}.format.rejected_key": "bad",
                "cluster.node_num": 2,
            },
        ),
    ],
)
def test_a_data_set_that_is_trained_on_alone_is_a_yaml_without_a_script(texts, paths):
    made = made_from(texts)
    assert made.works and not made.script and validate(made.config, TRINITY) == []
    assert {path: value_at(made.config, path) for path in paths} == paths
    assert made.config["mode"] == "train" and made.config["algorithm"]["algorithm_type"] == texts["algorithm"]
