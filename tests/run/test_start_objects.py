"""What veRL and vLLM would refuse in their first seconds is found on their own objects, with its key."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from trinity_compat.job.known_models import stand_in
from trinity_compat.launch import read_argv
from trinity_compat.run.checks import explorer_side, models
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate import TranslateOptions, translate_launch

pytestmark = pytest.mark.verl

ARR = "actor_rollout_ref"
PLAIN = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=64",
    "data.max_prompt_length=512",
    "data.max_response_length=512",
    f"{ARR}.actor.ppo_mini_batch_size=32",
    f"{ARR}.actor.ppo_micro_batch_size_per_gpu=4",
    f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu=4",
    f"{ARR}.rollout.n=4",
    f"{ARR}.rollout.name=vllm",
    f"{ARR}.model.path=Qwen/Qwen2.5-7B-Instruct",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_training_steps=4",
]
TEACHER = "distillation.teacher_models.teacher_model"
DISTILLED = [
    "distillation.enabled=True",
    "distillation.n_gpus_per_node=4",
    "distillation.nnodes=1",
    "distillation.distillation_loss.loss_mode=k1",
    "distillation.distillation_loss.use_policy_gradient=True",
    f"{TEACHER}.model_path=Qwen/Qwen3-32B",
]
# Teachers by data source: their inference has the defaults of veRL's dataclass, not those of its file.
TWO_TEACHERS = [
    *DISTILLED[:-1],
    *(
        f"+distillation.teacher_models.{name}.{given}"
        for name in ("sort", "count")
        for given in (f"key={name}", "model_path=Qwen/Qwen3-32B", "num_replicas=1", "inference.name=vllm")
    ),
]
TWO_NODES = "trainer.nnodes=2"
# name → (words beside the plain ones, the key at fault, a piece of the message); None: it starts
CASES = {
    "a plain launch": ([], None, None),
    "PPO with a critic": (
        [
            "algorithm.adv_estimator=gae",
            "critic.ppo_micro_batch_size_per_gpu=4",
            "critic.model.path=Qwen/Qwen3-8B",
        ],
        None,
        None,
    ),
    "veRL's v1 trainer": (["trinity_compat.trainer=v1"], None, None),
    "LoRA": ([f"{ARR}.model.lora_rank=8"], None, None),
    "an estimator nobody registered": (
        ["algorithm.adv_estimator=hgpo"],
        "algorithm.adv_estimator",
        "hgpo",
    ),
    "gdpo without its rewards": (
        ["algorithm.adv_estimator=gdpo"],
        "algorithm.adv_estimator",
        "gdpo_reward_keys",
    ),
    "gdpo with them": (
        ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[format,answer]"],
        None,
        None,
    ),
    "a loss nobody registered": (
        [f"{ARR}.actor.policy_loss.loss_mode=mine"],
        f"{ARR}.actor.policy_loss.loss_mode",
        "mine",
    ),
    "a schedule that the optimizer lacks": (
        [f"{ARR}.actor.optim.lr_scheduler_type=linear"],
        f"{ARR}.actor.optim.lr_scheduler_type",
        "lr_scheduler_type",
    ),
    "an optimizer that torch lacks": ([f"{ARR}.actor.optim.optimizer=Adamm"], f"{ARR}.actor.optim", "Adamm"),
    "a reward manager nobody registered": (
        ["reward.reward_manager.name=mine"],
        "reward.reward_manager.name",
        "mine",
    ),
    "an agent loop nobody registered": (
        [f"{ARR}.rollout.agent.default_agent_loop=mine"],
        f"{ARR}.rollout.agent.default_agent_loop",
        "mine",
    ),
    "a format of tool calls that nothing reads": (
        [f"{ARR}.rollout.agent.default_agent_loop=tool_agent", f"{ARR}.rollout.multi_turn.format=mine"],
        f"{ARR}.rollout.multi_turn.format",
        "multi_turn.format=mine is not among",
    ),
    "more tokens than the model has positions": (
        [f"{ARR}.model.path=Qwen/Qwen2.5-Math-7B", f"{ARR}.rollout.max_model_len=8704"],
        f"{ARR}.rollout.max_model_len",
        "4096",
    ),
    "sequences that Ulysses splits, which a CPU does not": (
        [f"{ARR}.actor.ulysses_sequence_parallel_size=2", f"{ARR}.model.use_remove_padding=True"],
        None,
        None,
    ),
    "heads that Ulysses cannot share": (
        [
            f"{ARR}.actor.ulysses_sequence_parallel_size=4",
            f"{ARR}.model.path=Q/Qwen2.5-0.5B",
            "trainer.nnodes=2",
        ],
        f"{ARR}.model",
        "num_attention_heads 14 must be divisible by ulysses_sp_size 4",
    ),
    "a mapping of the model's configuration": (
        [f"+{ARR}.model.override_config.rope_scaling={{type:yarn,factor:4.0}}"],
        f"{ARR}.model.override_config.rope_scaling.type",
        "has no attribute 'type'",
    ),
    "Megatron": (
        ["--config-name=ppo_megatron_trainer", f"{ARR}.actor.megatron.tensor_model_parallel_size=2"],
        None,
        None,
    ),
    "an engine nobody registers": ([f"{ARR}.actor.strategy=mine"], f"{ARR}.actor.strategy", "backend: mine"),
    "an engine that a module may register, which is not run": (
        [
            "algorithm.adv_estimator=gae",
            "critic.ppo_micro_batch_size_per_gpu=4",
            "critic.strategy=mine",
            "+critic.model.external_lib=a_module_that_ends_the_process",
            f"{ARR}.actor.strategy=mine",
            f"{ARR}.actor.use_kl_loss=True",
            f"{ARR}.ref.log_prob_micro_batch_size_per_gpu=4",
            f"{ARR}.model.external_lib=a_module_that_ends_the_process",
        ],
        None,
        None,
    ),
    "a distilled launch": ([*DISTILLED, f"{TEACHER}.inference.tensor_model_parallel_size=2"], None, None),
    "a teacher that does not fill its pool": (
        [*DISTILLED, f"{TEACHER}.inference.tensor_model_parallel_size=3"],
        "distillation.n_gpus_per_node",
        "Single teacher's per_replica_world_size (3) must divide the distillation resource pool size",
    ),
    "teachers by data source": (TWO_TEACHERS, None, None),
    "a teacher of fewer positions than its launch wants": (
        [*TWO_TEACHERS, "+distillation.teacher_models.count.inference.max_model_len=50000"],
        "distillation.teacher_models.count.inference.max_model_len",
        "40960",
    ),
    "a reasoning parser that vLLM lacks": (
        [f"+{ARR}.rollout.engine_kwargs.vllm.reasoning_parser=qwen4"],
        f"{ARR}.rollout.engine_kwargs.vllm.reasoning_parser",
        "vLLM has no reasoning parser 'qwen4'; did you mean 'qwen3'?",
    ),
    "an argument that vLLM has no more": (
        [f"+{ARR}.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True"],
        None,
        None,
    ),
}


def request(words, device):
    sets = tuple(word for word in words if word.startswith("trinity_compat."))
    words = [word for word in words if word not in sets]
    flags = [word for word in words if word.startswith("--")]
    words = [*flags, *PLAIN, *(word for word in words if word not in flags)]
    (launch,) = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words]).launches
    _, text = translate_launch(launch, TranslateOptions())
    options = RunOptions(job="/nowhere", sets=sets)
    made = make_plan(yaml.safe_load(text), options, cwd=Path.cwd(), device=device)
    return {"spec": asdict(made.spec), "native": device == "cpu"}


# A CPU splits no sequences and has no Megatron; what another vLLM than the GPU's refuses is a gap there.
ONLY = {
    "heads that Ulysses cannot share": "cuda",
    "Megatron": "cuda",
    "more tokens than the model has positions": "cpu",
    "a teacher of fewer positions than its launch wants": "cpu",
}
ON = [(case, device) for case in CASES for device in ("cuda", "cpu") if ONLY.get(case, device) == device]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answers by device, all from one process a device: verl chooses its platform once.

    Those of CASES, and on a machine for GPUs those of OF_EVERY_RELEASE behind them.
    """
    here = models.write(stand_in("Qwen2.5-Math-7B"), tmp_path_factory.mktemp("model"))
    others = [[word.replace("HERE", str(here)) for word in words] for words, _ in OF_EVERY_RELEASE]
    out = {}
    for device in ("cuda", "cpu"):
        path = tmp_path_factory.mktemp(device) / "requests.json"
        asked = [CASES[case][0] for case in CASES if (case, device) in ON]
        asked += others if device == "cuda" else []
        path.write_text(json.dumps([request(words, device) for words in asked], default=str))
        elsewhere = {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"} if device == "cuda" else {}
        env = {**os.environ, **elsewhere, "HF_HUB_OFFLINE": "1"}
        helper = Path(__file__).with_name("start_reports.py")
        done = subprocess.run([sys.executable, helper, path], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        out[device] = json.loads(done.stdout.splitlines()[-1])
    return out


@pytest.fixture(scope="module")
def reports(answers):
    """Reports by (case, device)."""
    return {
        (case, device): StartReport.loads(json.dumps(found))
        for device in answers
        for case, found in zip(
            [case for case in CASES if (case, device) in ON], answers[device], strict=False
        )
    }


@pytest.mark.parametrize(("case", "device"), ON)
def test_what_is_refused_and_by_which_key(reports, case, device):
    report, (_, key, words) = reports[case, device], CASES[case]
    if key is None:
        assert report.refused == []
        return
    assert [found.key for found in report.refused] == [key]
    assert words in report.refused[0].why


def test_a_model_without_lora_in_vllm_is_named_before_the_engine_starts(monkeypatch):
    from vllm.model_executor import models
    from vllm.model_executor.model_loader import utils

    monkeypatch.setattr(utils, "get_model_cls", lambda _: dict)
    with pytest.raises(ValueError, match=r"vLLM.s dict takes no LoRA adapters; write .*lora\.merge=True"):
        explorer_side._check_adapters(None)
    monkeypatch.setattr(models, "supports_lora", lambda _: True)
    explorer_side._check_adapters(None)


def test_stand_ins_and_the_engine_s_arguments_are_told(reports):
    report = reports["a plain launch", "cuda"]
    assert report.stand_ins == {f"{ARR}.model.path": "Qwen2.5-7B"}
    assert report.engine["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert report.engine["max_model_len"] == 1024
    assert report.versions["verl"] == "0.9.1"


TOO_MANY = [TWO_NODES, f"{ARR}.actor.ulysses_sequence_parallel_size=8"]
TOO_WIDE = [TWO_NODES, f"{ARR}.rollout.tensor_model_parallel_size=8"]
LONG = f"{ARR}.rollout.max_model_len=8704"
KWARGS = f"{ARR}.rollout.engine_kwargs.vllm"
# words of a run for GPUs → the keys that the CPU's vLLM refuses as the GPU's would, none where it may not
OF_EVERY_RELEASE = [
    (TOO_WIDE, [f"{ARR}.rollout.tensor_model_parallel_size"]),
    (
        [*TOO_WIDE, f"{ARR}.model.path=deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
        [f"{ARR}.rollout.tensor_model_parallel_size"],
    ),
    (
        [*TOO_WIDE, f"{ARR}.model.path=Qwen/Qwen2.5-Coder-1.5B-Instruct"],
        [f"{ARR}.rollout.tensor_model_parallel_size"],
    ),
    ([*TOO_WIDE, f"{ARR}.model.path=org/unheard"], []),  # of a model that nobody knows heads are a guess
    ([*TOO_WIDE, f"{ARR}.model.path=org/Qwen2.9-7B"], []),
    (TOO_MANY, [f"{ARR}.model"]),
    ([*TOO_MANY, f"{ARR}.model.path=org/unheard"], []),
    ([LONG, f"{ARR}.model.path=Qwen/Qwen2.5-Math-7B"], []),  # its variants may have more positions
    ([LONG, f"{ARR}.model.path=HERE"], [f"{ARR}.rollout.max_model_len"]),
    ([f"{ARR}.rollout.max_num_seqs=0"], [f"{ARR}.rollout.max_num_seqs"]),
    (
        [f"{ARR}.rollout.max_num_seqs=4096", f"{ARR}.rollout.max_num_batched_tokens=2048"],
        [f"{ARR}.rollout.max_num_batched_tokens"],
    ),
    ([f"+{KWARGS}.kv_cache_dtype=int3"], [f"{KWARGS}.kv_cache_dtype"]),
    ([f"+{KWARGS}.seed=many"], [f"{KWARGS}.seed"]),
    ([f"+{KWARGS}.max_logprobs=-9"], []),  # a limit that the GPU's release lacks
    ([f"+{KWARGS}.attention_backend=MAGIC"], [f"{ARR}.rollout"]),  # no release has that name
]


def test_what_every_release_of_vllm_refuses_is_refused_by_another_one_too(answers):
    """The CPU's vLLM judges a run for GPUs where the GPU's is not there; what it alone refuses is a gap."""
    answers = answers["cuda"][-len(OF_EVERY_RELEASE) :]
    assert [[found["key"] for found in each["refused"]] for each in answers] == [
        keys for _, keys in OF_EVERY_RELEASE
    ]
    assert answers[0]["refused"][0]["why"].endswith("may be 1, 2, 4, 7, 14, 28")
    words = ("another release", "of the stand-in")
    gaps = [any(word in gap for gap in each["unchecked"] for word in words) for each in answers]
    assert gaps == [not keys for _, keys in OF_EVERY_RELEASE]
