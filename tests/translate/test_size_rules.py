"""Sizes with which stock veRL ends are said with the line and the sizes that fit, and only those."""

import importlib.util
import inspect
import json
from pathlib import Path

import pytest

from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.micro_batch_sizes import critic_tokens
from trinity_compat.translate.model import Severity
from trinity_compat.translate.size_rules import RULES, VLLMS_HEADS

from .helpers import launch_of, script

ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
FITS = {
    "data.train_files": "/d/a.parquet",
    "data.val_files": "/d/b.parquet",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    f"{MODEL}.path": "org/model",
    "algorithm.adv_estimator": "grpo",
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    "trainer.n_gpus_per_node": 8,
}
GAE = {"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 4}
V0 = {"trainer.use_v1": False}  # v1 fills a step up to whole updates
V1 = {"trainer.use_v1": True}
DYNAMIC = {f"{ACTOR}.use_dynamic_bsz": True}
SP = f"{ACTOR}.ulysses_sequence_parallel_size"
MEGATRON = "--config-name=ppo_megatron_trainer"


def of(changed, **options):
    """The cautions of FITS with ``changed``; without a key that is changed to ``...``."""
    words = [f"{key}={value}" for key, value in (FITS | changed).items() if value is not ...]
    flags = [MEGATRON] if any(".megatron." in key for key in changed) else []
    module = options.pop("module", "verl.trainer.main_ppo")
    code = options.pop("code", "TW029")
    launch = launch_of([*flags, *words], module)
    translation, _ = translate_launch(launch, TranslateOptions(**options))
    found = [caution for caution in translation.warnings if caution.code == code]
    return [(each, (*flags, *words)[each.where.line - 1]) for each in found]


BROKEN = [
    # what is changed, the line that is named, a piece of the message, what fits
    (
        {f"{ACTOR}.ppo_mini_batch_size": 128},
        f"{ACTOR}.ppo_mini_batch_size=128",
        "ppo_mini_batch_size=128 is more than data.train_batch_size=64",
        "64 at most",
    ),
    (
        GAE | {"critic.ppo_mini_batch_size": 128},
        "critic.ppo_mini_batch_size=128",
        "ppo_mini_batch_size=128 is more than data.train_batch_size=64",
        "64 at most",
    ),
    (
        {"data.train_batch_size": 10, f"{ACTOR}.ppo_mini_batch_size": 10, "trainer.nnodes": 3},
        "data.train_batch_size=10",
        "40 answers are not divisible by 24 GPUs",
        "6 or 12",
    ),
    (
        {"trainer.nnodes": 3, f"{ROLLOUT}.n": 5},
        "data.train_batch_size=64",
        "320 answers are not divisible by 24 GPUs",
        "48 or 72",
    ),
    (
        {"data.train_batch_size": 36, f"{ACTOR}.ppo_mini_batch_size": 9, **DYNAMIC},
        f"{ACTOR}.ppo_mini_batch_size=9",
        "36 answers of an update are not divisible by 8 ranks",
        "8 or 10",
    ),
    (
        {f"{ACTOR}.ppo_mini_batch_size": 128, **DYNAMIC, **V0},
        f"{ACTOR}.ppo_mini_batch_size=128",
        "train_batch_size=64 is not divisible by",
        "may be 1, 2, 4, 8, 16, 32, 64",
    ),
    (
        {f"{ACTOR}.ppo_mini_batch_size": 48, **DYNAMIC, **V0},
        f"{ACTOR}.ppo_mini_batch_size=48",
        "train_batch_size=64 is not divisible by",
        "may be 1, 2, 4, 8, 16, 32, 64",
    ),
    (
        GAE | {"critic.ppo_mini_batch_size": 24, **V0},
        "critic.ppo_mini_batch_size=24",
        "train_batch_size=64 is not divisible by",
        "may be 1, 2, 4, 8, 16, 32, 64",
    ),
    (
        {
            f"{ROLLOUT}.name": "trtllm",
            f"{ROLLOUT}.tensor_model_parallel_size": 4,
            f"{ROLLOUT}.expert_parallel_size": 4,
            f"+{ROLLOUT}.moe_tensor_parallel_size": 2,
        },
        f"+{ROLLOUT}.moe_tensor_parallel_size=2",
        "is 8, not actor_rollout_ref.rollout.tensor_model_parallel_size=4, and veRL refuses to start",
        "leave one of the two out",
    ),
    (
        {f"{ACTOR}.ppo_micro_batch_size": 8},
        f"{ACTOR}.ppo_micro_batch_size=8",
        "are both set",
        "leave out",
    ),
    (
        GAE | {"critic.ppo_micro_batch_size": 8},
        "critic.ppo_micro_batch_size=8",
        "are both set",
        "leave out",
    ),
    (
        {f"{ROLLOUT}.log_prob_micro_batch_size": 8},
        f"{ROLLOUT}.log_prob_micro_batch_size=8",
        "are both set",
        "leave out",
    ),
    (
        GAE | {"critic.ppo_micro_batch_size": 4, "critic.ppo_micro_batch_size_per_gpu": ...},
        "critic.ppo_micro_batch_size=4",
        "should divide critic.ppo_mini_batch_size=32 and be 8 or more on 8 GPUs",
        "critic.ppo_micro_batch_size may be 8, 16, 32",
    ),
    (
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5},
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=5",
        "does not divide the answers of each GPU, 16",
        "may be 1, 2, 4, 8, 16;",
    ),
    (
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32},
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=32",
        "does not divide the answers of each GPU, 16",
        "may be 1, 2, 4, 8, 16;",
    ),
    (
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 12},
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=12",
        "does not divide the answers of each GPU, 32",
        "16, 32;",
    ),
    (
        {f"{ACTOR}.ppo_mini_batch_size": 24, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 16},
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16",
        "filled up to 288 for whole updates, on 8 ranks",
        "9, 12, 18;",
    ),
    (
        {f"{REF}.log_prob_micro_batch_size_per_gpu": 12, f"{ACTOR}.use_kl_loss": True},
        f"{REF}.log_prob_micro_batch_size_per_gpu=12",
        "does not divide the answers of each GPU, 32",
        f"or write {REF}.log_prob_use_dynamic_bsz=True",
    ),
    (
        DYNAMIC | {f"{ACTOR}.ppo_max_token_len_per_gpu": 1024},
        f"{ACTOR}.ppo_max_token_len_per_gpu=1024",
        "is less than the 2048 tokens",
        "should be 2048 or more",
    ),
    (
        DYNAMIC | {SP: 2, f"{MODEL}.use_remove_padding": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1000},
        f"{ACTOR}.ppo_max_token_len_per_gpu=1000",
        "1000 × 2 GPUs is less",
        "should be 1024 or more",
    ),
    (
        DYNAMIC | {f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 2047},
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=2047",
        "is less than the 2048 tokens",
        "should be 2048 or more",
    ),
    (
        GAE | {"critic.ppo_max_token_len_per_gpu": 1024, **V0},
        "critic.ppo_max_token_len_per_gpu=1024",
        "is less than the 2048 tokens",
        "should be 2048 or more",
    ),
    (
        GAE | V1 | {"data.max_response_length": 40000, "critic.ppo_max_token_len_per_gpu": 50000},
        "critic.ppo_max_token_len_per_gpu=50000",
        "ppo_infer_max_token_len_per_gpu=32768 (critic.ppo_max_token_len_per_gpu=50000 is read by v0's",
        "+critic.ppo_infer_max_token_len_per_gpu should be 41024 or more",
    ),
    (
        GAE | {"data.max_response_length": 80000, "critic.fsdp.ulysses_sequence_parallel_size": 2},
        "data.max_response_length=80000",
        "ppo_infer_max_token_len_per_gpu=32768 × 2 GPUs",
        "should be 40512 or more",
    ),
    (
        GAE | V1 | {"+critic.ppo_infer_max_token_len_per_gpu": 2000},
        "+critic.ppo_infer_max_token_len_per_gpu=2000",
        "is less than the 2048 tokens",
        "2048 or more",
    ),
    (
        {f"{ACTOR}.fsdp_config.fsdp_size": 3},
        f"{ACTOR}.fsdp_config.fsdp_size=3",
        "does not divide 8 GPUs",
        "may be -1, 1, 2, 4, 8",
    ),
    (GAE | {"critic.fsdp.fsdp_size": 5}, "critic.fsdp.fsdp_size=5", "does not divide 8 GPUs", "1, 2, 4, 8"),
    (
        {SP: 3, f"{MODEL}.use_remove_padding": True},
        f"{SP}=3",
        "cannot be divided into groups of 3",
        "1, 2, 4, 8",
    ),
    ({SP: 2, f"{MODEL}.use_remove_padding": False}, f"{SP}=2", "refuses to start", "use_remove_padding=True"),
    (
        DYNAMIC | {f"{ROLLOUT}.log_prob_use_dynamic_bsz": False},
        f"{ROLLOUT}.log_prob_use_dynamic_bsz=False",
        "differ",
        "leave out",
    ),
    (
        {f"{ACTOR}.megatron.use_mbridge": False},
        f"{ACTOR}.megatron.use_mbridge=False",
        "asserts that it is True",
        "leave out",
    ),
    (
        {f"{ACTOR}.megatron.tensor_model_parallel_size": 2, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 24},
        "data.train_batch_size=64",
        "256 answers are not divisible by 96 (4 ranks",
        "48 or 72",
    ),
]


@pytest.mark.parametrize(("changed", "line", "said", "fits"), BROKEN)
def test_sizes_that_stock_refuses_are_an_error_with_line_and_sizes(changed, line, said, fits):
    (caution, named), *_ = of(changed)
    assert caution.rank is Severity.ERROR and named == line
    assert said in caution.message and fits in caution.hint


@pytest.mark.parametrize(
    "changed",
    [
        {},
        GAE,
        # only without dynamic batches
        DYNAMIC | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5, f"{ACTOR}.ppo_micro_batch_size": 8},
        {f"{ACTOR}.ppo_max_token_len_per_gpu": 10},
        # nobody computes with the reference's
        {f"{REF}.log_prob_micro_batch_size_per_gpu": 12},
        {
            f"{REF}.log_prob_micro_batch_size_per_gpu": 12,
            f"{ACTOR}.use_kl_loss": True,
            f"{MODEL}.lora_rank": 8,
        },
        # nor the old log-probabilities
        {
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 12,
            "algorithm.rollout_correction.bypass_mode": True,
        },
        # 0.9.1's critic cuts by tokens
        GAE | {"critic.ppo_micro_batch_size_per_gpu": 5},
        # those of v1's trainer are not the launch's
        GAE | {"critic.ppo_max_token_len_per_gpu": 1024},
        GAE | {"data.max_response_length": 40000, "+critic.ppo_infer_max_token_len_per_gpu": 50000},
        GAE | {"data.max_response_length": 40000, "critic.ppo_max_token_len_per_gpu": 50000, **V0},
        {"data.max_response_length": 40000},
        # two GPUs share a row, so that four ranks hold 32 answers of an update
        {SP: 2, f"{MODEL}.use_remove_padding": True, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32},
        DYNAMIC | {SP: 2, f"{MODEL}.use_remove_padding": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1024},
        {
            f"{ROLLOUT}.name": "trtllm",
            f"{ROLLOUT}.tensor_model_parallel_size": 8,
            f"{ROLLOUT}.expert_parallel_size": 4,
            f"+{ROLLOUT}.moe_tensor_parallel_size": 2,
        },
        DYNAMIC | {f"{ACTOR}.ppo_mini_batch_size": 128},
        DYNAMIC | {f"{ACTOR}.ppo_mini_batch_size": 48, "trainer.balance_batch": False},
    ],
)
def test_sizes_that_stock_takes_are_not_named(changed):
    assert of(changed) == []


def test_the_rules_are_those_of_the_launch_s_release():
    uneven = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5}
    assert of(uneven, verl_version="0.8.0") and not of(uneven, verl_version="0.7.0")
    whole = {"data.train_batch_size": 10, f"{ACTOR}.ppo_mini_batch_size": 10, "trainer.nnodes": 3}
    assert of(whole, verl_version="0.5.0")
    over_all = {f"{ACTOR}.ppo_micro_batch_size": 16, f"{ACTOR}.ppo_micro_batch_size_per_gpu": ...}
    assert of(over_all, verl_version="0.8.0") and not of(over_all, verl_version="0.7.0")
    (too_few, _), *_ = of(over_all | {f"{ACTOR}.ppo_micro_batch_size": 4}, verl_version="0.6.1")
    assert "be 8 or more" in too_few.message


OVER_ALL = [(f"{ACTOR}.ppo_micro_batch_size", 16, 2), (f"{ROLLOUT}.log_prob_micro_batch_size", 4, 1)]


@pytest.mark.parametrize(("key", "size", "each"), OVER_ALL)
def test_a_size_that_older_releases_divide_is_an_error_where_the_release_is_known(key, size, each):
    over_all = {key: size, f"{key}_per_gpu": ...}
    ((open_, line),) = of(over_all)
    ((told, _),) = of(over_all, verl_version="0.9.1")
    ((too_new, _),) = of(over_all | {"trainer.v1.separate_async.parameter_sync_step": 1})
    assert [found.rank for found in (open_, told, too_new)] == [Severity.DECIDE, *[Severity.ERROR] * 2]
    assert (
        line == f"{key}={size}" and f"over all GPUs, and veRL's workers ask for {key}_per_gpu" in told.message
    )
    assert told.hint == f"write {key}_per_gpu={each}"


def test_a_critic_s_row_that_releases_without_v1_hold_is_for_the_user_to_decide():
    longer = GAE | {"data.max_response_length": 40000, "critic.ppo_max_token_len_per_gpu": 50000}
    ((caution, _),) = of(longer)
    assert caution.rank is Severity.DECIDE
    assert of(longer, verl_version="0.8.0") == []


def test_a_fork_s_trainer_may_have_other_rules():
    changed = {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5}
    ((caution, _),) = of(changed | {f"+{ACTOR}.forks_own": 1})
    assert caution.rank is Severity.DECIDE
    assert of(changed, module="recipe.dapo.main_dapo") == []


def in_script(before, folder, **changed):
    words = " ".join(f"{key}={value}" for key, value in (FITS | changed).items())
    launch = script(f"{before}\npython3 -m verl.trainer.main_ppo {words}\n", cwd=str(folder))
    found = translate_launch(launch, TranslateOptions())[0].warnings
    return [caution for caution in found if caution.code == "TW029"]


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("export CUDA_VISIBLE_DEVICES=0,1", 2),
        ("export CUDA_VISIBLE_DEVICES=4", 1),
        ("CUDA_VISIBLE_DEVICES=-1", None),  # not exported
        ("export CUDA_VISIBLE_DEVICES=-1", 0),
        ("export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", None),
        ("export CUDA_VISIBLE_DEVICES=$(cat devices)", None),
        ("export CUDA_VISIBLE_DEVICES=$GPUS", None),
        ("export CUDA_VISIBLE_DEVICES=0,1 RAY_ADDRESS=10.0.0.1:6379", None),
    ],
)
def test_gpus_that_the_script_hides(before, number, tmp_path):
    found = in_script(before, tmp_path)
    if number is None:
        assert not found
    else:
        (caution,) = found
        assert f"leaves {number} GPU(s)" in caution.message and caution.where.line == 2


@pytest.mark.parametrize("nested", [False, True])
def test_heads_of_a_model_that_may_be_read(nested, tmp_path):
    sizes = {"num_attention_heads": 28, "num_key_value_heads": 4}
    (tmp_path / "model").mkdir()
    text = json.dumps({"text_config": sizes} if nested else sizes)
    (tmp_path / "model" / "config.json").write_text(text)
    here = {f"{MODEL}.path": tmp_path / "model", f"{MODEL}.use_remove_padding": True}
    (found,) = in_script("", tmp_path, **here, **{f"{ROLLOUT}.tensor_model_parallel_size": 8})
    assert "the 28 attention heads" in found.message and found.hint.endswith("may be 1, 2, 4, 7, 14, 28")
    (found,) = in_script("", tmp_path, **here, **{SP: 8, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1})
    assert "28 attention heads and 4 of" in found.message and found.hint.endswith("may be 1, 2, 4, 28")
    assert not in_script("", tmp_path, **here, **{SP: 4, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1})
    (tmp_path / "elsewhere").mkdir()
    assert not in_script("", tmp_path / "elsewhere", **here, **{f"{ROLLOUT}.tensor_model_parallel_size": 8})


TP, CRITIC_SP = f"{ROLLOUT}.tensor_model_parallel_size", "critic.ulysses_sequence_parallel_size"
SERVED = {
    "reward.reward_model.enable": True,
    "reward.reward_model.rollout.name": "vllm",
    "reward.reward_model.rollout.tensor_model_parallel_size": 8,
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({f"{MODEL}.path": "Qwen/Qwen2.5-7B-Instruct", TP: 8}, "the 28 attention heads of Qwen2.5-7B"),
        ({f"{MODEL}.path": "/data/models/qwen-2.5-7b-sft", TP: 8}, "the 28 attention heads of Qwen2.5-7B"),
        (
            {f"{MODEL}.path": "/home/me/Qwen2.5-VL-32B-Instruct", TP: 16},
            "the 40 attention heads of Qwen2.5-VL-32B",
        ),
        ({f"{MODEL}.path": "Qwen/Qwen2-7B-Instruct", SP: 8}, "Qwen2-7B has 28 attention heads and 4 of"),
        (
            {f"{MODEL}.path": "Qwen/Qwen3-8B", "critic.model.path": "Qwen/Qwen2.5-7B", CRITIC_SP: 8} | GAE,
            "Qwen2.5-7B has 28 attention heads",
        ),
        (SERVED | {"reward.reward_model.model_path": "Qwen/Qwen2.5-7B-Instruct"}, "the 28 attention heads"),
        ({f"{MODEL}.path": "Qwen/Qwen3-8B", TP: 8}, ""),
        (SERVED | {"reward.reward_model.model_path": "org/m", "reward.reward_model.enable": False}, ""),
    ],
)
def test_heads_of_a_published_model_are_known_by_its_name(changed, said):
    changed = {f"{MODEL}.use_remove_padding": True, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1} | changed
    found = [caution for caution, _ in of(changed)]
    assert [said in each.message for each in found] == [True] * bool(said)
    assert all(each.rank is Severity.ERROR for each in found)
    assert of(changed, code="TW030") == []


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({TP: 4}, [TP]),
        ({TP: 4, SP: 2}, [SP, TP]),
        # names that begin like known ones
        ({f"{MODEL}.path": "Qwen/Qwen2-VL-72B-Instruct", TP: 8}, [TP]),
        ({f"{MODEL}.path": "Qwen/Qwen3-Next-80B-A3B-Instruct", TP: 3}, [TP]),
        ({TP: 1}, []),
        ({TP: 4, f"{ROLLOUT}.name": "sglang"}, []),
    ],
)
def test_heads_that_are_not_known_are_a_note(changed, keys):
    changed = {f"{MODEL}.use_remove_padding": True} | changed
    assert of(changed) == []
    found = [caution for caution, _ in of(changed, code="TW030")]
    assert len(found) == bool(keys)
    for each in found:
        assert each.rank is Severity.NOTE and all(f"{key}={changed[key]}" in each.message for key in keys)


def test_heads_of_a_model_that_a_variable_names_are_not_known(tmp_path):
    words = " ".join(f"{key}={value}" for key, value in (FITS | {f"{MODEL}.path": "$MODEL", TP: 8}).items())
    text = f"MODEL=$(ls -d Qwen2.5-7B*)\npython3 -m verl.trainer.main_ppo {words}\n"
    found, _ = translate_launch(script(text, cwd=str(tmp_path)), TranslateOptions())
    assert [each.code for each in found.warnings if each.code in ("TW029", "TW030")] == ["TW030"]


@pytest.mark.verl
def test_v1_s_trainer_gives_the_critic_the_tokens_of_its_dataclass():
    from verl.trainer.ppo.v1 import trainer_base
    from verl.workers.config import CriticConfig

    text = inspect.getsource(trainer_base)
    for name in ("max_token_len_per_gpu", "infer_max_token_len_per_gpu"):
        assert f"critic_cfg.engine.{name} = critic_cfg.ppo_infer_max_token_len_per_gpu" in text
    values = {"trainer.use_v1": True}.get
    assert critic_tokens(values) == (
        "critic.ppo_infer_max_token_len_per_gpu",
        CriticConfig.ppo_infer_max_token_len_per_gpu,
    )


SEPARATE = V1 | {
    "trainer.v1.trainer_mode": "separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 2,
    f"{ROLLOUT}.nnodes": 1,
    f"{ROLLOUT}.n_gpus_per_node": 4,
    f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
}
REWARD_MODEL = {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": False}


@pytest.mark.parametrize(
    ("changed", "said", "fits"),
    [
        ({f"{ROLLOUT}.nnodes": ...}, f"{ROLLOUT}.nnodes=0 leaves the engines no GPUs", "1 or more"),
        ({f"{ROLLOUT}.checkpoint_engine.backend": ...}, "checkpoint_engine.backend=naive", "backend=nccl"),
        (REWARD_MODEL, "enable_resource_pool=False puts the reward model", "enable_resource_pool=True"),
    ],
)
def test_engines_beside_the_trainer_need_gpus_and_a_transport(changed, said, fits):
    assert of(SEPARATE) == []
    assert of(changed | {"trainer.v1.trainer_mode": "colocate_async"} | V1) == []
    ((caution, _),) = of(SEPARATE | changed)
    assert caution.rank is Severity.ERROR and said in caution.message and fits in caution.hint


SOURCES = {
    "workers/engine/fsdp/transformer_impl.py": "init_device_mesh(",
    "utils/config.py": "real_train_batch_size % minimal_bsz == 0",
    "workers/engine_workers.py:267": "mini_batch_size % self.engine.get_data_parallel_size() == 0",
    "workers/engine/utils.py": "% (force_group_size * micro_batch_size_per_gpu) == 0",
    "workers/config/actor.py:225": "train_batch_size < self.ppo_mini_batch_size",
    "workers/config/actor.py:200": "self.ppo_micro_batch_size_per_gpu is not None",
    "utils/tensordict_utils.py": "tensordict.batch_size[0] % mini_batch_size == 0",
    "utils/seqlen_balancing.py": "max_token_len >= max_seq_len",
    "workers/engine/fsdp/utils.py": "device_mesh = init_device_mesh(",
    "workers/config/actor.py:335": "self.ulysses_sequence_parallel_size > 1",
    "workers/engine_workers.py:637": "self.config.actor.ppo_micro_batch_size_per_gpu is not None",
    "workers/config/actor.py:233": "self.ppo_mini_batch_size % self.ppo_micro_batch_size != 0",
    "workers/config/critic.py:111": "self.ppo_mini_batch_size % self.ppo_micro_batch_size != 0",
    "workers/engine_workers.py:616": "actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz",
    "workers/engine/megatron/transformer_impl.py": "assert self.engine_config.use_mbridge",
    "trainer/ppo/v1/trainer_separate_async.py": "config.actor_rollout_ref.rollout.nnodes > 0",
    "single_controller/ray/base.py": "total_available_gpus < total_required_gpus",
    "workers/config/rollout.py": "self.moe_tensor_parallel_size * self.expert_parallel_size ==",
    "models/transformers/monkey_patch.py": "num_attention_heads % ulysses_sp_size == 0",
}


@pytest.mark.verl
def test_each_rule_is_in_the_pinned_verl_at_the_line_that_it_names():
    spec = importlib.util.find_spec("verl")
    folder = Path(spec.origin).parent
    for rule in RULES:
        if rule.source == VLLMS_HEADS:
            continue
        name, _, number = rule.source.partition(":")
        line = (folder / name).read_text().splitlines()[int(number) - 1]
        assert SOURCES.get(rule.source, SOURCES.get(name)) in line
