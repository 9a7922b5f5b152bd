"""Mode ``debug``, module ``reward``: a job's reward function, as its file is now, on stored answers."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_compat.buffer.images import kept
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.report import BufferReport
from trinity_compat.buffer.row_fields import carried
from trinity_compat.buffer.typed_json import plain
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.configuration import configuration
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.reward_model.address import is_served
from trinity_compat.explorer.rewards.scoring import LocalScorer, Score, describe
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.trinity.workflows.tasksets import AGENT


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """Answer number ``answer`` (None: every one) to task ``task`` of the ``train`` or ``val`` data."""

    task: int = 0
    data: str = "train"
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class Rescored:
    """A stored answer and its score now.

    ``seconds`` and ``printed`` belong to the whole group where the function takes a group at once.
    """

    stored: Experience
    score: Score
    seconds: float
    printed: str

    @property
    def differs(self) -> bool:
        """True where the score now is not the stored one, up to the rounding of a float32."""
        return abs(self.stored.reward - self.score.reward) > 1e-6 * max(1.0, abs(self.score.reward))


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """Stored answers to one task with their scores now."""

    function: str
    task: Mapping[str, Any]
    prompt: str
    answers: Sequence[Rescored]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"by        {self.function}"
        yield f"task      index {self.task.get('index')} of data_source {self.task.get('data_source')!r}"
        yield f"truth     {(self.task.get('reward_model') or {}).get('ground_truth')!r}"
        yield f"extra     {self.task.get('extra_info')!r:.2000}"
        yield f"prompt    {self.prompt!r}"
        for each in self.answers:
            yield f"answer {each.stored.run}  {each.stored.response_text!r}"
            info = f", {dict(each.score.info)}" if each.score.info else ""
            now = f"now {each.score.reward:g} in {each.seconds:.3f} s{info}"
            yield f"          stored {each.stored.reward:g}, {now}{'  ← differs' if each.differs else ''}"
            for line in each.printed.splitlines():
                yield f"          printed: {line}"
        count = sum(each.differs for each in self.answers)
        yield f"{count} of {len(self.answers)} scores differ from the stored ones"

    def record(self) -> dict[str, Any]:
        """Return the content of the output file."""
        answers = [
            {
                "answer": each.stored.run,
                "response_text": each.stored.response_text,
                "stored": each.stored.reward,
                "reward": each.score.reward,
                "info": dict(each.score.info),
                "seconds": each.seconds,
                "printed": each.printed,
            }
            for each in self.answers
        ]
        record = {
            "by": self.function,
            "task": dict(self.task),
            "prompt_text": self.prompt,
            "answers": answers,
        }
        return dict(plain(kept(carried(record, "task"))))


async def score_again(spec: RunSpec, request: StoredAnswer) -> RewardOutcome:
    """Score stored answers with the reward function as its file is now.

    Raises UserError for answers that are not stored, and RunError with what the function raises.
    """
    group = _stored(spec, request)
    config, tokenizer, _ = configuration(spec)
    if is_served(spec.verl):
        raise UserError("reward.reward_model.enable: only a whole run serves a reward model")
    os.environ.update(spec.env)
    scorer = LocalScorer(config)
    batches = [group.experiences] if scorer.whole else [(each,) for each in group.experiences]
    answers: list[Rescored] = []
    for batch in batches:
        if request.answer not in (None, *(each.run for each in batch)):
            continue
        began, printed = time.monotonic(), io.StringIO()
        with contextlib.redirect_stdout(printed):
            scores = await scorer.group(group.task, [_trajectory(each) for each in batch])
        seconds = time.monotonic() - began
        answers += [
            Rescored(stored, score, seconds, printed.getvalue())
            for stored, score in zip(batch, scores, strict=True)
            if request.answer in (None, stored.run)
        ]
    prompt = group.experiences[0].prompt_text or tokenizer.decode(group.experiences[0].prompt_ids)
    return RewardOutcome(describe(config), group.task, prompt, answers)


def _stored(spec: RunSpec, request: StoredAnswer) -> Group:
    report = BufferReport(spec.database_url)
    try:
        group = report.newest_group(request.task, "train" if request.data == "train" else "eval:%")
    finally:
        report.close()
    if group is None:
        raise UserError(
            f"--task {request.task}: the job has stored no answers to it",
            hint="`trinity-compat buffer show JOB` lists stored groups with their task_no",
        )
    if not any(len(each.response_ids) for each in group.experiences):
        raise UserError(f"--task {request.task}: texts and tokens of its answers were pruned")
    if group.task.get("agent_name") == AGENT:
        raise UserError(
            f"--task {request.task}: the workflow that answered it gave the scores too",
            hint="`trinity-compat debug --module workflow` runs both",
        )
    runs = [each.run for each in group.experiences]
    if request.answer is not None and request.answer not in runs:
        raise UserError(f"--answer {request.answer}: task {request.task} has answers {runs[0]} to {runs[-1]}")
    return group


def _trajectory(stored: Experience) -> Trajectory:
    return Trajectory(
        prompt_ids=stored.prompt_ids,
        response_ids=stored.response_ids,
        response_mask=stored.response_mask,
        logprobs=stored.logprobs,
        num_turns=stored.num_turns,
    )
