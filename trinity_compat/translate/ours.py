"""What veRL can and our own decoupled run cannot: said by the audit, refused before a run starts.

Each entry names the key, the values that mean "off", why the run cannot do it, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ROLLOUT = "actor_rollout_ref.rollout"
STOCK = "leave it out, or run on stock veRL"
ESTIMATOR = "algorithm.adv_estimator"
# Keys of older releases that 0.9.1 has no more: their values stand in the launch only.
GONE = ("data.sampler.class_path", "data.datagen.path")
GONE_WHY = (
    "the explorer draws the dataset's rows in veRL's default order, and veRL 0.9.1 has no such key any more"
)

Value = Callable[[str], Any]  # the value of a key of the pinned veRL, None where it has none


@dataclass(frozen=True, slots=True)
class Refusal:
    """``off``: the values that ask for nothing. ``also``: how older veRL releases spell the key. ``below``:
    the section that serves nothing else."""

    key: str
    why: str
    hint: str = STOCK
    off: tuple[Any, ...] = (None, False, "", 0)
    also: tuple[str, ...] = ()
    below: str = ""


_ALWAYS = (
    Refusal(
        "reward.reward_model.enable",
        "no process of the run serves a reward model; the explorer scores with reward functions",
        "score with reward.custom_reward_function, which may call a served model",
        also=("reward_model.enable",),
        below="reward.reward_model.",
    ),
    Refusal(f"{_ROLLOUT}.name", "the explorer runs vLLM", f"write {_ROLLOUT}.name=vllm", off=("vllm",)),
    Refusal("distillation.enabled", "no process of the run serves teachers", below="distillation."),
    Refusal(f"{_ROLLOUT}.quantization", "the explorer's weights have the trainer's precision"),
    Refusal(f"{_ROLLOUT}.enable_rollout_routing_replay", "the buffer keeps no expert routes"),
    Refusal(f"{_ROLLOUT}.agent.custom_async_server.path", "the explorer starts its own engines"),
    Refusal(
        f"{_ROLLOUT}.disaggregation.enabled",
        "the explorer starts its own engines",
        below=f"{_ROLLOUT}.disaggregation.",
    ),
    Refusal(f"{_ROLLOUT}.over_sample_rate", "every group is waited for: none is cut short"),
    Refusal("actor_rollout_ref.model.mtp.enable_rollout", "the explorer's engines don't speculate"),
    Refusal("skip.rollout.enable", "rollouts come out of the buffer", below="skip.rollout."),
    *(
        Refusal(
            f"{_ROLLOUT}.{name}",
            "the explorer's engines split by tensor_model_parallel_size",
            off=(None, 0, 1),
        )
        for name in ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")
    ),
)


def refusals(value: Value, explorers: int = 1) -> Iterator[Refusal]:
    """What a launch with these values asks for and a run of ours refuses."""
    for refusal in (*_ALWAYS, *_conditional(value, explorers)):
        if value(refusal.key) not in refusal.off:
            yield refusal


def why_refused(value: Value, key: str) -> str | None:
    """Why our run refuses the value of ``key``; None where it takes it."""
    return next((refusal.why for refusal in refusals(value) if refusal.key == key), None)


def _conditional(value: Value, explorers: int) -> Iterator[Refusal]:
    if value(ESTIMATOR) == "remax":
        why = "it needs a greedy answer beside each group, which the explorer does not make"
        yield Refusal(ESTIMATOR, why, "write algorithm.adv_estimator=rloo or grpo, or run on stock veRL")
    metric = "algorithm.filter_groups.metric"
    if value("algorithm.filter_groups.enable"):
        if explorers > 1:
            why = "where a step's tasks begin depends on the step before, so one explorer draws them all"
            yield Refusal("algorithm.filter_groups.enable", why, "leave out --explorers")
        if value(metric) == "seq_final_reward" and value("algorithm.use_kl_in_reward"):
            why = "the KL penalty is added in the trainer, after the filter"
            yield Refusal(metric, why, f"write {metric}=reward")
    else:
        why = "without algorithm.filter_groups a step generates exactly data.train_batch_size prompts"
        same = (None, value("data.train_batch_size"))
        yield Refusal("data.gen_batch_size", why, "write the number as data.train_batch_size", off=same)
