"""A key of a YAML that a run does not read is named, or refused; what translate wrote never is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.run import dry_run
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan import error_locations, ignored_keys
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.trinity.config import TARGETS, schema
from trinity_compat.trinity.config.read_tracking import plain, watched

from .helpers import script, translated
from .test_cases import read_cases

BY_HAND = """\
project: p
name: n
group: a label
algorithm: {algorithm_type: grpo, repeat_times: 8, advantage_fn: opmd}
model: {model_path: /m, max_prompt_tokens: 100, max_response_tokens: 200}
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  batch_size: 32
  explorer_input:
    default_workflow_type: math_workflow
    taskset: {name: a label, path: /d/train.parquet, split: train, workflow_args: {turns: 3}}
explorer:
  runner_per_model: 16
  max_timeout: 1800
  rollout_model: {engine_type: vllm}
service: {data_juicer: {auto_start: true}}
monitor: {monitor_type: wandb, detailed_stats: true}
synchronizer: {sync_interval: 2}
trainer:
  trainer_config:
    actor_rollout_ref:
      actor: {use_dynamic_bsz: true}
      ref: {log_prob_use_dynamic_bsz: true}
      rollout: {log_prob_use_dynamic_bsz: true}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def notes(config, *sets, text="", name="x.yaml"):
    """The lines about unread keys of a run of ``config``. Raises UserError."""
    text = text or yaml.safe_dump(config)
    Path(name).write_text(text)
    source = Source(config, text, {"yaml": name})
    with error_locations.relocate_errors(source, sets):
        try:
            made = make_plan(config, RunOptions(sets=sets), cwd=Path("/w"), device="cuda")
        except UserError:  # a split of GPUs that only upstream takes
            made = make_plan(config, RunOptions(sets=sets), cwd=Path("/w"), device="cpu")
        planned = ignored_keys.with_ignored_keys(made, source, sets, ignored_keys.written_for(source))
    return [line.strip() for line in planned.notes[len(made.notes) + 1 :]]


def of_case(given):
    options = dict(word[1:].split("=") for word in given if word.startswith("@"))
    return translated(*(word for word in given if not word.startswith("@")), **options)[1]


# Planned by no run: tests/run/test_distillation_plan.py has its refusals.
UNPLANNED = "teachers are ours alone, but for what their engines do not do"
TRANSLATED = [
    case for case in read_cases() if not case.values[1][0].startswith("refused: ") and case.id != UNPLANNED
]


@pytest.mark.parametrize("given", [pytest.param(case.values[0], id=case.id) for case in TRANSLATED])
def test_what_translate_wrote_is_never_named(given):
    assert notes(of_case(given)) == []


@pytest.mark.parametrize(
    "options", [{"rollout_gpus": 6}, {"as_published": True, "target": "0.6.0"}, {"sync_offset": 2}]
)
def test_nor_under_options_or_with_variables_in_it(options):
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm data.train_files=$HOME/d"
        " data.val_files=\"['$HOME/a.parquet','$D/b.parquet']\" actor_rollout_ref.model.path=${M:-/x/y}"
        " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    )
    config = yaml.safe_load(translate_launch(script(text), TranslateOptions(**options))[1])
    assert notes(config) == []


def test_what_a_hand_written_yaml_says_in_vain_is_named_with_its_line():
    models = "trainer.trainer_config.actor_rollout_ref"
    told = [line.split(": ", 2) for line in notes(yaml.safe_load(BY_HAND), text=BY_HAND)]
    assert [f"{place}: {key}" for place, key, _ in told] == [
        "x.yaml:13: explorer.runner_per_model=16",
        "x.yaml:16: service.data_juicer.auto_start=true",
        "x.yaml:17: monitor.detailed_stats=true",
        f"x.yaml:22: {models}.actor.use_dynamic_bsz=true",
        f"x.yaml:23: {models}.ref.log_prob_use_dynamic_bsz=true",
        f"x.yaml:24: {models}.rollout.log_prob_use_dynamic_bsz=true",
    ]
    assert all(len(why) > 20 for *_, why in told)


def test_an_edit_of_a_translated_yaml_that_has_no_effect_anywhere_is_named():
    _, config = translated()
    config["explorer"]["runner_per_model"] = 3
    (told,) = notes(config)
    assert "explorer.runner_per_model=3: how Trinity-RFT spreads" in told


def test_an_edited_label_is_named_where_translate_made_it_of_a_path():
    _, config = translated("actor_rollout_ref.model.lora_rank=8", "data.val_files=$HOME/v.parquet")
    put(config, "buffer.explorer_input.tasksets.0.name", "other")
    put(config, "buffer.trainer_input.experience_buffer.name", "other")
    told = [line.split(": ")[1] for line in notes(config)]
    assert told == [
        "buffer.explorer_input.tasksets.0.name=other",
        "buffer.trainer_input.experience_buffer.name=other",
    ]


def test_a_name_below_a_taskset_is_no_label():
    _, config = translated("reward.custom_reward_function.path=r.py", "reward.custom_reward_function.name=f")
    put(config, "buffer.explorer_input.eval_tasksets.0.reward_fn_args.custom_reward_function.name", "g")
    with pytest.raises(UserError, match=r"custom_reward_function\.name=g: without effect here; .*make it f"):
        notes(config)


def test_an_edit_that_a_run_does_not_read_is_refused_with_what_runs():
    _, config = translated("algorithm.adv_estimator=grpo")
    config["algorithm"]["advantage_fn"] = "opmd"
    config["algorithm"]["repeat_times"] = 4
    with pytest.raises(UserError) as error:
        notes(config)
    assert str(error.value).splitlines() == [
        "x.yaml:83: buffer.train_batch_size=256: without effect here; the other keys make it 1024",
        "  hint: write that, or leave it out",
    ]
    del config["buffer"]["train_batch_size"]
    assert notes(config) == []


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("explorer.max_retry_times", 5, "leave it out"),
        ("model.rope_theta", 5e5, "leave it out"),
        ("model.enable_prompt_truncation", True, "write that, or leave it out"),  # upstream's default
    ],
)
def test_what_only_a_file_by_hand_may_say_is_refused_in_a_launch_s(path, value, hint):
    _, config = translated()
    put(config, path, value)
    with pytest.raises(UserError, match=rf"x\.yaml:\d+: {path}=.*without effect here") as error:
        notes(config)
    assert error.value.hint == hint
    with pytest.raises(UserError, match=f"^{path}="):
        notes(translated()[1], f"{path}={value}")


def test_another_algorithm_s_name_is_refused():
    _, config = translated("algorithm.adv_estimator=grpo")
    config["algorithm"]["algorithm_type"] = "rloo"
    with pytest.raises(UserError, match=r"algorithm_type=rloo: .*advantage_fn=grpo makes it grpo"):
        notes(config)
    config["algorithm"]["advantage_fn"] = "rloo"
    assert notes(config) == []


def test_another_order_than_verl_s_is_refused():
    _, config = translated()
    config["buffer"]["explorer_input"]["tasksets"][0]["data_selector"]["selector_type"] = "random"
    with pytest.raises(UserError, match=r"x\.yaml:\d+: .*selector_type=random: .* in the order of the file"):
        notes(config)


def test_a_pair_that_was_edited_into_something_else_is_refused():
    _, config = translated()
    pairs = config["trainer"]["trainer_config"]["trinity_compat"]["stands_for"]
    pairs[next(iter(pairs))] = 3
    with pytest.raises(UserError, match=r"stands_for\..*=3: write two values"):
        notes(config)


def test_an_adapter_without_a_size_has_trinity_rft_s():
    _, config = translated()
    config["model"]["lora_configs"] = [{"name": "a"}]
    model = make_plan(config, RunOptions(), cwd=Path("/w"), device="cuda").spec.verl["actor_rollout_ref"][
        "model"
    ]
    assert (model["lora_rank"], model["lora_alpha"]) == (32, 32)


def test_a_set_that_changes_nothing_is_named():
    _, config = translated()
    told = notes(config, "explorer.runner_per_model=3", "algorithm.repeat_times=4")
    assert [line.split(": ")[0] for line in told] == ["--set explorer.runner_per_model=3"]


def test_a_dry_run_shows_the_note(tmp_path, monkeypatch):
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())
    (tmp_path / "x.yaml").write_text(BY_HAND)
    told = list(dry_run.lines(str(tmp_path / "x.yaml"), (), RunOptions(profiles=())))
    assert any(line.startswith(f"  {tmp_path}/x.yaml:13: explorer.runner_per_model=16: ") for line in told)


@pytest.mark.parametrize("pattern", ignored_keys.known())
def test_each_key_that_may_stay_unread_is_one_of_trinitys_and_has_a_reason(pattern):
    assert len(ignored_keys.known()[pattern]) > 10
    ends = {"*.ray_namespace": "synchronizer.ray_namespace"}
    taskset = pattern.replace("*", "buffer.explorer_input.taskset", 1) if pattern[0] == "*" else pattern
    path = ends.get(pattern, taskset.removesuffix(".*").replace("*", "0"))
    assert any(schema(target).find(path) for target in TARGETS)


def test_reading_is_recorded_however_it_is_done():
    tree = {"a": {"b": 1, "c": [{"d": 2}], "e": {"f": 3}}, "g": 4, "h": {"i": 5, "j": 6}, "k": {"l": 7}}
    config, read = watched(tree)
    assert config.get("g") == 4 and config.get("none") is None
    assert {**config["h"]} == tree["h"] == dict(config["h"])
    assert config["a"]["c"][0]["d"] == 2
    assert {"g", "h.i", "h.j", "a.c.0.d"} <= read and not {"a.b", "a.e", "k"} & read
    assert plain(config) == tree and type(plain(config)["a"]) is dict
    assert {"a.e.f", "k.l"} <= read


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (
            "default_workflow_type: math_workflow",
            "default_workflow_type: mth_workflow",
            "x.yaml:10: buffer.explorer_input.default_workflow_type=mth_workflow: no workflow",
        ),
        ("model_path: /m, ", "", "x.yaml: model.model_path is not given"),
    ],
)
def test_a_refusal_names_the_place_that_the_file_has(good, bad, said):
    Path("x.yaml").write_text(BY_HAND.replace(good, bad))
    with pytest.raises(UserError) as caught:
        list(dry_run.lines("x.yaml", (), RunOptions(device="cuda")))
    assert said in str(caught.value)


def test_gpus_of_a_run_for_a_cpu_are_refused_and_not_ignored():
    Path("x.yaml").write_text(BY_HAND)
    with pytest.raises(UserError, match="--gpus 4: this run is for a CPU"):
        list(dry_run.lines("x.yaml", (), RunOptions(device="cpu", gpus=4)))


def test_a_column_that_the_tasks_do_not_have_is_named_at_its_line(tmp_path, monkeypatch):
    pq.write_table(pa.table({"prompt": ["1+1"], "answer": ["2"]}), tmp_path / "train.parquet")
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())
    text = BY_HAND.replace("path: /d/train.parquet,", "path: train.parquet, format: {prompt_key: question},")
    Path("x.yaml").write_text(text)
    told = "\n".join(dry_run.lines("x.yaml", (), RunOptions(device="cuda")))
    assert "x.yaml:11: buffer.explorer_input.taskset.format.prompt_key=question: " in told
    assert "has no such column; it has answer, prompt" in told
    Path("x.yaml").write_text(text.replace("prompt_key: question", "prompt_key: prompt"))
    assert "no such column" not in "\n".join(dry_run.lines("x.yaml", (), RunOptions(device="cuda")))
