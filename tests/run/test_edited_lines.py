"""Each line of a translated YAML counts: another value in it changes the plan, or is an error.

One line at a time is given another legal value, in the YAMLs of launches of several kinds.
"""

import json
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from test_every_key import ACTOR, GRPO, PPO, REF, ROLLOUT, Yaml, given, value_of, words_of

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.launch import read_text
from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.rows import load_rows
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.trinity.config.schema import schema

TC = "trainer.trainer_config"
EPOCHS = {**GRPO, "trainer.total_training_steps": None, "trainer.total_epochs": 2}
LAUNCHES = {
    "steps": GRPO,
    "epochs of rows that are read": EPOCHS,
    "critic": {
        **PPO,
        "trainer.total_training_steps": None,
        f"{ACTOR}.use_kl_loss": False,
        "algorithm.use_kl_in_reward": True,
        "critic.optim.lr_warmup_steps": 4,
        f"{ACTOR}.optim.lr_warmup_steps": 4,
        "critic.fsdp.param_offload": True,
    },
    "adapter, dynamic batches": {
        **EPOCHS,
        "actor_rollout_ref.model.lora_rank": 8,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.policy_loss.loss_mode": "gspo",
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
        f"{REF}.fsdp_config.param_offload": True,
        "algorithm.rollout_correction.rollout_is": "token",
        f"{ROLLOUT}.free_cache_engine": False,
    },
    "supervised": "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=/d/a.parquet"
    " data.val_files=/d/b.parquet data.prompt_key=q data.response_key=a data.micro_batch_size_per_gpu=4"
    " data.train_batch_size=32 model.partial_pretrain=org/m model.lora_rank=8 trainer.total_epochs=2"
    " trainer.default_local_dir=/ckpt optim.warmup_steps_ratio=0.1",
    "megatron": {**GRPO, "model_engine": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2},
}
# Pattern of a path → why another value there changes nothing.
IDLE = {
    "buffer.explorer_input.*tasksets.*.name": "a name: metrics go by the data_source of the rows",
    "buffer.trainer_input.experience_buffer.name": "a name: a job has one buffer",
    "buffer.trainer_input.experience_buffer.storage_type": "the buffer is a database, and a note says so",
    "buffer.trainer_input.experience_buffer.path": "a file of another name: a note says which database it is",
    "model.lora_configs.*.name": "a name: a run has one adapter",
    "trainer.grad_clip": "of rows: a note says that algorithm.optimizer.clip_grad clips, as in trinity-rft",
    "trainer.grad_offload": "veRL 0.9 moves gradients with their parameters, and a note says so",
}
# The same without an edit's own fault: what must stand beside the other value.
BESIDE = {"algorithm.entropy_loss_fn": {f"{ACTOR}.entropy_coeff": 0.1}}
LEGAL = {
    "mode": "explore",
    "algorithm.algorithm_type": "rloo",
    "algorithm.advantage_fn": "rloo",
    "algorithm.kl_penalty_fn": "k2",
    "algorithm.kl_loss_fn": "k2",
    "algorithm.policy_loss_fn": "sapo",
    "algorithm.rollout_correction.rollout_is": "sequence",
    "algorithm.entropy_loss_fn": "none",
    "loss_agg_mode": "token-sum",
    "algorithm.optimizer.optimizer_type": "sgd",
    "lr_scheduler_type": "cosine",
    "default_workflow_type": "math_workflow",
    "default_reward_fn_type": "math_reward",
    "selector_type": "sequential",
    "reward_manager": "dapo",
    "truncation": "left",
    "dtype": "float16",
    "attn_implementation": "eager",
    "engine_type": "sglang",
    "trainer.trainer_strategy": "fsdp2",
    "monitor.monitor_type": "mlflow",
    "sync_style": "explorer_driven",
    "sync_method": "checkpoint",
    "storage_type": "file",
    "lr_warmup_steps_ratio": 0.5,
    "min_lr_ratio": 0.5,
    "actor_rollout_ref.actor.optim.betas": [0.8, 0.9],
}


def text_of(launch, folder):
    """The YAML that translate writes for the launch; the training rows of main_ppo are 256 in a file."""
    if isinstance(launch, str):
        return translated(launch)
    pq.write_table(pa.table({"prompt": ["x"] * 256}), folder / "t.parquet")
    needs = {key: value for wanted in BESIDE.values() for key, value in wanted.items()}
    words = words_of({**launch, **needs, "data.train_files": str(folder / "t.parquet")})
    return translated("python3 -m verl.trainer.main_ppo " + " ".join(map(repr, words)))


def translated(command):
    (read,) = read_text(command, name="run.sh").launches
    return translate_launch(read, TranslateOptions())[1]


def other(config, path):
    """Another legal value of the line at ``path``: counts of steps stay whole steps of veRL's."""
    now, name = value_at(config, path), path.rpartition(".")[2]
    field = schema("0.6.0").find(path)
    found = LEGAL.get(path, LEGAL.get(name))
    if found not in (None, now):
        return found
    if field and field.type.kind == "enum":
        values = [value for value in field.type.values if value != now]
        return next((value for value in values if value != field.default), values[0])
    if isinstance(now, list):
        return [now[0] / 2, *now[1:]] if now and isinstance(now[0], float) else [*now, "other"]
    return value_of("", now)


def edits_of(config):
    """Path → the file with another value there; the two sections with veRL's keys as names, line by line."""
    compat = value_at(config, f"{TC}.trinity_compat")
    for path in values_of(config):
        if not path.startswith((f"{TC}.trinity_compat.verl.", f"{TC}.trinity_compat.stands_for.")):
            yield path, changed(config, path, other(config, path))
    for key, value in compat.get("verl", {}).items():
        edited = json.loads(json.dumps(config))
        value_at(edited, f"{TC}.trinity_compat.verl")[key] = value_of(key, value)
        yield f"{TC}.trinity_compat.verl.{key}", edited


def changed(config, path, value):
    config = json.loads(json.dumps(config))
    put(config, path, value)
    return config


@pytest.fixture(scope="module")
def file(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    return Yaml(folder, yaml.safe_load(text_of(LAUNCHES[request.param], folder)))


@pytest.mark.parametrize("file", [name for name in LAUNCHES if name != "steps"], indirect=True)
def test_another_value_in_any_line_changes_the_plan_or_is_an_error(file):
    silent = []
    for path, config in edits_of(file.config):
        assert config != file.config, path
        try:
            made = file.plan(config)
        except UserError:
            continue
        if given(made) == file.before and not any(fnmatchcase(path, idle) for idle in IDLE):
            silent.append(f"{path}={value_at(config, path)}")
    assert silent == []


def lines_beside(config):
    """veRL's key, the field that says the same, and the file with another value of the key below
    trainer_config."""
    fields = values_of(config)
    for row in load_rows().all():
        seen = [path for path in row.to if path in fields and not path.startswith(TC)]
        section = row.key.startswith(("actor_rollout_ref.", "critic."))
        if row.how == "copy" and seen and section and value_at(config, f"{TC}.{row.key}") is None:
            now = fields[seen[0]]
            yield row.key, seen[0], changed(config, f"{TC}.{row.key}", LEGAL.get(row.key, value_of("", now)))


@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_a_key_of_verl_s_beside_a_field_that_says_otherwise_is_refused_with_both(file):
    tried = 0
    for key, path, config in lines_beside(file.config):
        told = file.error(config)
        assert (
            "without effect here" in told and f"{TC}.{key}=" in told and f"{path.rpartition('.')[2]}=" in told
        )
        tried += 1
    assert tried >= 10


CASES = {
    f"{TC}.actor_rollout_ref.actor.optim.lr_warmup_steps": (8, "algorithm.optimizer.lr_warmup_steps"),
    f"{TC}.actor_rollout_ref.actor.use_kl_loss": (False, "algorithm.kl_loss_fn"),
    f"{TC}.actor_rollout_ref.actor.optim.lr": (9e-6, "algorithm.optimizer.lr"),
    "algorithm.policy_loss_fn_args.loss_agg_mode": ("token-sum", "algorithm.loss_agg_mode"),
    "algorithm.loss_agg_mode": ("token-sum", "algorithm.policy_loss_fn_args.loss_agg_mode"),
}


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_of_two_lines_that_disagree_the_error_names_both(file, path):
    value, visible = CASES[path]
    told = file.error(changed(file.config, path, value))
    assert f"{path}=" in told and f"{visible}=" in told and "without effect here" in told


@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_a_line_that_repeats_what_the_field_says_is_taken(file):
    path = f"{TC}.actor_rollout_ref.actor.optim.lr"
    assert given(file.plan(changed(file.config, path, 1e-6))) == file.before


@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_a_set_that_a_line_overrules_is_refused_with_that_line(file):
    with pytest.raises(
        UserError, match=r"policy_loss_fn_args.loss_agg_mode=token-sum.*algorithm.loss_agg_mode="
    ):
        file.plan(file.config, ["algorithm.policy_loss_fn_args.loss_agg_mode=token-sum"])


@pytest.mark.parametrize(
    ("file", "edits", "steps"),
    [
        ("epochs of rows that are read", {"trainer.total_steps": 4}, 2),
        ("epochs of rows that are read", {"buffer.total_steps": 4}, 2),
        ("epochs of rows that are read", {}, None),
        ("steps", {"trainer.total_steps": 4}, 2),
        ("steps", {"buffer.total_steps": 4}, 2),
        ("steps", {"buffer.total_steps": 400, "trainer.total_steps": 400}, 200),
        ("steps", {}, 100),
    ],
    indirect=["file"],
)
def test_the_lower_limit_ends_the_run(file, edits, steps):
    config = file.config
    for path, value in edits.items():
        config = changed(config, path, value)
    assert file.plan(config).spec.total_steps == steps


@pytest.mark.parametrize("file", ["epochs of rows that are read"], indirect=True)
def test_a_limit_that_is_added_ends_a_run_of_epochs(file):
    config = changed(file.config, "trainer.total_steps", None)
    del config["trainer"]["total_steps"]
    assert file.plan(changed(config, "trainer.total_steps", 6)).spec.total_steps == 3


@pytest.mark.parametrize("path", ["buffer.total_steps", "trainer.total_steps"])
@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_a_limit_above_the_other_is_refused(file, path):
    with pytest.raises(UserError, match=rf"{path}=400 changes nothing: .*total_steps=.* ends the run before"):
        file.plan(changed(file.config, path, 400))


@pytest.mark.parametrize("file", ["epochs of rows that are read"], indirect=True)
def test_more_epochs_are_refused_where_the_count_of_their_steps_stays(file):
    told = file.error(changed(file.config, "buffer.total_epochs", 3))
    assert "trainer.total_steps=16: without effect here; the other keys make it 24" in told


@pytest.mark.parametrize("pair", [[8], 8, [8, 8, 8]])
@pytest.mark.parametrize("file", ["steps"], indirect=True)
def test_what_a_line_stands_for_has_two_values(file, pair):
    place = f"{TC}.trinity_compat.stands_for"
    config = changed(file.config, place, {"trainer.total_training_steps": pair})
    assert "write two values, the YAML's and the launch's" in file.error(config)
