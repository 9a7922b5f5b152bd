"""How many GPUs a run asks of its Ray, and whether that Ray has them: one that hasn't leaves an actor pending
for ever, without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from trinity_compat.errors import UserError
from trinity_compat.spec import RunSpec

Side = Literal["trainer", "explorer"]
_TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
_ENGINES = f"actor_rollout_ref.rollout.nnodes × rollout.n_gpus_per_node ÷ {_TENSOR_PARALLEL}"


def engine_count(rollout: Mapping[str, Any], device: str) -> int:
    """Engines of one explorer: rollout.nnodes × rollout.n_gpus_per_node ÷ tensor parallel size.

    ``nnodes`` 0 (veRL's default: rollout shares the trainer's devices) gives one.
    """
    places = (rollout.get("nnodes") or 0) * (rollout.get("n_gpus_per_node") or 1)
    return max(1, places // engine_width(rollout, device))


def engine_width(rollout: Mapping[str, Any], device: str) -> int:
    """Workers of one engine, with a GPU each."""
    return 1 if device == "cpu" else int(rollout["tensor_model_parallel_size"])


def check_gpus(spec: RunSpec, side: Side, have: float) -> None:
    """Whether the Ray that ``side`` has joined holds the run, or its own part where the other side is a
    command of its own. ``have``: the GPUs of that Ray, free or not. Raises UserError with both numbers."""
    if spec.device != "cuda":
        return
    wanted = _wanted(spec, side)
    if sum(wanted.values()) > have:
        parts = " + ".join(f"{wanted[each]} for the {each} ({_how(spec, each)})" for each in wanted)
        raise UserError(
            f"the run wants {sum(wanted.values())} GPUs, and Ray has {have:g}: {parts}",
            hint=_hint(spec, wanted, int(have)),
        )


def _wanted(spec: RunSpec, side: Side) -> dict[Side, int]:
    trainer, explorer = spec.verl["trainer"], _of_explorer(spec)
    both: dict[Side, int] = {
        "trainer": int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"]),
        "explorer": explorer * spec.explorers,
    }
    if spec.mode == "both":
        return both
    if spec.mode == "colocate":  # the engine uses the trainer's
        return {"trainer": both["trainer"]}
    return {side: both["trainer"] if side == "trainer" else explorer}


def _of_explorer(spec: RunSpec) -> int:
    rollout = spec.verl["actor_rollout_ref"]["rollout"]
    return engine_count(rollout, spec.device) * engine_width(rollout, spec.device)


def _how(spec: RunSpec, side: Side) -> str:
    if side == "trainer":
        trainer = spec.verl["trainer"]
        nodes = f" × trainer.nnodes={trainer['nnodes']}" if trainer["nnodes"] != 1 else ""
        return f"trainer.n_gpus_per_node={trainer['n_gpus_per_node']}{nodes}"
    rollout = spec.verl["actor_rollout_ref"]["rollout"]
    count, width = engine_count(rollout, spec.device), engine_width(rollout, spec.device)
    engines = f"{count} engine{'s' if count > 1 else ''} × {_TENSOR_PARALLEL}={width}"
    together = spec.explorers > 1 and spec.mode == "both"
    return f"--explorers {spec.explorers} × {engines}" if together else engines


def _hint(spec: RunSpec, wanted: Mapping[Side, int], have: int) -> str:
    if not have:
        return "nvidia-smi, CUDA_VISIBLE_DEVICES and ray_kwargs.ray_init.num_gpus say why Ray sees none"
    ways = []
    if wanted == {"trainer": 1, "explorer": 1}:
        ways.append("--mode colocate lets both sides use one GPU in turns")
    if fits := _fits(spec, have - wanted.get("explorer", 0)) if "trainer" in wanted else 0:
        ways.append(f"--set trainer.n_gpus_per_node={fits} fits")
    if "explorer" in wanted:
        ways.append(f"the engines are {_ENGINES}, 1 where nnodes is 0")
    return "; ".join([*ways, "RAY_ADDRESS names a larger cluster"])


def _fits(spec: RunSpec, room: int) -> int:
    """The most GPUs of a node for which batch sizes that divide by today's number still divide; 0: none."""
    now, nodes = int(spec.verl["trainer"]["n_gpus_per_node"]), int(spec.verl["trainer"]["nnodes"])
    return max((size for size in range(1, now) if now % size == 0 and size * nodes <= room), default=0)
