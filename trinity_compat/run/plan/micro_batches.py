"""Micro-batch sizes as the pinned veRL demands them, said before anything starts and not by its workers.

It takes sizes per GPU only (verl.workers.engine_workers). Until 0.7 veRL took sizes over all GPUs too, and
divided them itself. Which sizes it demands: ``translate/micro_batch_sizes.py``, which translate asks too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.run.plan.refusals import place
from trinity_compat.run.plan.source import LaunchRecord
from trinity_compat.run.plan.verl_view import ACTOR, REF, ROLLOUT, Step, VerlView
from trinity_compat.translate import micro_batch_sizes
from trinity_compat.translate.micro_batch_sizes import missing, sizes
from trinity_compat.verl_config import PINNED


def divided(verl: VerlView) -> Step:
    """Write sizes over all GPUs per GPU instead, as veRL itself did until 0.7, with notes.

    See fsdp_workers.py and megatron_workers.py. A size that isn't a number is left to ``check``.
    """
    value = partial(value_at, verl.tree)
    values: dict[str, object] = {}
    lines = []
    for size in sizes(value):
        given = value(size.all_gpus)
        # type() and not isinstance(): a bool is an int, and no size.
        if type(given) is not int or given < 1 or size.is_dynamic(value):
            continue
        # A size per GPU stays where a launch says both; a GPU computes one row at least.
        each = value(size.per_gpu) or max(1, given // verl.ranks(size.role))
        values |= {size.all_gpus: None, size.per_gpu: each}
        lines.append(f"{size.all_gpus}={given} over all GPUs: veRL {PINNED} gets {size.per_gpu}={each}")
    return verl.changed(values), lines


LOG_PROBS = (
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    (f"{REF}.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_use_dynamic_bsz"),
)


def of_log_probs(verl: VerlView) -> Step:
    """Sizes that divide the answers of each GPU, as the pinned veRL's workers require.

    See workers/engine/utils.py; until 0.7 the last micro-batch was smaller. No log-probability depends on it.
    Answers that the GPUs cannot share evenly are refused elsewhere.
    """
    answers, over = (verl.batches.train or 0) * verl.batches.group, verl.ranks(ACTOR)
    return (verl, []) if answers % over or not answers else cut(verl, answers // over, LOG_PROBS, "answers")


def cut(
    verl: VerlView, share: int, sizes: Sequence[tuple[str, str]], what: str = "rows", unit: int = 1
) -> Step:
    """The largest sizes up to the configured ones that divide each GPU's ``share`` in whole units.

    Returns a note for each size that differs. ``sizes``: each with the key that makes it one of tokens;
    ``unit``: the least size.
    """
    values, lines = {}, []
    for size, dynamic in sizes:
        configured = value_at(verl.tree, size)
        if type(configured) is not int or configured < 1 or value_at(verl.tree, dynamic):
            continue
        fits = max(each for each in range(unit, max(configured, unit) + 1, unit) if share % each == 0)
        if fits != configured:
            values[size] = fits
            lines.append(f"{size}={configured}: {fits}, which divides the {share} {what} of each GPU")
    return verl.changed(values), lines


def check(verl: Tree, record: LaunchRecord) -> None:
    """Raises UserError for a size that veRL would refuse or miss. ``record``: config/launch.json."""
    value = partial(value_at, verl)
    for size in sizes(value):
        per_gpu, all_gpus = value(size.per_gpu), value(size.all_gpus)
        if all_gpus is not None and not size.is_dynamic(value):
            raise UserError(
                f"{size.all_gpus}={all_gpus}: veRL {PINNED} takes the size of one GPU's micro-batch only",
                where=place(record, (size.all_gpus,)),
                hint=f"write {size.per_gpu}={per_gpu or '… (yours divided by the GPUs that train)'} instead",
            )
    for lacking in missing(value, lambda key: f"{key}={value(key)}"):
        raise UserError(lacking.message, where=place(record, (lacking.key,)), hint=lacking.hint)


def has_critic(verl: Tree) -> bool:
    """``micro_batch_sizes.has_critic`` of a configuration."""
    return micro_batch_sizes.has_critic(partial(value_at, verl))
