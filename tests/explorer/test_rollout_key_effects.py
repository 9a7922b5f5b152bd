"""The audit says of a key of veRL's rollout or reward section that a run here does it only where it does.

Every key of both sections of veRL 0.9.1, and every field of their dataclasses, is given another value in a
launch of its own; what changes is looked for in what the engine, the sampler and Ray are given and in what
veRL's agent loops, reward loop and trainer read.
"""

import asyncio
import functools
import json
import re
from pathlib import Path

import pytest
from config_reads import ROLLOUT, VERL, recorded
from explorer_job import verl_config
from omegaconf import OmegaConf
from test_agents import TOOLS, Scripted, job, tool_call
from test_scoring import TASK, trajectory

from trinity_compat.common.errors import UserError
from trinity_compat.explorer.engine.arguments import engine_arguments, engine_environment
from trinity_compat.explorer.engine.sampling import make_job
from trinity_compat.job.gpus import engine_count, engine_width
from trinity_compat.launch import read_argv
from trinity_compat.run.plan import refusals
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate import Status, TranslateOptions, translate_launch
from trinity_compat.verl_config.pinned import compose_pinned
from trinity_compat.verl_config.releases import dataclass_fields

pytestmark = pytest.mark.verl

CLAIMS = (
    Status.MAPPED,
    Status.DERIVED,
    Status.PASSED_THROUGH,
    Status.APPROXIMATED,
    Status.UNSUPPORTED_UPSTREAM,
)
GIVEN = {
    "data.train_files": "/d/t.parquet",
    "data.val_files": "/d/v.parquet",
    "data.train_batch_size": 64,
    "actor_rollout_ref.model.path": "org/m",
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}.name": "vllm",
}
# Values that mean something, for keys that a number more or less or a text of any kind does not do for.
CHANGED = {
    f"{ROLLOUT}.name": "sglang",
    f"{ROLLOUT}.dtype": "float16",
    f"{ROLLOUT}.load_format": "safetensors",
    f"{ROLLOUT}.logprobs_mode": "raw_logprobs",
    f"{ROLLOUT}.scheduling_policy": "priority",
    f"{ROLLOUT}.top_k": 20,
    f"{ROLLOUT}.top_p": 0.9,
    f"{ROLLOUT}.gpu_memory_utilization": 0.4,
    f"{ROLLOUT}.temperature": 0.7,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.max_model_len": 4096,
    f"{ROLLOUT}.cudagraph_capture_sizes": [1, 2],
    f"{ROLLOUT}.limit_images": 2,
    f"{ROLLOUT}.val_kwargs.top_k": 20,
    f"{ROLLOUT}.val_kwargs.top_p": 0.9,
    f"{ROLLOUT}.val_kwargs.temperature": 0.6,
    f"{ROLLOUT}.log_prob_micro_batch_size": 16,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.engine_kwargs.vllm": {"block_size": 32},
    f"{ROLLOUT}.engine_kwargs.sglang": {"attention_backend": "fa3"},
    f"{ROLLOUT}.engine_kwargs.trtllm": {"a": 1},
    f"{ROLLOUT}.mtp.enable": False,
    f"{ROLLOUT}.mtp.enable_rollout": False,
    "reward.reward_manager.name": "dapo",
    "reward.reward_manager.source": "importlib",
    "reward.reward_model.rollout.name": "vllm",
}
MORE = {  # extension points whose content is the user's
    f"{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache": True,
    f"{ROLLOUT}.engine_kwargs.vllm.swap_space": 4,
    f"{ROLLOUT}.engine_kwargs.vllm.no_such_argument": 1,
    "reward.reward_kwargs.max_resp_len": 100,
    "reward.custom_reward_function.reward_kwargs.scale": 2,
}
NEEDS = {  # keys that say nothing without another
    "reward.reward_model.enable": {
        "reward.reward_model.model_path": "/rm",
        "reward.reward_model.rollout.name": "vllm",
    },
    "reward.custom_reward_function": {"reward.custom_reward_function.path": "/mine.py"},
    "reward.sandbox_fusion": {"reward.sandbox_fusion.url": "http://sandbox"},
    f"{ROLLOUT}.quantization_config_file": {f"{ROLLOUT}.quantization": "fp8"},
    f"{ROLLOUT}.mtp": {f"{ROLLOUT}.mtp.enable": True, f"{ROLLOUT}.mtp.enable_rollout": True},
}
OURS = (f"{ROLLOUT}.checkpoint_manager_class",)  # the trainer reads the one that trainer/config.py puts there
FREE = ("reward.reward_kwargs", "reward.custom_reward_function.reward_kwargs", f"{ROLLOUT}.custom")
TRAINER_FILES = (
    "trainer/ppo/ray_trainer.py",
    "trainer/main_ppo_v0.py",
    "workers/engine_workers.py",
    "utils/config.py",
)


@functools.cache
def keys():
    """Every key of the two sections, and every field that their dataclasses have beyond the YAML."""
    tree = compose_pinned({f"{ROLLOUT}.name": "vllm"})
    found = {}
    for section in (ROLLOUT, "reward"):
        found |= leaves(functools.reduce(dict.get, section.split("."), tree), section)
    return found | MORE


def leaves(node, path):
    if not isinstance(node, dict) or not node:
        return {path: node}
    fields = dict.fromkeys(dataclass_fields().get(node.get("_target_"), ()))
    found = {}
    for name, value in (fields | node).items():
        if name != "_target_":
            found |= leaves(value, f"{path}.{name}")
    return found


def changed(key, value):
    if key in MORE or key in CHANGED:
        return MORE.get(key, CHANGED.get(key))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 2
    if isinstance(value, dict):
        return {"a": 1}
    return [1] if isinstance(value, list) else "other"


def words_of(values):
    return [f"++{key}={hydra(value)}" for key, value in values.items()]


def hydra(value):
    text = json.dumps(value)
    return (
        re.sub(r'"([\w/.:-]*)"', r"\1", text)
        if isinstance(value, dict | list)
        else json.loads(json.dumps(value))
    )


def section_of(key):
    return next((section for section in NEEDS if key.startswith(section)), "")


def launched(values):
    """(the key's findings, the veRL configuration of the plan, None where the run is refused) of a launch."""
    (launch,) = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words_of(GIVEN | values)]).launches
    translation, _ = translate_launch(launch, TranslateOptions())
    findings = {finding.key: finding for finding in translation.findings}
    try:
        made = make_plan(translation.config, RunOptions(), cwd=Path("/w"), device="cuda")
        refusals.check(made.spec.verl, {}, cwd=Path("/w"))
    except UserError:
        return findings, None
    return findings, made.spec.verl


def outcome(verl):
    """What the engine's processes, its requests and Ray are given."""
    rollout = verl["actor_rollout_ref"]["rollout"]
    return {
        "engine": [engine_arguments(verl, model_path="/m", device=device) for device in ("cuda", "cpu")],
        "environment": engine_environment(verl, "cuda"),
        "sampling": [make_job(verl, kind, 3, {}) for kind in ("train", "eval")],
        "GPUs": (
            engine_count(rollout, "cuda"),
            engine_width(rollout, "cuda"),
            verl["trainer"]["n_gpus_per_node"],
        ),
        "model length": rollout["prompt_length"] + rollout["response_length"],
    }


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def reads(toy, tmp_path_factory, monkeypatch_module):
    """Keys that are read when veRL's agent loops and its reward loop work for our explorer."""
    from verl.experimental.agent_loop import agent_loop

    folder = tmp_path_factory.mktemp("reads")
    monkeypatch_module.syspath_prepend(folder)
    with recorded(folder) as read:
        asyncio.run(roll_out(toy, folder))
        asyncio.run(score(toy, folder))
    yield frozenset(read)
    del agent_loop._agent_loop_registry["mine"]  # of which tests in the same process say that nobody made it


OWN_LOOP = """
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

class Mine(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        assert self.config.actor_rollout_ref.rollout.custom.flag == 1
        return await super().run(sampling_params, **kwargs)
"""


async def roll_out(toy, folder):
    """One task through the single-turn loop, the tool loop (with a call) and a loop of the user's own."""
    from trinity_compat.explorer.agents.verl_loops import AgentLoops

    tools = folder / "tools.py"
    tools.write_text(TOOLS.replace("smallest", "least"))
    long = ("data.max_prompt_length=512", "data.max_response_length=512")
    (folder / "my_loop.py").write_text(OWN_LOOP)
    loops = folder / "loops.yaml"
    loops.write_text("- {name: mine, _target_: my_loop.Mine}")
    for loop in ("single_turn_agent", "tool_agent", "mine"):
        config = verl_config(
            toy,
            *long,
            f"{ROLLOUT}.agent.default_agent_loop={loop}",
            f"{ROLLOUT}.multi_turn.function_tool_path={tools}",
            f"{ROLLOUT}.agent.agent_loop_config_path={loops}",
            f"+{ROLLOUT}.custom.flag=1",
        )
        engine = Scripted(tool_call(digits="42").replace("smallest", "least"), "2")
        await AgentLoops(OmegaConf.create(config), engine).run(job(n=1))


async def score(toy, folder):
    """One response with each kind of manager and of function."""
    from trinity_compat.explorer.rewards.scoring import LocalScorer

    mine = folder / "mine.py"
    mine.write_text(
        "from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager\n"
        "class Mine(NaiveRewardManager): pass\n"
        "def compute_score(**kwargs): return 1.0\n"
    )
    own = (
        f"reward.custom_reward_function.path={mine}",
        "+reward.custom_reward_function.reward_kwargs.scale=2",
    )
    imported = ("source=importlib", "name=Mine", f"module.path={mine}")
    for words in (
        own,
        (*own, "reward.reward_manager.name=dapo", "+reward.reward_kwargs.max_resp_len=9"),
        (*own, *(f"reward.reward_manager.{word}" for word in imported)),
    ):
        scorer = LocalScorer(OmegaConf.create(verl_config(toy, *words)))
        await scorer.group(TASK, [trajectory("1234<|im_end|>")])
    config = verl_config(toy, "reward.custom_reward_function.path=null", "reward.sandbox_fusion.url=http://x")
    LocalScorer(OmegaConf.create(config))


@functools.cache
def trainer_sources():
    return "\n".join((Path(VERL) / name).read_text() for name in TRAINER_FILES)


def read_by_trainer(key):
    name = re.escape(key.removeprefix(f"{ROLLOUT}."))
    return (
        key.startswith(ROLLOUT)
        and key not in OURS
        and re.search(rf"rollout(_config)?(\.{name}\b|\.get\(.{name}.)", trainer_sources())
    )


@functools.cache
def usual(section):
    """The outcome of a launch without the key of ``section`` that is tested, but with what it needs."""
    return outcome(launched(NEEDS.get(section, {}))[1])


def effects(key, verl, reads):
    """Where a launch with another value of ``key`` differs."""
    if verl is None:
        return ["refused"]
    before = usual(section_of(key))
    found = [name for name, value in outcome(verl).items() if value != before[name]]
    if key in reads or any(key.startswith(f"{free}.") or key == free for free in FREE if free in reads):
        found.append("read by an agent loop or the scorer")
    return [*found, "read by the trainer"] if read_by_trainer(key) else found


@pytest.mark.parametrize("key", sorted(keys()))
def test_a_key_is_not_both_claimed_and_without_effect(key, reads):
    values = {**NEEDS.get(section_of(key), {}), key: changed(key, keys()[key])}
    findings, verl = launched(values)
    found = effects(key, verl, reads)
    finding = findings[key] if key in findings else findings[min(k for k in findings if k.startswith(key))]
    if finding.status in CLAIMS:
        assert found, f"{finding.status}: {finding.reason}"
        # A refused launch shows no effect: what a translation has and a run here has not, the reason says.
        assert found != ["refused"] or "trinity-compat refuses it" in finding.reason, finding.reason
    if finding.status is Status.UNSUPPORTED:
        assert found in (["refused"], []), finding.reason


def test_the_probes_see_what_is_there(reads):
    """A recorder that recorded nothing, or everything, would make the test above worthless."""
    assert f"{ROLLOUT}.multi_turn.max_tool_response_length" in reads
    assert "reward.sandbox_fusion.max_concurrent" in reads
    assert not reads & {
        f"{ROLLOUT}.prometheus.enable",
        f"{ROLLOUT}.enforce_eager",
        f"{ROLLOUT}.profiler.enable",
    }
    assert f"{ROLLOUT}.multi_turn.num_repeat_rollouts" not in reads
