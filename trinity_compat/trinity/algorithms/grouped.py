"""Advantages from the rewards of a task's answers: GRPO, its variants, and GiGPO.

    GRPO:   A = (r − mean(group)) / (std(group) + ε)
    GiGPO:  A = A_E(run) + ω A_S(turn);   A_E: F(Σ_t r_t) over the runs of a task,
                                          A_S: F(Σ_{k≥t} γ^{k−t} r_k) over the turns of one state, else 0
            F(x) = (x − mean) / (1 + ε), or ÷ (std + ε) with ``fnorm: std``

GRPO: arXiv 2402.03300. veRL's ``grpo`` has Trinity's numbers; ``std_cal_level: batch`` (2508.08221) is
Trinity's alone. Columns: none beyond rewards and the task's id. GiGPO: below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeAlias

from trinity_compat.common.errors import RunError
from trinity_compat.job.answer_info import OF_RUN, run_of
from trinity_compat.trinity.algorithms.model import (
    FUNCTIONS,
    STEPS,
    AdvantageInput,
    Arguments,
    MaskedAdvantages,
    RegisteredFunction,
    Tensor,
    advantage,
    algorithm,
)


def above_baseline(answers: AdvantageInput, baseline: Callable[[Tensor], Tensor]) -> Tensor:
    """Return each reward less ``baseline`` of its group's rewards [n]; a single answer's baseline is 0."""
    out = answers.rewards.clone()
    for group in answers.groups:
        if len(group) > 1:
            rewards = answers.rewards[list(group)]
            out[list(group)] = rewards - baseline(rewards)
    return out


def standardised(
    answers: AdvantageInput, epsilon: float, *, by_batch: bool = False, rank_penalty: float | None = None
) -> Tensor:
    """Return (reward − the group's mean) ÷ (standard deviation + ``epsilon``), with Bessel's correction.

    The deviation is the group's, or with ``by_batch`` that of all rewards. A single answer's mean is 0 and
    its deviation 1. ``rank_penalty``: mean and deviation are of rewards less a part of each, the larger the
    more likely the answer was among its group (arXiv 2506.02355).
    """
    out = answers.rewards.clone()
    everywhere = answers.rewards.std() if by_batch and len(answers.rewards) > 1 else 1.0
    for group in answers.groups:
        rewards = answers.rewards[list(group)]
        alone = len(group) == 1
        seen = rewards if rank_penalty is None else rewards * (1 - _ranks(answers, group) * rank_penalty)
        mean, own = (0.0, 1.0) if alone else (seen.mean(), seen.std())
        out[list(group)] = (rewards - mean) / ((everywhere if by_batch else own) + epsilon)
    return out


def _ranks(answers: AdvantageInput, group: Sequence[int]) -> Tensor:
    """Return ranks ÷ group size, from 0 for the answer whose tokens were the least likely."""
    mask = answers.mask[list(group)]
    likely = answers.old_log_prob[list(group)].where(mask, 0.0).sum(-1) / mask.sum(-1)
    return likely.argsort().argsort() / len(group)


def runs_of(answers: AdvantageInput) -> list[list[list[int]]]:
    """Return of each group its runs, of each run the positions of its rows in their order.

    An answer without ``info`` is a run.
    """
    infos = answers.info or [{}] * len(answers.rewards)
    made = []
    for group in answers.groups:
        runs: dict[int, list[int]] = defaultdict(list)
        for place in group:
            runs[run_of(infos[place], place)].append(place)
        in_order = [
            sorted(rows, key=lambda place: (infos[place].get(OF_RUN) or {"row": 0})["row"])
            for rows in runs.values()
        ]
        made.append(in_order)
    return made


def consecutive(groups: Sequence[Sequence[object]]) -> list[range]:
    """Return the positions of each group's members when all groups are concatenated."""
    ends = accumulate((len(group) for group in groups), initial=0)
    return [range(begin, end) for begin, end in pairwise(ends)]


_GRPO = "advantage_fn/grpo_advantage.py"

algorithm("grpo", "GRPO", paper="2402.03300", advantage_fn="grpo")
algorithm("grpo_verl", "GRPO, its advantage in the trainer", paper="2402.03300", advantage_fn="grpo")
# What else DAPO has is set apart: clip_range_high, token-mean, algorithm.filter_groups, the overlong penalty.
algorithm("dapo", "DAPO", paper="2503.14476", advantage_fn="grpo", kl_loss_fn="none")


def _verl(arguments: Arguments) -> Mapping[str, object] | None:
    """Return veRL's keys if its grpo gives the same numbers: veRL's ε is fixed."""
    if arguments["epsilon"] != 1e-6 or arguments.get("std_cal_level", "group") != "group":
        return None
    return None if arguments.get("rank_penalty") is not None else {"algorithm.adv_estimator": "grpo"}


def _lacks(arguments: Arguments) -> str:
    if arguments["duplicate_experiences"] and arguments["std_threshold"] is not None:
        return "groups that are left out are replaced by other tasks here, not by copies of others"
    return ""


@advantage("grpo", _GRPO, verl=_verl, lacks=_lacks, columns=("mask", "old_log_prob"))
def grpo(
    answers: AdvantageInput,
    *,
    epsilon: float = 1e-6,
    std_threshold: float | None = None,
    duplicate_experiences: bool = False,
    rank_penalty: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    """GRPO's advantage [N]; the explorer skips groups that deviate by ``std_threshold`` or less."""
    return standardised(answers, epsilon, by_batch=std_cal_level == "batch", rank_penalty=rank_penalty)


@advantage("grpo_verl", _GRPO, verl=_verl)
def grpo_in_trainer(answers: AdvantageInput, *, epsilon: float = 1e-6) -> Tensor:
    """GRPO's advantage [N], computed in the trainer."""
    return standardised(answers, epsilon)


# Multi-step GRPO (after rLLM): A = (r_last − mean) / (std + ε), ÷ the number of steps with enable_step_norm.
# Mean and deviation are over the runs of a task. A run is one row here, or several, each of one step or of
# several that are one conversation: the column ``info`` says which.
algorithm(
    "multi_step_grpo", "GRPO over runs of several steps", paper="2402.03300", advantage_fn="step_wise_grpo"
)


@advantage("step_wise_grpo", "advantage_fn/multi_step_grpo_advantage.py", columns=("info",))
def step_wise_grpo(
    answers: AdvantageInput,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_threshold: float | None = None,
    std_cal_level: Literal["group", "batch"] = "group",
) -> Tensor:
    """The last step's advantage for all steps of its run, [N]."""
    groups = runs_of(answers)
    runs = [run for group in groups for run in group]
    last = AdvantageInput(answers.rewards[[run[-1] for run in runs]], consecutive(groups))
    out = answers.rewards.clone()
    for run, value in zip(runs, standardised(last, epsilon, by_batch=std_cal_level == "batch"), strict=True):
        out[run] = value / (_steps(answers, run) if enable_step_norm else 1)
    return out


def _steps(answers: AdvantageInput, run: list[int]) -> int:
    """Return the number of steps of a run; a row that does not report its steps counts as one."""
    return sum(max(1, len(answers.info[row].get(STEPS) or ())) for row in run) if answers.info else len(run)


_NO_SPREAD = 1e-12  # of a deviation: below it all tokens are kept


@advantage("clipb", "advantage_fn/clipb_advantage.py", columns=("mask", "rollout_log_prob", "entropy"))
def clipb(answers: AdvantageInput, *, epsilon: float = 1e-6, mu: float = 2.5) -> MaskedAdvantages:
    """GRPO without the tokens of bad answers that change the policy's entropy most (arXiv 2602.03392).

    S_t = p_t (H_t + log p_t), p_t the token's probability in the rollout, H_t the policy's entropy at the
    step's start. A token counts unless A < 0 and S_t − E[S] < −μ σ(S), over the tokens of the update; another
    counts nowhere: no loss, no KL, no length. Returns advantages [N, T] and the mask.
    """
    mask = answers.mask
    advantages = standardised(answers, epsilon).unsqueeze(-1) * mask
    log_prob = answers.rollout_log_prob
    signal = log_prob.exp() * (answers.entropy + log_prob)
    seen = signal[mask]
    mean, variance = seen.mean(), seen.var(correction=0)
    deviation = variance.sqrt()
    kept = mask & ((advantages >= 0) | (signal - mean >= -mu * deviation) | (deviation < _NO_SPREAD))
    figures = {
        "frac_clipped": _left_out(kept, mask),
        "frac_clipped_pos": _left_out(kept, mask & (advantages > 0)),
        "frac_clipped_neg": _left_out(kept, mask & (advantages < 0)),
        "ES": mean,
        "varS": variance,
    }
    return MaskedAdvantages(advantages, kept, {name: float(value) for name, value in figures.items()})


def _left_out(kept: Tensor, of: Tensor) -> Tensor:
    """Return the share of the tokens in ``of``; 1 if it has none, as upstream."""
    return 1 - (kept & of).sum() / of.sum().clamp(min=1)


FUNCTIONS["advantage_fn"]["clipv"] = RegisteredFunction(
    "advantage_fn",
    "clipv",
    "",
    lacks=lambda _: (
        "it reads a column, necs, that nothing in trinity-rft 0.6.0 fills: it ends there with a KeyError"
    ),
)


# GiGPO, arXiv 2505.10978. Columns: the further values that the reward function returned with the reward:
# ``env_state_hash_key`` and ``step_reward_key`` name a value for a run of one turn, or a list with one for
# each turn. Without step rewards a run's reward is its last turn's; without states A_S is 0, as in Trinity.
# Trinity has one experience a turn; a run is one row here, or several, each of one turn or more: ``info``
# says which.
Turn: TypeAlias = tuple[int, int]  # (answer, turn), each from 0

algorithm("gigpo", "GiGPO", paper="2505.10978", advantage_fn="gigpo")


@advantage("gigpo", "advantage_fn/gigpo_advantage.py", columns=("mask", "info"))
def gigpo(
    answers: AdvantageInput,
    *,
    omega: float = 1.0,
    gamma: float = 1.0,
    fnorm: Literal["std", "none"] = "none",
    epsilon: float = 1e-6,
    step_reward_key: str = "step_reward",
    env_state_hash_key: str = "env_state_hash",
) -> Tensor:
    """GiGPO's advantage [N, T]."""
    turn_of = _turns(answers.mask)
    counts = [int(turns.max()) + 1 for turns in turn_of]
    keys = (step_reward_key, env_state_hash_key)
    for key in keys:
        _check_counts(key, answers, counts)
    # An answer that trains no token (an operator's mask) has as many turns as its longest list of values.
    lengths = [
        [len(_as_list(info[key])) for key in keys if info.get(key) is not None] for info in answers.info
    ]
    counts = [count or max(each, default=0) for count, each in zip(counts, lengths, strict=True)]
    groups = runs_of(answers)
    runs = [run for group in groups for run in group]
    rewards = [_step_rewards(answers, run, counts, step_reward_key) for run in runs]
    episodes = answers.rewards.new_tensor([sum(map(sum, rows)) for rows in rewards])
    of_rows = answers.rewards.clone()
    for run, score in zip(runs, _over_groups(consecutive(groups), episodes, fnorm, epsilon), strict=True):
        of_rows[run] = score
    values = of_rows.unsqueeze(-1) * answers.mask
    returns = {
        row: returned
        for run, rows in zip(runs, rewards, strict=True)
        for row, returned in zip(run, _returns(rows, gamma), strict=True)
    }
    for (answer, turn), score in _state_advantages(answers, returns, env_state_hash_key, fnorm, epsilon):
        values[answer] += omega * score * (turn_of[answer] == turn)
    return values


def _turns(mask: Tensor) -> Tensor:
    """Return the turn of each of the policy's tokens, int [N, T], from 0; −1 elsewhere.

    The environment's tokens separate turns.
    """
    mask = mask.long()
    begins = mask.clone()
    begins[:, 1:] -= mask[:, 1:] * mask[:, :-1]
    return (begins.cumsum(-1) * mask) - 1


def _check_counts(key: str, answers: AdvantageInput, counts: Sequence[int]) -> None:
    for info, count in zip(answers.info, counts, strict=True):
        if count and info.get(key) is not None and len(values := _as_list(info[key])) != count:
            raise RunError(
                f"gigpo: {key} has {len(values)} values for an answer of {count} turns",
                hint="the scoring has to return one for each of the policy's turns",
            )


def _step_rewards(
    answers: AdvantageInput, run: Sequence[int], counts: Sequence[int], key: str
) -> list[list[float]]:
    """Return the reward of each turn, for each row of a run.

    A turn without one has 0; if no row of the run has any, the run's reward is its last turn's.
    """
    step_rewards = [answers.info[row].get(key) for row in run]
    rewards = [
        [0.0] * max(1, counts[row]) if each is None else [float(step or 0.0) for step in _as_list(each)]
        for row, each in zip(run, step_rewards, strict=True)
    ]
    if all(each is None for each in step_rewards):
        rewards[-1][-1] = float(answers.rewards[run[-1]])
    return rewards


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _over_groups(groups: Iterable[Sequence[int]], values: Tensor, fnorm: str, epsilon: float) -> Tensor:
    """Return F over each group; a single value has the mean 0 and the deviation 1."""
    out = values.clone()
    for group in groups:
        own, alone = values[list(group)], len(group) == 1
        spread = own.std() if fnorm == "std" and not alone else 1.0
        out[list(group)] = (own - (0.0 if alone else own.mean())) / (spread + epsilon)
    return out


def _state_advantages(
    answers: AdvantageInput, returns: Mapping[int, Sequence[float]], key: str, fnorm: str, epsilon: float
) -> Iterable[tuple[Turn, Tensor]]:
    """Yield (turn, its A_S) for turns whose state began another turn too."""
    places: dict[str, list[Turn]] = defaultdict(list)
    for answer, info in enumerate(answers.info):
        for turn, state in enumerate(_as_list(info.get(key))):
            if state is not None:
                places[str(state)].append((answer, turn))
    for turns in places.values():
        if len(turns) > 1:
            values = answers.rewards.new_tensor([returns[answer][turn] for answer, turn in turns])
            yield from zip(turns, _over_groups([range(len(turns))], values, fnorm, epsilon), strict=True)


def _returns(rewards: Sequence[Sequence[float]], gamma: float) -> list[list[float]]:
    """Return the discounted return of each turn, for each row of a run."""
    backwards = accumulate(
        (step for row in rewards[::-1] for step in row[::-1]), lambda after, step: step + gamma * after
    )
    whole = list(backwards)[::-1]
    return [whole[places.start : places.stop] for places in consecutive(rewards)]
