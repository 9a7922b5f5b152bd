"""veRL's ``algorithm.filter_groups`` (DAPO): groups without a difference are replaced by further draws.

A step draws ``data.gen_batch_size`` tasks at a time from the task stream until ``data.train_batch_size``
groups differ in the metric, and keeps the first of them. The next step continues in the stream after the last
draw; a draw's surplus is left out, as in veRL's main_dapo (recipe/dapo/dapo_ray_trainer.py, 0.7).

With an experience pipeline (``trinity/pipelines``) a step is drawn in the same way, until as many groups
have passed its operators; what it drops, and the surplus, then stays in the buffer as dropped.

In the buffer a task's number is its place in the training stream, dense as without a filter; the stream's
position at which each step starts is kept in the buffer's state, so that a repeated step draws the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import value_at
from trinity_compat.job.answer_info import other_task, run_of
from trinity_compat.trinity.algorithms.model import PREFIX
from trinity_compat.trinity.pipelines import SECTION as PIPELINE
from trinity_compat.trinity.pipelines.runner import Feedback, PipelineOutcome, dropped, summed

_REWARD = ("reward", "score", "seq_reward", "seq_final_reward")


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Filter of a step's groups.

    ``metric``: the reward by one of veRL's names for it, or a field of reward_extra_info; "" where the
    operators of a pipeline alone decide. ``max_draws``: 0 for no bound. ``threshold``: groups with a standard
    deviation up to this do not differ (trinity-rft: ``std_threshold`` of grpo_advantage.py). ``by_run``: only
    the last response of a run counts (multi_step_grpo_advantage.py).
    """

    metric: str
    draw_size: int
    batch_size: int
    max_draws: int = 0
    threshold: float = 0.0
    by_run: bool = False

    @classmethod
    def of(cls, verl: Mapping[str, Any]) -> GroupFilter | None:
        """Read it from a veRL configuration; None without filter_groups and without a pipeline."""
        section = verl["algorithm"].get("filter_groups") or {}
        data = verl["data"]
        batch = int(data["train_batch_size"])
        drawn = int(data.get("gen_batch_size") or batch)
        if not section.get("enable"):
            return cls("", drawn, batch) if value_at(verl, PIPELINE) else None
        bound = max(0, int(section.get("max_num_gen_batches") or 0))
        threshold = float(verl["algorithm"].get("trinity_std_threshold") or 0.0)
        by_run = verl["algorithm"].get("adv_estimator") == f"{PREFIX}step_wise_grpo"
        return cls(str(section.get("metric") or "reward"), drawn, batch, bound, threshold, by_run)

    def differs(self, group: Group) -> bool:
        """Return whether the responses differ in the metric, without those that a pipeline dropped.

        A group of one always differs. Raises RunError for a metric that is not a number.
        """
        if not self.metric:
            return True
        last = {
            run_of(part.info, place) if self.by_run else place: part
            for place, part in enumerate(group.experiences)
            if not (part.metrics.get(DROPPED) or other_task(part.info))
        }
        values = [self._value(part) for part in last.values()]
        if len(values) == 1 or not self.threshold:
            return len(values) == 1 or max(values) > min(values)
        return statistics.stdev(values) > self.threshold

    def _value(self, part: Experience) -> float:
        if self.metric == "reward" or (self.metric in _REWARD and self.metric not in part.info):
            return part.reward
        try:
            value = float(part.info[self.metric])
            if math.isfinite(value):  # NaN has no order, and two infinities have no difference
                return value
            raise ValueError(value)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise RunError(
                f"algorithm.filter_groups.metric={self.metric} is not a finite number that the reward"
                f" function returned; it returned {', '.join(sorted(part.info)) or 'the score alone'}",
                hint="name one of these, or reward",
            ) from None


@dataclass(slots=True)
class FilterDraw:
    """One step's draws. ``position``: the next task of the stream."""

    filter: GroupFilter
    step: int
    position: int
    draws: int = 0
    kept: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)  # by a pipeline, to be stored beside the step
    metrics: dict[str, float] = field(default_factory=dict)  # a pipeline's
    feedback: list[Feedback] = field(default_factory=list)  # of its operators to selectors

    @property
    def is_full(self) -> bool:
        """Return whether the step has its groups."""
        return len(self.kept) >= self.filter.batch_size

    @property
    def progress(self) -> str:
        """Its progress, for the log: without a bound draws may go on for long."""
        metric = self.filter.metric
        return (
            f"step:{self.step} - {len(self.kept)} of {self.filter.batch_size} groups"
            f" {f'differ in {metric}' if metric else 'have passed the pipeline'}"
            f" after {self.draws} draws of {self.filter.draw_size} tasks"
        )

    @property
    def step_metrics(self) -> dict[str, float]:
        """Its part of the step's metrics."""
        return {"train/num_gen_batches": float(self.draws)} | self.metrics

    def tasks(self) -> Iterator[int]:
        """Draw the next tasks of the stream. Raises RunError after ``max_draws``."""
        self.check()
        self.draws += 1
        self.position += self.filter.draw_size
        yield from range(self.position - self.filter.draw_size, self.position)

    def check(self) -> None:
        """Raise RunError when it may draw no more."""
        bound = self.filter.max_draws
        if bound and self.draws >= bound:
            raise RunError(
                f"step {self.step} has {len(self.kept)} of {self.filter.batch_size} groups that differ in"
                f" {self.filter.metric} after {bound} draws of {self.filter.draw_size} tasks"
                " (algorithm.filter_groups.max_num_gen_batches)",
                hint="are the tasks too easy or too hard? raise max_num_gen_batches, or 0 for no bound",
            )

    def add(self, groups: Sequence[Group]) -> None:
        """Add the groups of one draw, in the stream's order."""
        self.kept += [group for group in groups if self.filter.differs(group)]

    def add_processed(self, outcome: PipelineOutcome) -> None:
        """Add the groups of one draw that went through a pipeline."""
        self.metrics = summed(self.metrics, outcome.metrics)
        self.feedback += outcome.feedback
        self.dropped += outcome.dropped
        for group in outcome.kept:
            if self.filter.differs(group):
                self.kept.append(group)
            else:
                self.dropped.append(dropped(group, "filter_groups"))
        if self.is_full:
            self.dropped += [dropped(group, "surplus") for group in self.kept[self.filter.batch_size :]]

    def groups(self, history: int) -> list[Group]:
        """Return the step's groups, numbered by their place in the training stream."""
        first = (self.step - 1) * self.filter.batch_size
        kept = enumerate(self.kept[: self.filter.batch_size], first)
        return [replace(group, task_no=slot, key=f"h{history}/train/{slot}") for slot, group in kept]
