"""The explorer's engines: vLLM in place of other engines, and their sizes."""

from __future__ import annotations

import math
from functools import partial

from trinity_compat.common.nested import section_at, value_at
from trinity_compat.run.plan.verl_view import ROLLOUT, Step, VerlView
from trinity_compat.translate.run_refusals import (
    DATA_PARALLEL,
    EXPERT_PARALLEL,
    MOE_TENSOR_PARALLEL,
    OTHER_ENGINES,
    uneven_experts,
)
from trinity_compat.translate.sections.gpus import halvings

TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
# Features that a run leaves out; the translation reports them (rows "unsupported"). They are about how veRL
# generates, and no answer depends on them.
OFF = {
    f"{ROLLOUT}.disaggregation.enabled": False,
    f"{ROLLOUT}.checkpoint_manager_class": None,
    "skip.rollout.enable": False,
}


def on_vllm(verl: VerlView, section: str = ROLLOUT, who: str = "the explorer") -> Step:
    """Replace another engine of veRL's by vLLM, and name the left-out keys of that engine.

    These are the ``engine_kwargs`` of its name, where those for vLLM hold, and the keys that veRL takes for
    that engine alone. ``section`` is the engine's, ``who`` its owner in messages.
    """
    name = value_at(verl.tree, f"{section}.name")
    if name not in OTHER_ENGINES or uneven_experts(partial(value_at, verl.tree), section):  # which is refused
        return verl, []
    line = f"{section}.name={name}: {who} runs vLLM in its place"
    own = f"engine_kwargs.{str(name).removesuffix('_async')}"
    given = section_at(verl.tree, f"{section}.{own}")
    dropped = [f"{own}.{key}={value}" for key, value in given.items() if value is not None]
    changed: dict[str, object] = {f"{section}.name": "vllm"}
    if name == "trtllm":
        experts, moe = f"{section}.expert_parallel_size", f"{section}.{MOE_TENSOR_PARALLEL}"
        if verl.size(experts) != 1:  # vLLM spreads experts over the whole engine
            sizes = (verl.size(f"{section}.{size}_parallel_size") for size in ("tensor_model", "data"))
            changed[experts] = math.prod(sizes)
        if value_at(verl.tree, moe) not in (None, 1):
            dropped.append(f"{MOE_TENSOR_PARALLEL}={value_at(verl.tree, moe)}")
            changed[moe] = 1
    if dropped:
        line += f"; left out: {', '.join(dropped)}"
    return verl.changed(changed), [line]


def sized(verl: VerlView, device: str) -> Step:
    """Replace data-parallel ranks by engines of tensor_model_parallel_size.

    vLLM makes a separate engine of each rank of a model without experts (0.24.0, v1/engine/core.py,
    ``run_engine_core``), and so do we. Ranks that share experts become one engine as wide as all of them, so
    that each GPU holds the same experts as under veRL. On a CPU an engine has one rank.
    """
    ranks, width, experts = (verl.size(key) for key in (DATA_PARALLEL, TENSOR_PARALLEL, EXPERT_PARALLEL))
    if ranks == experts == 1 or experts not in (1, ranks * width):  # the latter veRL refuses: run_refusals.py
        return verl, []
    if device == "cpu":
        return verl.changed({DATA_PARALLEL: 1, EXPERT_PARALLEL: 1}), []
    if experts > 1:
        return _of_experts(verl, experts) if ranks > 1 else (verl, [])
    note = f"{DATA_PARALLEL}={ranks}: {ranks} engines of {width} GPU(s), where veRL has one of {ranks} ranks"
    return verl.changed({DATA_PARALLEL: 1}), [f"{note}; each engine holds all experts of a model"]


def _of_experts(verl: VerlView, experts: int) -> Step:
    each = verl.size(f"{ROLLOUT}.n_gpus_per_node") if verl.rollout.nodes else verl.trainer.gpus_per_node
    # vLLM's workers are processes of one machine here (engine.py of the explorer).
    wide = next(size for size in halvings(experts) if size <= each)
    note = f"{EXPERT_PARALLEL}={experts}: an engine of {wide} GPUs, the experts spread over them"
    note += " as under veRL" if wide == experts else f" ({of_one_machine(experts, wide)})"
    sizes = {TENSOR_PARALLEL: wide, EXPERT_PARALLEL: wide, DATA_PARALLEL: 1}
    return verl.changed(sizes), [f"{note}; attention is split among them, which {DATA_PARALLEL} repeats"]


def of_one_machine(given: int, wide: int) -> str:
    """Explain an engine of ``wide`` GPUs on one machine in place of one of ``given`` on several."""
    return (
        f"an engine must fit on one machine; a GPU holds {given // wide} times as much of the model as with"
        f" {given}, and vLLM does not start where that is more than its memory"
    )


def narrowed(verl: VerlView, width: int) -> VerlView:
    """Set engines of ``width`` GPUs; experts spread over a whole engine stay so."""
    experts = verl.size(EXPERT_PARALLEL)
    spread = {EXPERT_PARALLEL: width} if experts > 1 and experts == verl.rollout.tensor_parallel else {}
    return verl.changed({TENSOR_PARALLEL: width, **spread})


def left_out(verl: VerlView) -> dict[str, object]:
    """Return the keys of this launch that a run leaves out, with the values that turn them off."""
    return {key: off for key, off in OFF.items() if value_at(verl.tree, key)}
