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
from trinity_compat.translate.micro_batch_sizes import USE_V1, critic_tokens, missing, sizes
from trinity_compat.translate.update_steps import BATCH, mini_batches, uneven
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


def whole_updates(verl: VerlView) -> Step:
    """Updates of the critic that divide a step, as `translate` gives the actor: v0's trainer fills up none.

    See make_iterator in utils/tensordict_utils.py. Raises UserError where no even cut is near.
    """
    key, batch = "critic.ppo_mini_batch_size", verl.batches.train
    if not batch or not has_critic(verl.tree) or value_at(verl.tree, USE_V1):
        return verl, []
    mini = verl.size(key)
    if batch % mini == 0:
        return verl, []
    if (even := uneven(batch, mini)) is None:
        mini_batches(batch, mini, key=key)
        return verl, []
    words = f"{key}={mini}: {even.prompts}, which divides {BATCH}={batch}"
    return verl.changed({key: even.prompts}), [f"{words} ({even.count} update(s) a step)"]


LOG_PROBS = (
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    (f"{REF}.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_use_dynamic_bsz"),
)


UPDATES = ((f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz"),)


def of_answers(verl: VerlView) -> Step:
    """Sizes that divide the answers of each GPU, as the pinned veRL's workers require.

    See workers/engine/utils.py; until 0.7 the last micro-batch was smaller. No log-probability depends on it,
    and the loss of an update is normalised over all of its answers. Where the GPUs cannot share the answers
    evenly fillers make whole micro-batches of the configured size (``trainer/rank_fillers.py``).
    """
    group, over, lines = verl.batches.group, verl.ranks(ACTOR), list[str]()
    for prompts, sizes_ in ((verl.batches.mini, UPDATES), (verl.batches.train, LOG_PROBS)):
        share, rest = divmod((prompts or 0) * group, over)
        if share and not rest:
            verl, more = cut(verl, share, sizes_, "answers")
            lines += more
    return verl, lines


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


# Tokens of a micro-batch on one GPU: the key, what cuts by them, and whose rows they are.
_TOKENS = (
    (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.use_dynamic_bsz", ACTOR),
    (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz", ACTOR),
    (f"{REF}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_use_dynamic_bsz", REF),
)


def with_room(verl: VerlView, launch: VerlView) -> Step:
    """Tokens that hold a whole row where those of the launch did, on more GPUs for a row than the plan has.

    veRL ends at a row that they do not hold (utils/seqlen_balancing.py, rearrange_micro_batches). Where the
    launch's do not, a warning says so: its rows may be shorter.
    """
    values, lines, short = {}, [], dict[tuple[int, int], list[str]]()
    whole = sum(_positive(verl, f"data.max_{name}_length") for name in ("prompt", "response"))
    value = partial(value_at, verl.tree)
    needed = {size.role for size in sizes(value)}
    limits = [(key, value(key), role) for key, dynamic, role in _TOKENS if role in needed and value(dynamic)]
    if has_critic(verl.tree):
        limits.append((*critic_tokens(value), "critic"))
    for key, tokens, role in limits:
        spread = verl.spread(role)
        if type(tokens) is not int or tokens < 1 or tokens * spread >= whole:
            continue
        least = -(-whole // spread)
        if whole <= tokens * launch.spread(role):
            values[key] = least
            lines.append(f"{key}={tokens}: {least}, which holds a row of {whole} on {spread} GPU(s)")
        else:
            short.setdefault((tokens, spread), []).append(key)
    for (tokens, spread), keys in short.items():
        lines.append(
            f"warning: {' and '.join(keys)}: {tokens} on each of {spread} GPU(s) holds no row of {whole}"
            " tokens (prompt and response), and veRL ends the run at the first one that is longer; write"
            f" {-(-whole // spread)} or more"
        )
    return verl.changed(values), lines


def _positive(verl: VerlView, key: str) -> int:
    value = value_at(verl.tree, key)
    return value if type(value) is int and value > 0 else 0


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
