"""GPUs of each side of a run: those of the launch, split as ``translate`` splits them.

veRL runs rollout and training on the same GPUs in turns; here both run at once, on separate GPUs. The
explorer gets ``explorer.rollout_model.engine_num`` × ``tensor_parallel_size`` of the YAML, the trainer the
rest of ``cluster`` without the reward model's. Rollout GPUs that the launch or ``--set`` dedicates
(``rollout.nnodes``) are additional to the trainer's. A CPU has no GPUs to split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.job.distillation import is_distilled
from trinity_compat.job.gpus import ENGINES, engine_places
from trinity_compat.job.rank_fillers import no_fillers
from trinity_compat.job.run_spec import Mode
from trinity_compat.run.plan.engine import narrowed, of_one_machine
from trinity_compat.run.plan.reward_model import RewardModelPlacement, asked_of
from trinity_compat.run.plan.verl_view import ACTOR, REF, Step, VerlView
from trinity_compat.translate.sections.gpus import (
    ENGINE_MEMORY,
    OWN_NODES,
    OWN_PER_NODE,
    GpuBudget,
    halvings,
    together,
)
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.verl_from_trinity import from_launch


def unproven(gpus: int, nodes: int) -> str:
    """Return a note on turns on several GPUs, which have not run on such hardware yet."""
    machines = f" of {nodes} machines" if nodes > 1 else ""
    return f"not run on {gpus} GPUs{machines} yet: docs/gpu.md"


ENDS_AT_UPDATE = "veRL ends at its first update"  # as scripts/judge/start_corpus.py counts it


@dataclass(frozen=True, slots=True)
class _Share:
    """A split: the explorer gets ``gpus`` of ``machine``, for engines of ``tensor_parallel`` GPUs."""

    machine: GpuBudget
    tensor_parallel: int
    gpus: int

    @property
    def engines(self) -> int:
        return self.gpus // self.tensor_parallel

    @property
    def left(self) -> int:
        """The GPUs that are left for the trainer."""
        return self.machine.total - self.machine.auxiliary - self.gpus


def split_gpus(
    verl: VerlView,
    config: Tree,
    *,
    mode: str,
    explorers: int,
    device: str,
    sets: Sequence[str] = (),
    reward: RewardModelPlacement | None = None,
) -> Step:
    """Return the configuration with each side's share, the explorer's as dedicated rollout GPUs.

    ``config``: the Trinity configuration; ``reward``: the reward model's share of the GPUs. Raises UserError
    where no split can run, or the YAML's own can't; see `fits_no_share`.
    """
    if verl.rollout.nodes and OWN_NODES in {text.partition("=")[0] for text in sets}:
        return verl, []
    if verl.rollout.nodes and mode != "colocate" and device != "cpu":
        return _split_dedicated(verl, config, explorers, reward or RewardModelPlacement(verl, []))
    # No dedicated rollout GPUs here: the sides take turns on the same devices, or there are none.
    verl = verl.changed({OWN_NODES: 0})
    if mode == "colocate" and device != "cpu" and verl.trainer.gpus > 1:
        return _in_turns(verl)
    on_one = device != "cpu" and verl.trainer.gpus == 1
    # A launch with one GPU trains on it alone; in mode colocate its engine has no other either.
    width = 1 if mode == "colocate" else verl.rollout.tensor_parallel
    fitted, lines = _lowered(verl, width, 1) if on_one else (verl, [])
    if mode == "colocate":
        return fitted, lines
    if device == "cpu" or on_one:
        shared, more = _by_hand(fitted, config, sets, explorers, device)
    else:
        reward = reward or RewardModelPlacement(fitted, [])
        wanted = _explorer_gpus(config, total := verl.trainer.gpus + reward.added)
        by_hand = not from_launch(config) and not sets_engines(sets)
        if wanted == total and from_launch(config) and not sets_engines(sets):
            # One engine's ranks take every GPU, and `translate` keeps them: an engine is halved.
            wanted = None
        shared, more = _shared(fitted, wanted, explorers, reward, nearest=by_hand)
    return shared, lines + more


def _split_dedicated(verl: VerlView, config: Tree, explorers: int, reward: RewardModelPlacement) -> Step:
    """Give each side the GPUs that the launch dedicates to it, or the YAML's where that was edited since."""
    own = verl.rollout.nodes * verl.size(OWN_PER_NODE)
    trainer = (verl.trainer.nodes, verl.trainer.gpus_per_node)
    nodes, per_node = together(trainer, (verl.rollout.nodes, verl.size(OWN_PER_NODE)))
    wanted = _explorer_gpus(config, nodes * per_node + reward.added)
    alone = _explorer_gpus(config, verl.trainer.gpus + reward.added)
    if alone is not None:  # the YAML's cluster was changed, and has all GPUs
        return _shared(verl.changed({OWN_NODES: 0}), alone, explorers, reward)
    if wanted not in (None, own):
        whole = {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node, OWN_NODES: 0}
        return _shared(verl.changed(whole), wanted, explorers, reward)
    width = next(tp for tp in _widths(verl, verl.size(OWN_PER_NODE)) if own % tp == 0)
    fitted, lines = _lowered(verl, width, _fitting_sequence(verl, own, width, reward.taken))
    engines, training = own // width, verl.trainer.gpus - reward.taken
    each = engines_of_each(engines, explorers, f"the explorers' {own} GPUs hold {engines} of {width}")
    note = f"{own} GPUs for generation ({engines} engine(s) of {width}), as {OWN_NODES} says"
    note += f" + {reward.note}" if reward.note else ""
    note += f" + {training} for training; --set {ENGINES}=N"
    # The launch's own machines, where the reward model takes nothing of them.
    nodes, per_node = _nodes(training, verl.trainer.gpus_per_node) if reward.taken else trainer
    changed = {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node, **engine_places(each, width)}
    return fitted.changed(changed), [*lines, note]


def _explorer_gpus(config: Tree, total: int) -> int | None:
    """Return the GPUs of the explorer's engines, `asked_of` times the ranks of an engine."""
    gpus = asked_of(config, "explorer.rollout_model", total)
    return gpus * further_ranks(config) if gpus else gpus


def further_ranks(config: Tree) -> int:
    """Return the data-parallel × pipeline-parallel size of an engine of the YAML."""
    reading = TrinityReader(config)
    ranks = (reading.get(f"explorer.rollout_model.{size}_parallel_size") for size in ("data", "pipeline"))
    return math.prod(int(size or 1) for size in ranks)


def _fitting_sequence(verl: VerlView, own: int, width: int, taken: int) -> int:
    """Return the GPUs that share a sequence in the trainer, halved until its ranks divide a mini-batch.

    veRL's workers demand it (``train_mini_batch``, verl 0.9.1, workers/engine_workers.py). Where they never
    do, fillers are needed. Raises UserError where these are not possible.
    """
    sequence = verl.sharing(ACTOR)
    whole = verl.changed({"trainer.nnodes": 1, "trainer.n_gpus_per_node": verl.trainer.gpus + own})
    sizes = halvings(sequence) if verl.engine.can_halve else [sequence]
    given = [(size, _machine(whole, width, size, taken)) for size in sizes]
    for machines in (_without_fillers(given), given):
        for size, machine in machines:
            if not machine.fault(own):
                return size
    turns = not is_distilled(verl.tree)
    raise _as_in_verl(_machine(whole, width, sequence, taken), own, turns=turns)


def _as_in_verl(machine: GpuBudget, own: int, *, turns: bool = True) -> UserError:
    """Return the refusal of a launch's own shares, with veRL's words where its trainer has the same ranks."""
    refused, ranks = _no_split(machine, own, turns=turns), (machine.total - own) // machine.sequence
    if machine.auxiliary or not ranks or machine.experiences % ranks == 0:
        return refused
    words = f"Got mini_batch_size={machine.experiences} and self.engine.get_data_parallel_size()={ranks}"
    return UserError(f"{refused.message}; {ENDS_AT_UPDATE}: {words}", hint=refused.hint)


def sets_engines(sets: Sequence[str]) -> bool:
    """Return whether ``--set`` gives the number of engines."""
    return any(text.partition("=")[0] == ENGINES for text in sets)


def _shared(
    verl: VerlView, wanted: int | None, explorers: int, reward: RewardModelPlacement, *, nearest: bool = False
) -> Step:
    """Write both shares.

    ``wanted``: the explorer's share by the YAML; ``nearest``: take the nearest one that can run, where the
    rest does not divide the trainer's batch.
    """
    share = _split(verl, wanted, reward.taken, nearest=nearest)
    width, engines = share.tensor_parallel, share.engines
    each = engines_of_each(engines, explorers, f"the explorers' {share.gpus} GPUs hold {engines} of {width}")
    fitted, lines = _lowered(verl, width, share.machine.sequence)
    nodes, per_node = _nodes(share.left, share.machine.per_node)
    if share.machine.spread:
        nodes, per_node = share.machine.nodes, share.left // share.machine.nodes
    note = f"{share.machine.total} GPUs = {share.gpus} for generation ({engines} engine(s) of {width})"
    note += f" + {reward.note}" if reward.note else ""
    note += f" + {share.left} for training; --set {ENGINES}=N"
    if wanted not in (None, share.gpus):
        lines.append(f"{ENGINES}: {engines}, not {wanted // width}: {share.machine.fault(wanted)}")
    trainer = {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node}
    return fitted.changed({**trainer, **engine_places(each, width)}), [*lines, note]


def _in_turns(verl: VerlView) -> Step:
    """Give every GPU to both sides, as veRL itself does.

    The machines hold as many engines as fit, each engine on one machine; it is awake while the trainer's
    models are in host memory.
    """
    gpus, each, nodes = verl.trainer.gpus, verl.trainer.gpus_per_node, verl.trainer.nodes
    width = next(tp for tp in _widths(verl, each) if each % tp == 0)
    fitted, lines = _lowered(verl, width, verl.sharing(ACTOR))
    engines = gpus // width
    where = f"{gpus} GPUs of {nodes} machines" if nodes > 1 else f"{gpus} GPUs"
    note = f"{where} in turns: {engines} engine(s) of {width}, then training on all of them"
    return fitted.changed(engine_places(engines, width)), [*lines, f"{note} ({unproven(gpus, nodes)})"]


def engines_of_each(engines: int, explorers: int, why: str) -> int:
    """Return the number of engines per explorer.

    Raises UserError where that is not a whole number: the other engines would be idle.
    """
    if engines % explorers:
        fits = " or ".join(str(number) for number in range(1, engines + 1) if engines % number == 0)
        raise UserError(
            f"--explorers {explorers}: they cannot share {engines} engine(s) evenly; {why}",
            hint=f"write --explorers {fits}, or --set {ENGINES}=N, a multiple of {explorers}",
        )
    return engines // explorers


def _by_hand(verl: VerlView, config: Tree, sets: Sequence[str], explorers: int, device: str) -> Step:
    """Set the number of engines of ``--set``, by default 1, where there are no GPUs to split."""
    reading = TrinityReader(config)
    if not sets_engines(sets):
        names = (ENGINES, "explorer.rollout_model.tensor_parallel_size")
        sizes = [f"{path}={size}" for path in names if (size := reading.get(path, 1)) != 1]
        if device != "cpu" or not sizes or from_launch(config):
            return verl, []
        more = f"not {', '.join(sizes)}; --set {ENGINES}=N"
        return verl, [f"a CPU has no GPUs to share: 1 engine for generation, {more}"]
    engines = reading.get(ENGINES)
    if type(engines) is not int or engines < explorers:
        raise UserError(f"--set {ENGINES}={engines}: --explorers {explorers} needs at least one each")
    each = engines_of_each(engines, explorers, f"--set {ENGINES}={engines}")
    width = 1 if device == "cpu" else verl.rollout.tensor_parallel
    return verl.changed(engine_places(each, width)), [f"{engines} engine(s) for generation"]


def _split(verl: VerlView, wanted: int | None, auxiliary: int, *, nearest: bool = False) -> _Share:
    """Split by the first sizes that fit, with fillers where none do; ``auxiliary``: GPUs of neither side.

    The sizes of sequence and engine are halved, which does not change results. A sequence whose sizes
    determine the place of weights, also in checkpoints, is not (Megatron's).
    """
    given = list(_machines(verl, auxiliary))
    for machines in (_without_fillers(given), given):
        asked = wanted
        if not _can_run(machines) and _can_run(parts := _parts(machines)):
            # No share leaves the trainer whole nodes: take the same part of every node.
            machines, asked = parts, None
        for tp, machine in machines:
            choices = machine.choices()
            if asked in choices:
                return _Share(machine, tp, asked)
            if choices and asked is None:
                return _Share(machine, tp, machine.nearest_half(choices))
    for tp, machine in given:
        if nearest and wanted is not None and tp == verl.rollout.tensor_parallel and machine.choices():
            return _Share(machine, tp, min(machine.choices(), key=lambda count: (abs(count - wanted), count)))
    raise _no_split(given[0][1], wanted, turns=not is_distilled(verl.tree))


def _without_fillers(machines: Sequence[tuple[int, GpuBudget]]) -> list[tuple[int, GpuBudget]]:
    return [(tp, replace(machine, no_fillers=None)) for tp, machine in machines]


def _machines(verl: VerlView, auxiliary: int) -> Iterator[tuple[int, GpuBudget]]:
    """Yield (GPUs of an engine, GPUs to split), the launch's own sizes first."""
    sequence = verl.sharing(ACTOR)
    for sp in halvings(sequence) if verl.engine.can_halve else [sequence]:
        for tp in _widths(verl, verl.trainer.gpus_per_node):
            yield tp, _machine(verl, tp, sp, auxiliary)


def _widths(verl: VerlView, each: int) -> list[int]:
    """Possible numbers of GPUs for an engine, the launch's own first.

    An engine's workers are processes of one machine, which has ``each`` GPUs.
    """
    return [tp for tp in halvings(verl.rollout.tensor_parallel) if tp <= each]


def _parts(machines: Sequence[tuple[int, GpuBudget]]) -> list[tuple[int, GpuBudget]]:
    return [(tp, replace(machine, spread=True)) for tp, machine in machines]


def _can_run(machines: Sequence[tuple[int, GpuBudget]]) -> bool:
    return any(machine.choices() for _, machine in machines)


def fits_turns(verl: VerlView) -> bool:
    """Return whether the launch's GPUs are shared, and all of them together hold the trainer, as in veRL.

    Ranks that do not divide the mini-batch do not: stock ends at its first update.
    """
    if verl.rollout.nodes or verl.trainer.gpus < 2 or verl.batches.mini is None:
        return False
    return replace(_machine(verl, 1, verl.sharing(ACTOR), 0), no_fillers=None).trains_on_all()


def fits_no_share(verl: VerlView) -> str:
    """Return the reason why the launch's sizes need all of its GPUs at once, as in veRL.

    Empty where some split can run, or where all GPUs together cannot hold the trainer either.
    """
    if verl.rollout.nodes or verl.trainer.gpus < 2 or verl.batches.mini is None:
        return ""
    machines = list(_machines(verl, 0))
    if _can_run(machines) or _can_run(_parts(machines)):
        return ""
    machine = machines[0][1]
    if verl.trainer.gpus % machine.sequence:
        return ""
    return f"no split of {machine.total} GPUs fits ({machine.fault(max(1, machine.total // 2))})"


def _no_split(machine: GpuBudget, wanted: int | None, *, turns: bool) -> UserError:
    """Return the refusal of a split. ``turns``: whether mode colocate may be suggested."""
    explorer = wanted or max(machine.engine, machine.total // 2)
    able = [count // machine.engine for count in machine.choices()]
    rewarding = f"{machine.auxiliary} of them for the reward model and " if machine.auxiliary else ""
    of_them = "" if rewarding else "of them "
    return UserError(
        f"{machine.total} GPUs, {rewarding}{explorer} {of_them}for the explorer: {machine.fault(explorer)}",
        hint=f"--set {ENGINES}=N, where N may be {', '.join(map(str, able))}"
        if able
        else f"{_all_of_them(machine) if turns else ''}give the run more GPUs, smaller parallel sizes, or"
        " another ppo_mini_batch_size",
    )


def _all_of_them(machine: GpuBudget) -> str:
    """Suggest turns of both sides on all GPUs, where these hold the trainer; "" elsewhere."""
    if machine.total % machine.sequence:
        return ""
    untried = unproven(machine.total, machine.nodes)
    if not machine.auxiliary:
        return f"--mode colocate gives all of them to both sides in turns ({untried}); or "
    return (
        "the reward model has no turn (docs/rewards.md): serve it elsewhere and ask it from"
        " reward.custom_reward_function, and both sides take turns on all GPUs"
        f" ({untried}); or "
    )


def _machine(verl: VerlView, tp: int, sp: int, auxiliary: int) -> GpuBudget:
    """Return the GPUs to split, for engines of ``tp`` GPUs and ``sp`` GPUs per sequence in the trainer."""
    if verl.batches.mini is None:
        raise UserError(f"{ACTOR}.ppo_mini_batch_size is not set: the GPUs are split by it")
    experiences = verl.batches.mini * verl.batches.group
    value = partial(value_at, verl.tree)
    nodes, each = verl.trainer.nodes, verl.trainer.gpus_per_node
    alone = verl.engine.is_alone(ACTOR, value)
    return GpuBudget(
        nodes, each, tp, auxiliary, experiences, sp, one_rank=alone, no_fillers=no_fillers(value)
    )


def _lowered(verl: VerlView, tp: int, sp: int) -> Step:
    """Lower the sizes that do not fit a share, and return a line of text for each that was lowered."""
    values: dict[str, int] = {}
    lines = []
    if tp != (given := verl.rollout.tensor_parallel):
        why = "the explorer's share of the GPUs holds no more"
        if verl.trainer.nodes > 1 and given > verl.trainer.gpus_per_node:
            why = of_one_machine(given, tp)
        lines.append(f"rollout.tensor_model_parallel_size = {tp}: {why}")
        verl = narrowed(verl, tp)
    # Sizes that say where weights lie were not halved.
    for role in (ACTOR, REF, "critic") if verl.engine.can_halve else ():
        for key in verl.engine.sequence_keys(role):
            if verl.size(key) > sp:
                lines.append(f"{_short(key)} = {sp}: {_HOLDS_NO_MORE}")
                values[key] = sp
    return verl.changed(values), lines


def groups_fitted(verl: VerlView) -> Step:
    """Sizes of groups of ranks that split weights, as the trainer's GPUs hold them; with a line for each.

    They change where weights lie and not what is computed. An engine's mesh has to have exactly its ranks
    (torchtitan: ``ParallelDims._validate``), or groups that divide them (``expert_parallel_size``).
    """
    engine, gpus, values, lines = verl.engine, verl.trainer.gpus, dict[str, int](), list[str]()
    for role in (ACTOR, REF):
        for key in (engine.key(role, name) for name in engine.held):
            fits = next(size for size in halvings(verl.size(key)) if gpus % size == 0)
            if fits != verl.size(key):
                values[key] = fits
        if engine.rest:
            copies = verl.size(engine.key(role, engine.copies))
            left = max(1, gpus // (verl.sharing(role) * copies))
            if left != verl.size(key := engine.key(role, engine.rest)):
                values[key] = left
    for key, size in values.items():
        lines.append(f"{_short(key)} = {size}, not {verl.size(key)}: the trainer has {gpus} GPU(s)")
    return verl.changed(values), lines


_HOLDS_NO_MORE = "the trainer's share of the GPUs holds no more"


def _short(key: str) -> str:
    return key.removeprefix("actor_rollout_ref.")


def _nodes(gpus: int, per_node: int) -> tuple[int, int]:
    return (gpus // per_node, per_node) if gpus > per_node else (1, gpus)


MEMORY, YAML_MEMORY = ENGINE_MEMORY.key, ENGINE_MEMORY.path


def default_memory(verl: VerlView, launch: VerlView, written: float, *, mode: Mode) -> Step:
    """Set the engines' share of memory where the launch sets none.

    Engines on dedicated GPUs get ``written``, the default of translate. veRL's default holds where the sides
    share devices: in turns, or on one GPU that several commands may share. ``launch`` is the configuration
    before its GPUs were split.
    """
    apart = mode == "both" or (mode == "explore" and launch.trainer.gpus > 1)
    if apart:
        return verl.changed({MEMORY: written}), []
    kept = value_at(verl.tree, MEMORY)
    return verl, [f"{MEMORY} = {kept}: both sides use the same GPUs; {YAML_MEMORY}={written} is for a split"]
