"""A run's experiences as rows that can be trained.

A task has n runs. What a run returns becomes one row where each prompt begins with all tokens before it;
several where it does not, or where every experience is to count by itself (docs/decisions/steps-of-a-run.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from trinity_compat.trinity.algorithms.model import STEPS

# ``joined``: a run is one row, or refused. ``chains``: a row for all experiences that go on from each other.
# ``each``: a row for every experience, as in trinity-rft.
Parting: TypeAlias = Literal["joined", "chains", "each"]

TRUNCATED_ROWS = "rollout/truncated_rows"  # in a row's metrics, and summed over a step's


@dataclass(frozen=True, slots=True)
class RunStep:
    """Facts of one experience of a run: its ``eid.step``, its reward, its ``info``.

    ``turns``: number of the model's turns in it.
    """

    step: int
    reward: float
    turns: int
    info: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class TrainableRow:
    """A run, or a part of one: token ids of prompt [P] and response [R], mask and log-probabilities [R].

    ``info``: numbers and texts that the workflow reports to operators. ``truncated``: its end was cut.
    ``steps``: the experiences that it was joined from, of which the last gives the reward. ``run``: number
    of its run in the task, from 0; ``place``: its number in that run. ``task``: the workflow's name of
    the task (eid.task) if it is not the run's; such rows are not compared.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float
    turns: int
    metrics: Mapping[str, float]
    info: Mapping[str, float | str] = field(default_factory=dict)
    truncated: bool = False
    steps: tuple[RunStep, ...] = ()
    run: int = 0
    place: int = 0
    task: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in tokens: of a task's prompt, and of an answer to one call.

    ``given``: of all calls of a row together, including its prompt (``whole``); None: the sum of the two. As
    trinity-rft's max_prompt_tokens, max_response_tokens and max_model_len (0.6.0, common/models/model.py).
    """

    prompt: int
    response: int
    given: int | None = None

    @classmethod
    def of(cls, rollout: Any) -> Limits:
        """Limits of veRL's rollout section."""
        return cls(int(rollout.prompt_length), int(rollout.response_length), rollout.get("max_model_len"))

    @property
    def whole(self) -> int:
        """Prompt and responses of a row."""
        return self.given or self.prompt + self.response


def rows_of(
    experiences: Sequence[Any],
    limits: Limits,
    *,
    parting: Parting = "joined",
    by_step: bool = False,
    evaluates: bool = False,
    task: str = "",
) -> list[TrainableRow]:
    """Convert a run's experiences, in their order.

    ``by_step``: the algorithm reads their rewards one by one. An evaluation has one row, the run's last.
    ``task``: their eid.task. Raises ValueError for experiences that cannot be trained on.
    """
    if not experiences:
        raise ValueError("the workflow returned no experience")
    tasks = [str(experience.eid.task) for experience in experiences]
    own_task = task if task in tasks else tasks[0]
    parts = [
        replace(_read(experience, evaluates=evaluates), task="" if name == own_task else name)
        for experience, name in zip(experiences, tasks, strict=True)
    ]
    if evaluates:
        own = [part for part in parts if not part.task]
        merged = {name: value for part in own for name, value in part.metrics.items()}
        rows = [replace(_chains(own)[-1], metrics=merged)]
    elif parting == "joined":
        rows = [_joined(parts, by_step=by_step)]
    else:
        rows = parts if parting == "each" else _chains(parts)
    for row in rows:
        if (length := len(row.prompt_ids)) > limits.prompt:
            raise ValueError(f"a prompt of {length} tokens exceeds max_prompt_tokens={limits.prompt}")
    return [replace(_cut(row, limits.whole), place=place) for place, row in enumerate(rows)]


def _joined(parts: Sequence[TrainableRow], *, by_step: bool) -> TrainableRow:
    rewards = dict.fromkeys(part.reward for part in parts)
    if not by_step and len(rewards) > 1:
        listed = ", ".join(f"{reward:g}" for reward in rewards)
        raise ValueError(
            f"a run's experiences have different rewards ({listed}), and the algorithm takes one reward for a"
            f" run: {_WRITE}"
        )
    row, *more = _chains(parts)
    if more:
        raise ValueError(
            "a run's experiences are not one conversation: the prompt of the later does not begin with the"
            f" earlier's tokens: {_WRITE}, or let the run return one experience"
            " (process_messages_to_experience)"
        )
    return row


def _chains(parts: Sequence[TrainableRow]) -> list[TrainableRow]:
    """Join rows while each prompt begins with all tokens before it."""
    rows = [*parts[:1]]
    for after in parts[1:]:
        whole = rows[-1]
        before = [*whole.prompt_ids, *whole.response_ids]
        if after.task == whole.task and after.prompt_ids[: len(before)] == before:
            rows[-1] = _appended(rows[-1], after)
        else:
            rows.append(after)
    return rows


_WRITE = (
    "write algorithm_type: multi_step_grpo (a run's reward is its last one's) or gigpo, or"
    " trinity_compat.steps_as_rows: true (each is compared with every other)"
)


def _read(experience: Any, *, evaluates: bool) -> TrainableRow:
    metrics = {
        str(name): _number(value, f"metric {name}") for name, value in (experience.metrics or {}).items()
    }
    reward = experience.reward
    if reward is None and evaluates:  # upstream's math_eval_workflow measures, and gives no reward
        reward = metrics.get("accuracy")
    if reward is None:
        raise ValueError("an experience has no reward: the workflow sets it")
    reward = _number(reward, "reward")
    if not math.isfinite(reward):
        raise ValueError(f"an experience has the reward {reward}: a finite number is needed")
    tokens = [int(token) for token in experience.tokens]
    length = int(experience.prompt_length)
    response = tokens[length:]
    mask = experience.action_mask
    logprobs = experience.logprobs
    row = TrainableRow(
        tokens[:length],
        response,
        [1] * len(response) if mask is None else [int(own) for own in mask],
        [0.0] * len(response) if logprobs is None else [float(value) for value in logprobs],
        reward,
        2,
        metrics,
        {
            name: value
            for name, value in (experience.info or {}).items()
            if isinstance(value, int | float | str)
        },
        getattr(experience, "truncate_status", None) == "response_truncated",
    )
    if not len(row.response_ids) == len(row.mask) == len(row.logprobs):
        raise ValueError(
            f"an experience has {len(response)} response tokens, {len(row.mask)} in its mask and"
            f" {len(row.logprobs)} log-probabilities"
        )
    return replace(row, steps=(RunStep(int(experience.eid.step), row.reward, _turns(row.mask), row.info),))


def _number(value: Any, name: str) -> float:
    """Convert to float; raise ValueError with the name for a value that no float holds."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"an experience's {name} is not a number that a float holds ({error})") from error


def _appended(whole: TrainableRow, after: TrainableRow) -> TrainableRow:
    """Join a turn and the next one, whose prompt continues it; tokens between are not the model's."""
    between = after.prompt_ids[len(whole.prompt_ids) + len(whole.response_ids) :]
    silent: list[float] = [0.0] * len(between)
    return TrainableRow(
        whole.prompt_ids,
        [*whole.response_ids, *between, *after.response_ids],
        [*whole.mask, *(0 for _ in between), *after.mask],
        [*whole.logprobs, *silent, *after.logprobs],
        after.reward,
        whole.turns + 2,
        {**whole.metrics, **after.metrics},
        {**whole.info, **after.info},
        whole.truncated or after.truncated,
        (*whole.steps, *after.steps),
        task=whole.task,
    )


def _turns(mask: Sequence[int]) -> int:
    """Count the stretches of ones."""
    return sum(own > before for own, before in zip(mask, [0, *mask], strict=False))


def by_step(row: TrainableRow) -> dict[str, Any]:
    """Return facts of a row's experiences, for advantages that read them.

    ``steps``, and each value of their ``info`` as a list with an entry for every remaining turn of the model,
    None where it has no value. An experience of several turns has it at its first.
    """
    names = dict.fromkeys(name for step in row.steps for name in step.info)
    first = [step if turn == 0 else None for step in row.steps for turn in range(step.turns)]
    remaining = first[: _turns(row.mask)]
    values = {name: [step and step.info.get(name) for step in remaining] for name in names}
    return {**values, STEPS: [{"step": step.step, "reward": step.reward} for step in row.steps]}


def _cut(row: TrainableRow, whole: int) -> TrainableRow:
    """Truncate a row to ``whole`` tokens with its prompt, and mark a truncated row in its metrics."""
    limit = whole - len(row.prompt_ids)
    if len(row.response_ids) > limit:
        row = replace(
            row,
            response_ids=row.response_ids[:limit],
            mask=row.mask[:limit],
            logprobs=row.logprobs[:limit],
            truncated=True,
        )
    return replace(row, metrics={**row.metrics, TRUNCATED_ROWS: 1.0}) if row.truncated else row
