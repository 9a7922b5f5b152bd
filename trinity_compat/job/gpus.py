"""Number of GPUs of each side of a run, read from its veRL configuration, and the check against Ray.

Ray keeps an actor pending without a message if its GPUs do not exist.

The trainer has ``trainer.nnodes`` × ``trainer.n_gpus_per_node``. An explorer has ``rollout.nnodes`` ×
``rollout.n_gpus_per_node``, in engines of ``rollout.tensor_model_parallel_size``. A reward model has those of
``reward.reward_model`` in the same way, for all explorers together; teachers have those of ``distillation``
(``job/distillation.py``). No other module reads or writes these keys; ``translate/sections/gpus.py`` divides
a launch's GPUs, called by ``run/plan/gpu_split.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.job.distillation import POOL, pool_gpus, teacher_entries
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.served_models import configurations

Side = Literal["trainer", "explorer", "reward model", "teachers"]
_ROLLOUT = "actor_rollout_ref.rollout"
_TENSOR_PARALLEL = f"{_ROLLOUT}.tensor_model_parallel_size"
_REWARD = "reward.reward_model"
ENGINES = "explorer.rollout_model.engine_num"


def trainer_gpus(verl: Tree) -> int:
    """Return the GPUs of the trainer on all nodes; before the split, those of the whole launch."""
    return int(value_at(verl, "trainer.nnodes")) * int(value_at(verl, "trainer.n_gpus_per_node"))


def shares(verl: Tree, *, device: str, mode: str, explorers: int) -> dict[Side, int]:
    """Return the GPUs of each side of a run (processes where ``device`` is ``cpu``).

    In mode colocate the engines use the trainer's devices and have no share. Without a reward model, or
    without teachers, their side is missing.
    """
    found: dict[Side, int] = {"trainer": trainer_gpus(verl)}
    if mode != "colocate":
        found["explorer"] = _of_explorer(verl, device) * explorers
    return found | _of_served(verl, device)


def engine_places(count: int, width: int) -> dict[str, int]:
    """Return veRL key → value for ``count`` engines of ``width`` GPUs in one explorer.

    ``engine_count`` reads them.
    """
    return {f"{_ROLLOUT}.nnodes": 1, f"{_ROLLOUT}.n_gpus_per_node": count * width}


def engine_count(rollout: Tree, device: str) -> int:
    """Return the engines of one explorer: rollout.nnodes × n_gpus_per_node ÷ tensor parallel size.

    ``nnodes`` 0 (veRL's default: rollout shares the trainer's devices) gives one.
    """
    places = (value_at(rollout, "nnodes") or 0) * (value_at(rollout, "n_gpus_per_node") or 1)
    return max(1, places // engine_width(rollout, device))


def engine_width(rollout: Tree, device: str) -> int:
    """Return the workers of one engine, with a GPU each."""
    return 1 if device == "cpu" else int(value_at(rollout, "tensor_model_parallel_size"))


def reward_model_places(engines: int, width: int) -> dict[str, int]:
    """Return veRL key → value for a reward model on one node: ``engines`` engines of ``width`` GPUs each."""
    return {
        f"{_REWARD}.nnodes": 1,
        f"{_REWARD}.n_gpus_per_node": engines * width,
        f"{_REWARD}.rollout.tensor_model_parallel_size": width,
    }


def reward_model_engines(verl: Tree, device: str) -> int:
    """Return the number of engines that serve the reward model; 0 without one."""
    if not value_at(verl, f"{_REWARD}.enable"):
        return 0
    nodes, each = (int(value_at(verl, f"{_REWARD}.{name}") or 1) for name in ("nnodes", "n_gpus_per_node"))
    return max(1, nodes * each // reward_model_width(verl, device))


def reward_model_width(verl: Tree, device: str) -> int:
    """Return the workers of one engine of the reward model, with a GPU each."""
    return engine_width(section_at(verl, f"{_REWARD}.rollout"), device)


def _of_served(verl: Tree, device: str) -> dict[Side, int]:
    """Return the GPUs of the models that are served beside the policy, where there are any."""
    sizes = reward_model_sizes(verl, device)
    found: dict[Side, int] = {"reward model": sum(engines * width for engines, width in sizes)}
    found["teachers"] = pool_gpus(verl)
    return {side: gpus for side, gpus in found.items() if gpus}


def reward_model_sizes(verl: Tree, device: str) -> list[tuple[int, int]]:
    """Return (engines, GPUs of each) of the reward model and of the YAML's further models."""
    every = configurations(verl) if reward_model_engines(verl, device) else []
    return [(reward_model_engines(each, device), reward_model_width(each, device)) for each in every]


def check_gpus(spec: RunSpec, side: Side, have: float, *, option: str = "") -> None:
    """Check that the Ray that ``side`` has joined has the GPUs of the run.

    Where the other side is a command of its own, only this side's count. ``have``: the GPUs of that Ray, free
    or not; with ``option``, that one's. Raises UserError with both numbers.
    """
    if spec.device != "cuda":
        return
    wanted = _wanted(spec, side)
    if sum(wanted.values()) > have:
        parts = " + ".join(f"{wanted[each]} for the {each} ({_how(spec, each)})" for each in wanted)
        having = f"{option} gives" if option else "Ray has"
        raise UserError(
            f"the run wants {sum(wanted.values())} GPUs, and {having} {have:g}: {parts}",
            hint=_hint(spec, wanted, int(have), option),
        )


def _wanted(spec: RunSpec, side: Side) -> dict[Side, int]:
    if spec.mode in ("both", "colocate"):
        return shares(spec.verl, device=spec.device, mode=spec.mode, explorers=spec.explorers)
    if side == "trainer":
        return {side: trainer_gpus(spec.verl)}
    return {side: _of_explorer(spec.verl, spec.device)} | _of_served(spec.verl, spec.device)


def _of_explorer(verl: Tree, device: str) -> int:
    rollout = section_at(verl, _ROLLOUT)
    return engine_count(rollout, device) * engine_width(rollout, device)


def _how(spec: RunSpec, side: Side) -> str:
    if side == "trainer":
        trainer = spec.verl["trainer"]
        nodes = f" × trainer.nnodes={trainer['nnodes']}" if trainer["nnodes"] != 1 else ""
        return f"trainer.n_gpus_per_node={trainer['n_gpus_per_node']}{nodes}"
    if side == "reward model":
        return " + ".join(
            f"{reward_model_engines(verl, spec.device)} × {_REWARD}.rollout.tensor_model_parallel_size="
            f"{reward_model_width(verl, spec.device)}"
            for verl in configurations(spec.verl)
        )
    if side == "teachers":
        entries = teacher_entries(spec.verl)
        each = " + ".join(f"{entry.servers} × {entry.width}" for entry in entries)
        return f"{POOL[0]} × {POOL[1]}: {each}"
    rollout = spec.verl["actor_rollout_ref"]["rollout"]
    count, width = engine_count(rollout, spec.device), engine_width(rollout, spec.device)
    engines = f"{count} engine{'s' if count > 1 else ''} × {_TENSOR_PARALLEL}={width}"
    together = spec.explorers > 1 and spec.mode == "both"
    return f"--explorers {spec.explorers} × {engines}" if together else engines


def _hint(spec: RunSpec, wanted: Mapping[Side, int], have: int, option: str) -> str:
    if not have:
        return "nvidia-smi, CUDA_VISIBLE_DEVICES and ray_kwargs.ray_init.num_gpus say why Ray sees none"
    ways = []
    if wanted == {"trainer": 1, "explorer": 1}:
        ways.append("--mode colocate lets both sides use one GPU in turns")
    if "trainer" in wanted:
        # The most GPUs of a node for which batch sizes that divide by today's number still divide.
        room = have - sum(wanted.values()) + wanted["trainer"]
        now, nodes = int(spec.verl["trainer"]["n_gpus_per_node"]), int(spec.verl["trainer"]["nnodes"])
        fit = (size for size in range(1, now) if now % size == 0 and size * nodes <= room)
        if fits := max(fit, default=0):
            ways.append(f"--set trainer.n_gpus_per_node={fits} fits")
    if "explorer" in wanted:
        ways.append(f"--set {ENGINES}=N changes the number of engines")
    more = f"{option} {sum(wanted.values())}" if option else "RAY_ADDRESS names a larger cluster"
    return "; ".join([*ways, more])
