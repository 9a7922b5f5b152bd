"""The GPUs of a launch: veRL takes turns on all of them, Trinity splits them between explorer and trainer.

The YAML has the split. Where the launch does not ask for one, it also has the mark by which a run of it takes
turns (`takes_turns`, written by ``passthrough.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY_OLD
from trinity_compat.common.training_engines import ULYSSES as SEQUENCE
from trinity_compat.job.distillation import ENABLED as TEACHERS
from trinity_compat.job.gpus import ENGINES
from trinity_compat.translate.launch_view import (
    ARR,
    GPUS_OF_A_NODE,
    NODES,
    PER_NODE,
    LaunchView,
    PathValue,
    Verdict,
)
from trinity_compat.translate.model import Caution, Status, notice
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.sections.reward import ENABLE as REWARD_MODEL
from trinity_compat.translate.sections.reward import pool_gpus, reward_model_gpus
from trinity_compat.translate.trinity_reader import FieldPair, TrinityReader

ROLLOUT = f"{ARR}.rollout"
TP, DP, PP = (f"{ROLLOUT}.{name}_parallel_size" for name in ("tensor_model", "data", "pipeline_model"))
OWN_NODES, OWN_PER_NODE = f"{ROLLOUT}.nnodes", f"{ROLLOUT}.n_gpus_per_node"
N = f"{ROLLOUT}.n"
ACTOR = f"{ARR}.actor"
SP = f"{ACTOR}.{SEQUENCE}"
ENGINE = "explorer.rollout_model"
CLUSTER = (FieldPair("cluster.node_num", NODES), FieldPair("cluster.gpu_per_node", PER_NODE))
ULYSSES = FieldPair("trainer.ulysses_sequence_parallel_size", SP)
ENGINE_TP = FieldPair(f"{ENGINE}.tensor_parallel_size", TP)
ENGINE_MEMORY = FieldPair(f"{ENGINE}.gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization")
# 28 of the 30 public launches whose rollout has GPUs of its own under veRL say so (one_step_off_policy and
# fully_async_policy in tests/facts); of main_ppo's, whose engines share their GPUs, two thirds say less.
STANDALONE_MEMORY = 0.8
ENGINE_DP_PP = (
    FieldPair(f"{ENGINE}.data_parallel_size", DP),
    FieldPair(f"{ENGINE}.pipeline_parallel_size", PP),
)


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """The GPUs to split, and the sizes that have to divide them. Sizes are in GPUs unless stated."""

    nodes: int
    per_node: int
    engine: int  # GPUs of one rollout engine
    auxiliary: int
    experiences: int  # buffer.train_batch_size
    sequence: int  # GPUs that share one sequence in the trainer
    spread: bool = False  # the trainer may have the same part of every node, beside engines
    every_gpu: bool = False  # upstream splits the batch over all trainer GPUs, though some share a sequence
    one_rank: bool = False  # all trainer GPUs compute every row together (Megatron's dynamic context)
    no_fillers: str | None = None  # the reason against them, "" for none; None: Trinity-RFT knows no fillers

    @property
    def total(self) -> int:
        """All GPUs."""
        return self.nodes * self.per_node

    def fault(self, rollout: int, *, ranks_only: bool = False) -> str | None:
        """Return the reason why ``rollout`` GPUs for the explorer cannot run; None if they can.

        ``ranks_only`` leaves out how the trainer's GPUs are grouped inside a model.
        """
        trainer = self.total - rollout - self.auxiliary
        if rollout < 1 or rollout % self.engine:
            return f"{rollout} rollout GPU(s) cannot be divided into engines of {self.engine}"
        if trainer < 1:
            return f"{rollout} of {self.total} GPUs for rollout leave none for the trainer"
        if why := self._training_fault(trainer, ranks_only=ranks_only):
            return why
        if self.engine > self.per_node and self.engine % self.per_node:
            return f"an engine of {self.engine} GPUs does not fill whole nodes of {self.per_node}"
        if rollout // self.engine > self._engines_beside(trainer):
            engines = f"{rollout // self.engine} engines of {self.engine} GPUs, each on one node,"
            return f"{engines} do not fit on {self.nodes} of {self.per_node} beside the trainer's {trainer}"
        return None

    def trains_on_all(self) -> bool:
        """Return whether all GPUs together hold the trainer, as in veRL."""
        return not self.auxiliary and not self._training_fault(self.total)

    def _training_fault(self, trainer: int, *, ranks_only: bool = False) -> str | None:
        """Return the reason why ``trainer`` GPUs cannot train; None if they can."""
        groups = trainer if ranks_only or self.every_gpu else trainer // self.sequence
        groups = 1 if self.one_rank else groups
        if trainer > self.per_node and trainer % self.per_node and not self._has_a_part_of_each(trainer):
            return f"the trainer's {trainer} GPUs are not whole nodes of {self.per_node}"
        if not ranks_only and trainer % self.sequence:
            return f"the trainer's {trainer} GPUs are not whole groups of {self.sequence} for one sequence"
        if self.experiences % groups == 0:
            return None
        fault = f"buffer.train_batch_size={self.experiences} does not divide by {groups} trainer ranks"
        if self.no_fillers == "":
            return None if self.experiences >= groups else f"{fault}, and some ranks would have no row"
        return f"{fault}, and {self.no_fillers}" if self.no_fillers else fault

    def _engines_beside(self, trainer: int) -> int:
        """Return the number of engines that fit on the GPUs beside ``trainer`` GPUs.

        An engine is on one node if one node has enough GPUs.
        """
        if self.engine > self.per_node or self._has_a_part_of_each(trainer):
            return self.total // self.engine
        whole, part = divmod(trainer, self.per_node)
        free = self.nodes - whole - bool(part)
        return free * (self.per_node // self.engine) + bool(part) * ((self.per_node - part) // self.engine)

    def _has_a_part_of_each(self, trainer: int) -> bool:
        """Return True if the trainer has equally many GPUs of every node, with whole engines on the rest."""
        each, over = divmod(trainer, self.nodes)
        rest = self.per_node - each
        return self.spread and not (over or self.auxiliary or rest % self.engine)

    def choices(self, *, ranks_only: bool = False) -> list[int]:
        """Return every number of rollout GPUs that can run, smallest first."""
        able = range(self.engine, self.total, self.engine)
        return [count for count in able if not self.fault(count, ranks_only=ranks_only)]

    def nearest_half(self, choices: Sequence[int]) -> int:
        """Return the number of rollout GPUs nearest to a half of both sides' GPUs.

        Of two the larger.
        """
        both = self.total - self.auxiliary
        return min(choices, key=lambda count: (abs(2 * count - both), -count))


@derivation
def gpus(view: LaunchView) -> Derived:
    """cluster.*, the number of rollout engines, and mode colocate for one GPU."""
    own = own_gpus(view)
    for pair, number in zip(CLUSTER, _cluster(view), strict=True):
        yield (
            PathValue(pair.path, number, (NODES, PER_NODE, OWN_NODES, OWN_PER_NODE))
            if own
            else pair.put(number)
        )
    if own:
        for key in (NODES, PER_NODE):
            yield Verdict(key, Status.DERIVED, "the trainer's own GPUs; cluster holds the rollout's as well")
    else:
        for key in (OWN_NODES, OWN_PER_NODE):
            yield Verdict(key, Status.NO_EFFECT, f"{OWN_NODES} is 0: rollout shares the launch's GPUs")
    if math.prod(_cluster(view)) <= 1:
        yield from _colocated(view)
        return
    side_by_side = "explorer and trainer side by side"
    if takes_turns(view):
        side_by_side += f" in Trinity-RFT; {_turns(view)}"
    yield PathValue("mode", "both", note=side_by_side)
    machine, rollout, tp = split(view)
    yield PathValue(
        ENGINES,
        rollout // machine.engine,
        (OWN_NODES, OWN_PER_NODE) if own else (),
        note=_explained(view, machine, rollout),
    )
    yield ENGINE_TP.put(tp)
    for pair in ENGINE_DP_PP:
        if not view.old_trinity and view.value(pair.key, 1) != 1:
            yield pair.put(view.integer(pair.key))
    yield from _sequence_parallel(view, machine.sequence)
    yield from _cautions(view, machine, rollout, tp)


@way_back
def sizes(reading: TrinityReader) -> VerlSettings:
    """Return the GPUs of the cluster, and those of an engine."""
    yield from reading.verl_values(*CLUSTER, ENGINE_TP, ENGINE_MEMORY, *ENGINE_DP_PP)


def takes_turns(view: LaunchView) -> bool:
    """Return whether a run takes turns on all GPUs of the launch, as veRL does, and the YAML splits them.

    It splits them too where the launch, or an option, asks for that or needs it.
    """
    beside = view.async_schedule is not None and not view.async_schedule.in_turns
    asked = view.options.rollout_gpus is not None or view.options.sync_offset or view.published or beside
    served = own_gpus(view) or view.flag(REWARD_MODEL) or view.flag(TEACHERS)
    if asked or served or math.prod(view.cluster) < 2:
        return False
    sequence = view.engine.sharing(ACTOR, view.size)
    return replace(_machine(view, *view.cluster, 1, sequence), every_gpu=False).trains_on_all()


def _turns(view: LaunchView) -> str:
    return f"`trinity-compat run` colocates both on all {math.prod(view.cluster)} GPUs, as veRL does"


def split(view: LaunchView) -> tuple[GpuBudget, int, int]:
    """Return (the budget, GPUs for rollout, the engine's tensor parallel size).

    Where no split can run, the engine's and then the sequence's parallel size are halved: neither changes
    what is computed. GPUs that the launch gives to rollout are not split.
    """
    nodes, per_node = _cluster(view)
    own = own_gpus(view)
    room = own or nodes * per_node - reward_model_gpus(view) - 1
    given = _fitting_tp(view, room)
    sequence = view.engine.sharing(ACTOR, view.size)
    for sp in halvings(sequence) if view.engine.can_halve else [sequence]:
        for tp in halvings(given):
            machine = _machine(view, nodes, per_node, tp, sp)
            able = not machine.fault(own) if own else bool(machine.choices() or view.published)
            if able or view.options.rollout_gpus is not None:
                return machine, _rollout(view, machine), tp
    machine = _machine(view, nodes, per_node, given, sequence)
    return machine, _rollout(view, machine), given


@derivation
def engine_memory(view: LaunchView) -> Derived:
    """Write explorer.rollout_model.gpu_memory_utilization: the launch's, if it sets it.

    veRL's default leaves room for a trainer on the same GPUs; where the GPUs are split the engines need to
    leave none.
    """
    key = ENGINE_MEMORY.key
    if view.value(key) is None:
        return
    if variable := view.variable(key):
        yield ENGINE_MEMORY.put(variable)
        return
    given = view.number(key)
    shared = view.cluster == (1, 1) or own_gpus(view) or view.published
    if view.is_set(key) or shared or given >= STANDALONE_MEMORY:
        yield ENGINE_MEMORY.put(given)
        return
    note = f"not given, and the engines have GPUs of their own: veRL's {given} leaves room for a trainer"
    yield ENGINE_MEMORY.put(STANDALONE_MEMORY, note)


def own_gpus(view: LaunchView) -> int:
    """Return the GPUs that the launch gives to rollout, beside the trainer's; 0 if both share.

    Source: ``create_resource_pool_manager`` in veRL 0.9.1's verl/experimental/separation/utils.py: the
    trainer's pool has ``trainer.nnodes`` × ``trainer.n_gpus_per_node``, and no other.
    """
    if not view.value(OWN_NODES):
        return 0
    return view.size(OWN_NODES) * view.size(OWN_PER_NODE)


def _cluster(view: LaunchView) -> tuple[int, int]:
    """Return (nodes, GPUs of each): the launch's, with rollout's own and a reward model's own pool."""
    nodes, per_node = view.cluster
    if own_gpus(view):
        nodes, per_node = together(view.cluster, (view.size(OWN_NODES), view.size(OWN_PER_NODE)))
    return nodes + -(-pool_gpus(view) // per_node), per_node


def together(trainer: tuple[int, int], rollout: tuple[int, int]) -> tuple[int, int]:
    """Return (nodes, GPUs of each) that hold two pools, each given in the same way.

    They share every node if a node of eight has room for both; else each has nodes of its own.
    """
    (nodes, each), (more, others) = trainer, rollout
    if nodes == more and each + others <= GPUS_OF_A_NODE:
        return nodes, each + others
    size = math.gcd(each, others)
    return (nodes * each + more * others) // size, size


def ranks_of(view: LaunchView, role: str) -> int:
    """Return the data-parallel ranks of ``role`` (actor_rollout_ref.actor, …ref, critic) under veRL."""
    if view.engine.is_alone(role, view.value):
        return 1
    return max(1, math.prod(view.cluster) // view.engine.sharing(role, view.size))


def halvings(size: int) -> list[int]:
    """Return ``size`` and its halves, rounded down, to 1."""
    return [size >> by for by in range(size.bit_length()) if size >> by]


def _sequence_parallel(view: LaunchView, size: int) -> Derived:
    """Write Ulysses' size; ``size`` are the trainer GPUs that compute one row."""
    if not view.engine.can_halve:
        yield ULYSSES.put(view.size(SP))
        return
    given = view.engine.sharing(ACTOR, view.size)
    keys = [key for key in view.engine.sequence_keys(ACTOR) if view.has(key)] or [SP]
    key = next((key for key in keys if view.size(key) == given), keys[0])
    yield PathValue(ULYSSES.path, size, (key,))
    if size != given:
        yield from _lowered(view, key, given, "the trainer's share of the GPUs is smaller")


def _lowered(view: LaunchView, key: str, given: int, why: str) -> Iterator[Caution | Verdict]:
    """Yield what became of a size that the split lowers; a run in turns keeps it on one machine."""
    kept = takes_turns(view) and (key != TP or view.cluster[1] % given == 0)
    reason = f"lowered from {given}: {why}"
    if kept:
        reason += f", in Trinity-RFT; {_turns(view)}, and keeps {given}"
    yield Verdict(key, Status.DERIVED if kept else Status.APPROXIMATED, reason)
    message, where = f"{key.rpartition('.')[2]} {reason}", view.where(key)
    yield notice("TW004", message, where) if kept else Caution("TW004", message, where)


def _machine(view: LaunchView, nodes: int, per_node: int, tp: int, sequence: int) -> GpuBudget:
    old = view.old_trinity
    engine = tp if old else tp * view.size(DP) * view.size(PP)
    experiences = view.mini * view.size(N)
    alone = view.engine.is_alone(ACTOR, view.value)
    return GpuBudget(
        nodes,
        per_node,
        engine,
        reward_model_gpus(view),
        experiences,
        sequence,
        every_gpu=old,
        one_rank=alone,
    )


def _fitting_tp(view: LaunchView, room: int) -> int:
    """Return the engine's tensor parallel size, halved until one engine leaves a GPU to the trainer."""
    tp = view.size(TP)
    while tp > max(room, 1):
        tp //= 2
    return max(tp, 1)


def _rollout(view: LaunchView, machine: GpuBudget) -> int:
    asked = view.options.rollout_gpus
    if asked is not None:
        if fault := machine.fault(asked):
            able = ", ".join(map(str, machine.choices())) or "none"
            raise UserError(
                f"--rollout-gpus {asked}: {fault}",
                where=view.where(PER_NODE),
                hint=f"numbers that can run: {able}",
            )
        return asked
    if own := own_gpus(view):
        return own
    if view.published:
        return max(machine.engine, machine.total // 4 // machine.engine * machine.engine)
    choices = machine.choices() or machine.choices(ranks_only=True)
    if not choices:
        return machine.engine
    return machine.nearest_half(choices)


def _explained(view: LaunchView, machine: GpuBudget, rollout: int) -> str:
    trainer = machine.total - rollout - machine.auxiliary
    if trainer < 1:
        beside = f" beside {machine.auxiliary} auxiliary" if machine.auxiliary else ""
        shares = machine.total - machine.auxiliary > 1 and view.size(PP) == 1
        said = "; `trinity-compat run` takes fewer for generation" if shares else ""
        engine = f"an engine of {machine.engine}{beside} on {machine.total} GPUs"
        return f"{engine} leaves no GPU for training (TW004){said}"
    auxiliary = f" + {machine.auxiliary} auxiliary" if machine.auxiliary else ""
    return f"{machine.total} GPUs = {rollout} rollout{auxiliary} + {trainer} training"


def _cautions(view: LaunchView, machine: GpuBudget, rollout: int, tp: int) -> Iterator[Caution | Verdict]:
    place = view.where(PER_NODE) or view.where(NODES)
    if fault := machine.fault(rollout):
        able = ", ".join(map(str, machine.choices()))
        hint = f"--rollout-gpus may be {able}" if able else _without_a_split(machine)
        yield Caution("TW004", f"this GPU split cannot run in Trinity-RFT: {fault}", place, hint)
    elif not own_gpus(view):
        message = f"the GPUs are split: {_explained(view, machine, rollout)}"
        if takes_turns(view):
            message += f", in Trinity-RFT; {_turns(view)}"
        yield notice("TW004", message, place, "--rollout-gpus N")
    if tp != view.size(TP):
        yield from _lowered(view, TP, view.size(TP), _no_room(view))


def _without_a_split(machine: GpuBudget) -> str:
    """Return what to change where no number of rollout GPUs can run."""
    if machine.engine < machine.total - machine.auxiliary:
        return "change the batch size or the number of GPUs"
    sizes = " × ".join(key.removeprefix(f"{ROLLOUT}.") for key in (TP, DP, PP))
    return f"lower rollout's {sizes}, or give more GPUs"


def _no_room(view: LaunchView) -> str:
    if own := own_gpus(view):
        return f"the {own} GPUs of {OWN_NODES} cannot be divided into engines of that size"
    return "an engine of that size would leave no GPU to the trainer"


def _colocated(view: LaunchView) -> Derived:
    mode = "both" if view.old_trinity else "colocate"
    yield PathValue("mode", mode, note="one GPU: explorer and trainer share it")
    yield PathValue(ENGINES, 1, note="one GPU")
    yield ENGINE_TP.put(1)
    yield from _sequence_parallel(view, 1)
    if view.size(TP) > 1:
        yield Verdict(TP, Status.APPROXIMATED, "one GPU cannot hold a tensor-parallel engine: 1 is written")
    if view.flag(REWARD_MODEL):
        yield Caution("TW004", "Trinity-RFT's colocate mode takes no auxiliary models", view.where(PER_NODE))
    if view.old_trinity:
        message = f"trinity-rft {TRINITY_OLD} cannot run on one GPU; later releases colocate"
        yield Caution("TW004", message, view.where(PER_NODE))
