"""``mode: train`` or ``mode: explore`` in a YAML: its cluster is one side's.

The other side has a file and a cluster of its own, as trinity-rft has it (0.6.0, config_validator.py:
``_set_gpu_allocation_info``).

``--mode train`` and ``--mode explore`` start the sides of one launch, which share its GPUs.
"""

from __future__ import annotations

from functools import partial

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.job.gpus import ENGINES, engine_places
from trinity_compat.job.rank_fillers import no_fillers
from trinity_compat.run.plan.gpu_split import engines_of_each, further_ranks
from trinity_compat.run.plan.reward_model import RewardModelPlacement
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import ACTOR, Step, VerlView
from trinity_compat.translate.sections.gpus import halvings
from trinity_compat.translate.trinity_reader import TrinityReader

_EXPLORE = "explore"


def is_asked(config: Tree, options: RunOptions) -> bool:
    """Return whether the file itself, and not ``--mode``, makes it one side's."""
    return options.mode is None and config.get("mode") in ("train", _EXPLORE)


def room(verl: VerlView, mode: str) -> int:
    """GPUs that models beside the policy may take.

    An explorer's engine needs one; a trainer serves none, so that theirs are on the other cluster.
    """
    return verl.trainer.gpus - 1 if mode == _EXPLORE else 2**31


def filled(verl: VerlView, config: Tree, *, mode: str, explorers: int, reward: RewardModelPlacement) -> Step:
    """The configuration with all GPUs of the cluster given to the side ``mode``.

    Raises UserError where they cannot run it.
    """
    if mode == _EXPLORE:
        return _all_to_explorer(verl, config, explorers, reward)
    total = verl.trainer.gpus
    if why := fault(verl, total):
        able = [number for number in halvings(total) if not fault(verl, number)]
        fits = f"{able[0]} GPUs fit" if able else "give it more GPUs or smaller parallel sizes"
        raise UserError(f"{total} GPUs, all the trainer's (mode: train): {why}", hint=fits)
    width = verl.rollout.tensor_parallel
    note = f"{total} GPUs for training, all of the file's cluster (mode: train)"
    # veRL's configuration names engines too; they are the other file's.
    return verl.changed(engine_places(1, width)), [note]


def _all_to_explorer(verl: VerlView, config: Tree, explorers: int, reward: RewardModelPlacement) -> Step:
    total, width = verl.trainer.gpus, verl.rollout.tensor_parallel
    engines = TrinityReader(config).get(ENGINES) or 1
    if type(engines) is not int or engines < 1:
        raise UserError(f"{ENGINES}={engines}: write a number, 1 or more")
    width *= further_ranks(config)
    wanted = engines * width
    if wanted + reward.taken > total:
        with_reward = f" beside {reward.note}" if reward.note else ""
        fits = (total - reward.taken) // width
        raise UserError(
            f"{ENGINES}={engines}: {wanted} GPUs for generation{with_reward}, and the file's cluster has"
            f" {total}",
            hint=f"write {ENGINES}: {fits} or less" if fits else "give the cluster more GPUs",
        )
    each = engines_of_each(engines, explorers, f"{ENGINES}={engines}")
    note = f"{total} GPUs, all the explorer's (mode: explore): {wanted} for generation"
    note += f" ({engines} engine(s) of {width})" + (f" + {reward.note}" if reward.note else "")
    # The trainer is on another cluster: its GPUs there do not count here.
    trainer = {"trainer.nnodes": 1, "trainer.n_gpus_per_node": 1}
    return verl.changed({**trainer, **engine_places(each, width)}), [note]


def fault(verl: VerlView, gpus: int) -> str:
    """Return the reason why ``gpus`` cannot train a mini-batch; empty where they can.

    Source: ``train_mini_batch`` in veRL 0.9.1's workers/engine_workers.py, which gets fillers where they are
    possible.
    """
    if verl.batches.mini is None:
        raise UserError(f"{ACTOR}.ppo_mini_batch_size is not set: the trainer's ranks have to divide it")
    sequence = verl.sharing(ACTOR)
    if gpus % sequence:
        return f"they are not whole groups of {sequence} for one sequence"
    rows, ranks = verl.batches.mini * verl.batches.group, verl.ranks(ACTOR, gpus)
    why = no_fillers(partial(value_at, verl.tree))
    if rows % ranks == 0 or (not why and rows >= ranks):
        return ""
    return f"buffer.train_batch_size={rows} does not divide by {ranks} ranks" + (
        f", and {why}" if why else ""
    )
