"""Takes groups through a run's operators, and keeps account of what becomes of each answer.

Invariant: each answer that comes in goes out once, trained or marked as dropped, with its own tokens. An
operator may change rewards, masks, metrics and info; it may not make answers of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trinity_compat.buffer.model import DROPPED, DROPPED_KIND, TRUNCATED, Experience, Group
from trinity_compat.common.errors import RunError
from trinity_compat.job.answer_info import OF_RUN, other_task
from trinity_compat.trinity.pipelines import DATA_JUICER
from trinity_compat.trinity.pipelines.juicer.experiences import DataJuicer
from trinity_compat.trinity.pipelines.operators import OPERATORS, SELECTOR_METRIC

LIMIT_S = 1800.0  # for one operator on one batch: one that hangs must not hold the run for ever
DROPPED_BY = "dropped_by"  # in the info of a dropped answer: the operator's name
_PREFIX = "experience_pipeline/"
_OF_THE_RUN = ("model_version", "model_version_drift", "use_count", "task_index")
Place = tuple[str, int]  # an answer: its group's key, its run
Feedback = tuple[int, list[int], list[float]]  # a taskset, rows of it, their mean rewards


@dataclass(frozen=True, slots=True)
class PipelineOutcome:
    """Result of the operators: ``kept`` groups have an answer to train, ``dropped`` ones have none.

    ``feedback``: values that the operators report to the tasksets' selectors.
    """

    kept: list[Group]
    dropped: list[Group]
    metrics: dict[str, float]
    feedback: Sequence[Feedback] = ()


class OperatorPipeline:
    """The operators of a run, in their order."""

    def __init__(
        self,
        operators: Sequence[tuple[str, Mapping[str, Any]]],
        place: Callable[[int], tuple[int, int]] = lambda task_no: (0, task_no),
    ) -> None:
        """Create the operators. Raises RunError for one that cannot be created.

        ``operators``: names and arguments; operators of plugins are registered in this process already
        (``workflows.plugins.load``). ``place``: taskset of a task's number, and its row there.
        """
        self._named = [(name, _made(name, arguments)) for name, arguments in operators]
        self._row = place
        common = importlib.import_module("trinity.common.experience")
        self._experience, self._id = common.Experience, common.EID

    async def prepare(self, auxiliary: Mapping[str | int, list[Any]] | None = None) -> None:
        """Prepare the operators before the first batch. ``auxiliary``: clients of the auxiliary models."""
        for name, operator in self._named:
            if hasattr(operator, "set_auxiliary_model"):
                operator.set_auxiliary_model(dict(auxiliary or {}))
            if hasattr(operator, "prepare"):
                await _done(name, operator.prepare)

    async def close(self) -> None:
        """Close the operators after the last batch; their exceptions are ignored."""
        for name, operator in self._named:
            if hasattr(operator, "close"):
                with suppress(RunError):
                    await _done(name, operator.close)

    async def process(self, groups: Sequence[Group], step: int) -> PipelineOutcome:
        """Process one batch of ``step``.

        Raises RunError with an operator's exception, for one that takes longer than ``LIMIT_S``, and for
        experiences that it was not passed.
        """
        places = {(group.key, part.run): (group, part) for group in groups for part in group.experiences}
        alive = [self._as_trinity(group, part, step) for group, part in places.values()]
        by: dict[Place, str] = {}
        metrics: dict[str, Any] = {}
        for number, (name, operator) in enumerate(self._named):
            began = time.monotonic()
            before = {_place(each) for each in alive}
            alive, reported = _checked(name, await _done(name, operator.process, alive), before)
            by |= dict.fromkeys(before - {_place(each) for each in alive}, name)
            metrics |= {**reported, f"time/operator/{number}_{name}": time.monotonic() - began}
        metrics["experience_count"] = len(alive)
        kept, left_out = _parted(groups, {_place(each): each for each in alive}, by)
        # Upstream's names, but without the second prefix of its times.
        figures = {f"{_PREFIX}{name}": float(value) for name, value in metrics.items() if _is_number(value)}
        figures |= {DROPPED: float(len(by)), f"{_PREFIX}dropped_groups": float(len(left_out))}
        return PipelineOutcome(kept, left_out, figures, _feedback(metrics.get(SELECTOR_METRIC) or {}))

    def _as_trinity(self, group: Group, part: Experience, step: int) -> Any:
        """Experiences as upstream's explorer passes them to its pipeline (explorer/workflow_runner.py)."""
        numbers = {name: value for name, value in part.info.items() if _is_number(value)}
        taskset, index = self._row(group.task_no)
        of_run = part.info.get(OF_RUN) or {"run": part.run, "row": 0}
        made = self._experience(
            eid=self._id(
                batch=step, task=group.key + other_task(part.info), run=of_run["run"], step=of_run["row"]
            ),
            tokens=[*map(int, part.prompt_ids), *map(int, part.response_ids)],
            prompt_length=len(part.prompt_ids),
            logprobs=[float(value) for value in part.logprobs],
            action_mask=[bool(own) for own in part.response_mask],
            reward=part.reward,
            metrics={**numbers, **part.metrics},
            info={
                **part.info,
                "model_version": part.min_model_version,
                "model_version_drift": part.max_model_version - part.min_model_version,
                "use_count": 0,
                "task_index": {"taskset_id": taskset, "index": index},
            },
            truncate_status="response_truncated" if part.metrics.get(TRUNCATED) else None,
            prompt_text=part.prompt_text,
            response_text=part.response_text,
        )
        made.place = (group.key, part.run)  # its id is the operators' to change
        return made


def _made(name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        if name == DATA_JUICER:  # ours also beside trinity-rft, whose service's filters drop nothing
            return DataJuicer(**arguments)
        if name in OPERATORS:
            return OPERATORS[name](**arguments)
        found = importlib.import_module("trinity.buffer.operators").EXPERIENCE_OPERATORS.get(name)
        return found(**arguments)
    except Exception as error:
        raise RunError(f"the operator {name} cannot be made: {type(error).__name__}: {error}") from error


async def _done(name: str, call: Any, *given: Any) -> Any:
    """Result of an operator's method; a plain function runs in a thread, so that it does not block."""
    try:
        async with asyncio.timeout(LIMIT_S):
            if inspect.iscoroutinefunction(call):
                return await call(*given)
            return await asyncio.to_thread(call, *given)
    except TimeoutError as error:
        raise RunError(f"the operator {name} took more than {LIMIT_S:g} s for one batch") from error
    except Exception as error:
        raise RunError(f"the operator {name} failed: {type(error).__name__}: {error}") from error


def _checked(name: str, answer: Any, given: set[Place]) -> tuple[list[Any], dict[str, Any]]:
    """Experiences that an operator keeps, and its metrics. Raises RunError."""
    try:
        alive, metrics = answer
        places = Counter(_place(each) for each in alive)
    except AttributeError as error:
        raise RunError(f"the operator {name} returned experiences that it made itself") from error
    except (TypeError, ValueError) as error:
        raise RunError(
            f"the operator {name} returned {type(answer).__name__}, not experiences and metrics"
        ) from error
    if strange := set(places) - given:
        raise RunError(f"the operator {name} returned {len(strange)} experiences that it was not given")
    if twice := [place for place, count in places.items() if count > 1]:
        raise RunError(f"the operator {name} returned {len(twice)} experiences more than once")
    for each in alive:
        if not _is_number(each.reward):
            raise RunError(f"the operator {name} gave an experience the reward {each.reward!r}")
    return list(alive), dict(metrics or {})


def _place(each: Any) -> Place:
    """Raises AttributeError for an experience of the operator's own making."""
    place: Place = each.place
    return place


def _is_number(value: object) -> bool:
    """Return whether it is a finite number."""
    try:
        return isinstance(value, int | float | np.number) and math.isfinite(value)
    except (OverflowError, TypeError):  # 10**400; a complex number of numpy's
        return False


def _parted(
    groups: Sequence[Group], alive: Mapping[Place, Any], by: Mapping[Place, str]
) -> tuple[list[Group], list[Group]]:
    """Return the groups with an answer to train, and those without one."""
    kept, left_out = [], []
    for group in groups:
        parts = [
            _changed(part, alive[place])
            if (place := (group.key, part.run)) in alive
            else _dropped_answer(part, by[place], apart=False)
            for part in group.experiences
        ]
        if any((group.key, part.run) in alive for part in parts):
            kept.append(replace(group, experiences=tuple(parts)))
        else:
            left_out.append(dropped(group, by))
    return kept, left_out


def _changed(part: Experience, made: Any) -> Experience:
    """Changes that operators may make. Raises RunError for changed tokens, which lack log-probs."""
    if [*map(int, made.tokens)] != [*map(int, part.prompt_ids), *map(int, part.response_ids)]:
        raise RunError(
            "an operator changed the tokens of an experience, whose log-probabilities are then unknown"
        )
    mask = np.array([bool(own) for own in made.action_mask], dtype=np.uint8)
    if mask.shape != part.response_mask.shape:
        raise RunError(f"an operator gave {len(part.response_ids)} tokens an action_mask of {len(mask)}")
    numbers = {name: value for name, value in part.info.items() if _is_number(value)}
    metrics = {name: value for name, value in (made.metrics or {}).items() if _is_number(value)}
    own = {name: float(value) for name, value in metrics.items() if numbers.get(name) != value}
    info = {name: value for name, value in (made.info or {}).items() if name not in _OF_THE_RUN}
    return replace(
        part,
        reward=float(made.reward),
        response_mask=mask,
        metrics=own,
        info={name: value for name, value in info.items() if name in part.info or _is_json(value)},
    )


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _dropped_answer(part: Experience, name: str, *, apart: bool) -> Experience:
    """Copy of an answer that the operator ``name`` dropped.

    ``apart``: its group is not trained, so its info is not read as a reward function's result.
    """
    info = {**part.info, DROPPED_BY: name} if apart else part.info
    return replace(part, metrics={**part.metrics, DROPPED: 1.0}, info=info)


def dropped(group: Group, by: Mapping[Place, str] | str) -> Group:
    """Copy of the group that is stored and never trained."""
    parts = (
        _dropped_answer(part, by if isinstance(by, str) else by[group.key, part.run], apart=True)
        for part in group.experiences
    )
    key = group.key.replace("/train/", f"/{DROPPED_KIND}/", 1)
    return replace(group, key=key, kind=DROPPED_KIND, experiences=tuple(parts))


def _feedback(rates: Any) -> list[Feedback]:
    """``selector_metric`` of the last operator that has one. Raises RunError for an invalid one."""
    try:
        found = [
            (int(taskset), [int(row) for row in each["indices"]], [float(rate) for rate in each["values"]])
            for taskset, each in rates.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"an operator's {SELECTOR_METRIC} is not indices and values of tasksets") from error
    if any(len(rows) != len(rates) or not all(map(math.isfinite, rates)) for _, rows, rates in found):
        raise RunError(f"an operator's {SELECTOR_METRIC} has not one number for each of its indices")
    return found


def summed(so_far: Mapping[str, float], metrics: Mapping[str, float]) -> dict[str, float]:
    """Join metrics of several batches: sums of counts and seconds, else the last batch's value."""
    added = {}
    for name, value in metrics.items():
        own = name.removeprefix(_PREFIX)
        if name in so_far and (own.endswith("count") or own.startswith(("dropped", "time/"))):
            added[name] = value + so_far[name]
    return {**so_far, **metrics, **added}
