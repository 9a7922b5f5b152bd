"""Every field of a Trinity YAML as one of a form, and a pasted text as a configuration."""

from pathlib import Path

import pytest
import yaml
from published_forms import FORMS

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.common.releases import TRINITY
from trinity_compat.job.settings import SETTINGS
from trinity_compat.translate.form import made_from
from trinity_compat.translate.form.answers import changed, changes_since, loaded
from trinity_compat.translate.form.expert import (
    SECTIONS,
    by_path,
    config_of,
    expert_fields,
    made_of_fields,
    texts_of,
)
from trinity_compat.translate.trinity_fields import fields
from trinity_compat.trinity.config.complete import completed
from trinity_compat.trinity.config.schema import schema

HERE = Path(__file__).parent / "published"
EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = "trainer.trainer_config.trinity_compat"
RUNS = {
    "model.model_path": "m",
    "model.max_model_len": "64",
    "buffer.explorer_input.taskset.path": "/data",
}


def test_there_is_a_field_for_everything_in_the_schema():
    there = by_path()
    missing = {path.partition(".*")[0] for path in fields(schema(TRINITY))} - set(there)
    assert missing == set()
    assert list(expert_fields()) == list(SECTIONS)
    assert sum(map(len, expert_fields().values())) == len(there)


def test_a_field_says_its_type_default_choices_and_the_key_of_verl():
    batch, method = by_path()["buffer.batch_size"], by_path()["synchronizer.sync_method"]
    assert (batch.kind, batch.default) == ("int", "1") and "actor.ppo_mini_batch_size" in batch.help
    assert method.choices == ("nccl", "checkpoint", "memory") and method.default == "nccl"
    assert "deprecated" in by_path()["algorithm.optimizer.warmup_style"].help


def test_our_own_settings_are_fields_of_the_trainer():
    there = {field.path: field for field in expert_fields()["Trainer"]}
    for name, row in SETTINGS.items():
        assert there[f"{OURS}.{name}"].help == row.help


@pytest.mark.parametrize(
    "path", [*EXAMPLES.glob("trinity/*.yaml"), *HERE.glob("*.yaml")], ids=lambda path: path.stem
)
def test_only_what_differs_from_a_default_is_written_and_means_the_same(path):
    given = loaded(path.read_text())
    made = made_of_fields(texts_of(given.config))
    assert made.works
    assert completed(made.config, TRINITY).config == completed(given.config, TRINITY).config
    known = by_path()
    for name, value in leaves(made.config):
        if name in known and known[name].kind not in ("yaml", "str"):
            assert str(value).lower() != known[name].default
    assert loaded(made.yaml).config == made.config


@pytest.mark.parametrize("name", FORMS)
def test_a_script_comes_back_as_it_was(name):
    text = made_from(FORMS[name]).script
    given = loaded(text)
    assert given.source == "script"
    made = made_of_fields(texts_of(given.config))
    assert changed(given.config, made.config) == [] == changes_since(text, made.config)
    assert made.script.splitlines()[2:] == text.splitlines()[2:]


def test_a_change_is_told_with_both_values_and_is_in_the_script():
    text = made_from({}).script
    texts = texts_of(loaded(text).config)
    texts |= {"explorer.eval_on_startup": "false", "buffer.total_epochs": "4", f"{OURS}.keep_steps": "20"}
    made = made_of_fields(texts)
    assert sorted(changes_since(text, made.config)) == [
        ("buffer.total_epochs", 1, 4),
        ("explorer.eval_on_startup", None, False),
        (f"{OURS}.keep_steps", None, 20),
    ]
    assert "trainer.val_before_train=False" in made.script and "total_epochs=4" in made.script


@pytest.mark.parametrize(
    ("texts", "path", "message", "hint"),
    [
        ({"buffer.batch_size": "x"}, "buffer.batch_size", "'x' where an integer is expected", ""),
        ({"trainer.grad_clip": "x"}, "trainer.grad_clip", "'x' where a number is expected", ""),
        (
            {"synchronizer.sync_method": "ncl"},
            "synchronizer.sync_method",
            "one of nccl, checkpoint, memory",
            "",
        ),
        (
            {"buffer.explorer_input.tasksets": "- a: 1\n  a: 2"},
            "buffer.explorer_input.tasksets",
            "line 2: the key 'a' appears twice",
            "",
        ),
        (
            {"buffer.explorer_input.tasksets": "- pth: x"},
            "buffer.explorer_input.tasksets.0.pth",
            "no such field",
            "path",
        ),
        ({"explorer.env_vars": "[a"}, "explorer.env_vars", "not YAML", ""),
        ({"model.rope_scaling": "!!python/object:os.system {}"}, "model.rope_scaling", "not YAML", ""),
        ({"model.no_such": "1"}, "model.no_such", "trinity-rft 0.6.0 has no such field", ""),
        (
            {f"{OURS}.keep_steps": "-1"},
            f"{OURS}.keep_steps",
            "write a number of trainer steps, 0 or more",
            "",
        ),
    ],
)
def test_a_wrong_text_is_told_at_its_field(texts, path, message, hint):
    made = made_of_fields(RUNS | texts)
    assert not made.works
    (found,) = made.remarks
    assert (found.rank, found.name) == ("error", path) and message in found.message and hint in found.hint


def test_a_default_is_left_out_and_a_variable_stays():
    texts = RUNS | {"mode": "both", "trainer.save_interval": "0", "buffer.batch_size": "${oc.env:TASKS}"}
    made = made_of_fields(texts | {"trainer.total_steps": "null"})
    config = yaml.safe_load(made.yaml)
    assert set(config) == {"model", "buffer"} and config["buffer"]["batch_size"] == "${oc.env:TASKS}"


def test_what_a_run_here_refuses_is_told():
    made = made_of_fields({"model.model_path": "m"})
    assert made.works and made.script == ""
    assert any("model.max_model_len is not given" in remark.message for remark in made.remarks)


def test_a_yaml_of_verl_is_translated():
    text = "actor_rollout_ref:\n  model: {path: /m}\n  rollout: {n: 3, name: vllm}\n"
    given = loaded(text)
    assert given.source == "veRL YAML" and value_at(given.config, "algorithm.repeat_times") == 3


def test_a_yaml_by_hand_is_taken_as_one():
    given = loaded("model: {model_path: m}\nexplorer: {rollout_model: {enable_openai_api: true}}\n")
    assert given.source == "Trinity YAML"


@pytest.mark.parametrize("text", ["", "echo hello", "a: b", "rm -rf /", "[1, 2]"])
def test_another_text_is_refused_with_what_to_paste(text):
    with pytest.raises(UserError) as error:
        loaded(text)
    assert "neither a launch of veRL nor a YAML" in str(error.value) and "main_ppo" in str(error.value)


def test_a_text_without_a_value_is_no_field():
    config, remarks = config_of({"buffer.batch_size": "  "})
    assert (config, remarks) == ({}, [])


def test_an_algorithm_s_functions_are_choices_and_their_arguments_fields():
    fields = by_path()
    assert (
        "gspo" in fields["algorithm.policy_loss_fn"].choices
        and "grpo" in fields["algorithm.algorithm_type"].choices
    )
    clip = fields["algorithm.policy_loss_fn_args.clip_range"]
    assert clip.kind == "float" and "gspo" in clip.of and "cispo" not in clip.of
    texts = {"algorithm.policy_loss_fn": "gspo", "algorithm.policy_loss_fn_args.clip_range": "0.3"}
    config, remarks = config_of(texts)
    assert not remarks and config["algorithm"]["policy_loss_fn_args"] == {"clip_range": 0.3}
    assert texts_of(config) == texts


def test_arguments_without_a_field_and_none_at_all_are_kept():
    path = "algorithm.policy_loss_fn_args"
    for given, texts in (
        ({"clip_range": 0.3, "of_a_plugin": 1}, {path: "of_a_plugin: 1", f"{path}.clip_range": "0.3"}),
        ({}, {path: "{}"}),
    ):
        config = {"algorithm": {"policy_loss_fn_args": given}}
        assert texts_of(config) == texts and config_of(texts_of(config))[0] == config
