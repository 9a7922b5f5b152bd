"""``Exchange`` over the buffer: claims with a lease, the ledger, versions, validation, liveness."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from trinity_compat.buffer.codec import as_float
from trinity_compat.buffer.model import DROPPED, Claim, Experience, Group, TokenScores, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.buffer.stream_position import NOBODYS, StreamPosition
from trinity_compat.common.crash_points import point
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import Tree
from trinity_compat.job import stop_request
from trinity_compat.job.distillation import is_distilled, stores_top_tokens
from trinity_compat.job.fingerprint import DATA, check, edits, fingerprint_of, sign
from trinity_compat.job.run_spec import RunSpec, has_baseline
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.synchronizer.device_turns import DeviceTurn
from trinity_compat.synchronizer.engine_dtypes import Dtypes, agreed
from trinity_compat.synchronizer.policy import oldest_needed, publishes, required_version
from trinity_compat.synchronizer.requests import WeightRequest, WeightRequests
from trinity_compat.synchronizer.transports.files import prune
from trinity_compat.synchronizer.versions import as_version, recycles
from trinity_compat.synchronizer.weight_sync_check import SCORED_ANSWER, ScoredAnswer, bound
from trinity_compat.trainer.adapter import Claimed, FindScores, LogProbScorer, SendWeights
from trinity_compat.trainer.batch import lag_metrics, reuse_metrics
from trinity_compat.trainer.device_sender import HandoverOnDevices
from trinity_compat.trainer.experts.claims import Experts
from trinity_compat.trainer.explorer_liveness import ExplorerWatch
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
from trinity_compat.trainer.nccl_sender import NcclSender

_log = logging.getLogger(__name__)

FIRST_POLL_S, SLOWEST_POLL_S = 0.02, 0.2
_EXAMPLE_TOKENS = 512
_T = TypeVar("_T")


class BufferExchange:
    """The trainer's side of one run.

    A step trains ``batch_size`` groups of ``group_size`` answers, which include a greedy baseline if the
    algorithm has one.
    """

    def __init__(
        self,
        buffer: Buffer,
        spec: RunSpec,
        heart: LeaseHeartbeat,
        *,
        batch_size: int,
        group_size: int,
        val_size: int,
        experts: Experts | None = None,
    ) -> None:
        self._buffer, self._spec, self._heart, self._experts = buffer, spec, heart, experts
        self._batch_size, self._group_size, self._val_size = batch_size, group_size, val_size
        uses_nccl = spec.sync.method == "nccl"  # NCCL needs every explorer; files don't
        self._watch = ExplorerWatch(
            buffer, start_s=spec.sync.timeout_s, all_needed=uses_nccl, stall_s=spec.stall_timeout_s
        )
        self._nccl = NcclSender(buffer, spec, self._check_alive) if uses_nccl else None
        on_devices = spec.handover == "device"
        self._on_devices = HandoverOnDevices(buffer, spec, self._check_alive) if on_devices else None
        on_request = uses_nccl or on_devices or spec.sync.style == "explorer_driven"
        self._requests = WeightRequests(buffer, spec.explorers if on_request else 0)
        self._turn = DeviceTurn(buffer, "trainer") if spec.mode == "colocate" else None
        self._policy: tuple[int, SendWeights] | None = None
        self._claims: tuple[Claim, ...] = ()  # one of answers, and one of an expert's rows
        self._published: int | None = None
        self._example: Experience | None = None  # scored on both sides by the weight synchronization check
        self._scores: LogProbScorer | None = None
        self._answer_stored = False
        self._leave_device: Callable[[], None] = lambda: None
        self._metrics: dict[str, float] = {}
        self._scored: list[TokenScores] = []

    def started(self) -> None:
        """Store that the run is not finished."""
        FINISHED.set(self._buffer, False)

    def position(self, step: int) -> Tree:
        """Read the position in the task stream."""
        return self._buffer.position(step=step).as_json()

    def resumed(self, step: int, position: Tree | None = None, *, afresh: bool = False) -> None:
        """Start a new history where the buffer holds anything, and report what becomes of its groups."""
        check(self._spec.fingerprint, (DATA,))
        made_with = fingerprint_of(self._spec)
        edited = edits(self._buffer, made_with)
        sign(self._buffer, made_with)
        if step or edited or self._buffer.latest_version() is not None:
            known = self._position_of(step, position, afresh)
            done = self._buffer.reconcile(step=step, position=known, remake=bool(edited))
            _log.info(
                "history %d continues from step %d: %d groups ready again, %d void, %d trained",
                done.history,
                step,
                done.ready_again,
                done.voided,
                done.kept,
            )
            for text in edited if done.voided else ():
                plural = "s" * (done.voided != 1)
                _log.info("%s: %d group%s will be generated again", text, done.voided, plural)
            sign(self._buffer, made_with, keep_earlier=False)
        # The answer of an earlier start is invalid: its versions may be trained again, and differ.
        SCORED_ANSWER.set(self._buffer, None)
        self._heart.say("running", step=step)

    def _position_of(self, step: int, kept: Tree | None, afresh: bool) -> StreamPosition:
        """Position of a checkpoint; one without is stock veRL's, which has trained the tasks in order."""
        if kept is None:
            return StreamPosition(below=step * self._batch_size, buffer=NOBODYS if afresh else None)
        position = StreamPosition.of(kept)
        trained = position.below + len(position.beyond)
        replayed = self._spec.replay is not None and trained < step * self._batch_size
        # Else explorer and trainer would count differently.
        if trained != step * self._batch_size and not replayed:
            raise UserError(
                f"the checkpoint of step {step} has trained {trained} tasks;"
                f" data.train_batch_size={self._batch_size} makes {step * self._batch_size} of {step} steps",
                hint=f"go on with data.train_batch_size={trained // step if step else trained},"
                " or start a new run with --job DIR",
            )
        return position

    def wait_for_device(self) -> None:
        """Wait for the trainer's turn on a device shared with the explorer. Raises PeerGone."""
        if self._turn:
            self._wait(lambda: True, "the device")

    def before_leaving(self, leave_device: Callable[[], None]) -> None:
        """Register the function that is called each time before the explorer gets the device."""
        self._leave_device = leave_device

    # -- weights ------------------------------------------------------------------------------

    def publish(self, step: int, send: SendWeights, scores: LogProbScorer | None = None) -> None:
        """Commit the step, then send its version if the style requires it or an explorer requests it."""
        self.commit(step)
        self._policy, self._scores = (step, send), scores
        if self._published is None or publishes(self._spec.sync, step):
            self._send(step, send)
        self._serve_requests(self._requests.open())

    def engine_dtypes(self) -> Dtypes:
        """See Exchange."""
        return agreed(self._buffer, self._spec.explorers)

    def _serve_requests(self, requests: Mapping[int, WeightRequest]) -> None:
        """Publish the current policy for the explorers that request it."""
        if requests and self._policy:
            newest = self._published or 0
            no_files = self._nccl or self._on_devices
            missed = no_files is not None and any(each.has < newest for each in requests.values())
            self._send(*self._policy, again=missed)
            self._requests.answer(requests)

    def _send(self, step: int, send: SendWeights, *, again: bool = False) -> None:
        if self._published == step and not again:
            return
        began = time.monotonic()
        self._store_answer_to_check(step)
        sync = self._spec.sync
        version: WeightVersion | None = None
        if self._nccl:
            version = self._nccl.send(step, send)
        elif self._on_devices is not None and self._published is not None and not again:
            # This process's first version has a file, since the trainer may train on without giving its turn
            # away, and a version that is requested has one: its engines may be starting.
            version = self._on_devices.send(step, send)
        if version is None:
            version = as_version(step, send(step), sync.method)
        self._buffer.publish_version(version)
        prune(sync.directory, before=self._oldest_needed(step), recycle=recycles(sync))
        self._published = step
        self._metrics["timing_s/publish_weights"] = time.monotonic() - began

    def _store_answer_to_check(self, step: int) -> None:
        """Store an answer for the check of this process's first version, before an explorer can load it."""
        example = self._example
        if self._answer_stored or example is None or self._scores is None or not bound():
            return
        self._answer_stored = True
        prompt, response = (list(map(int, ids)) for ids in (example.prompt_ids, example.response_ids))
        SCORED_ANSWER.set(self._buffer, ScoredAnswer(step, prompt, response, self._scores(example)))

    def _oldest_needed(self, step: int) -> int:
        """Oldest version that an explorer may still load, since one of several may be behind."""
        sync = self._spec.sync
        needed = oldest_needed(sync, step, self._published or 0)
        behind = self._buffer.missing_tasks(upto=step * self._batch_size, limit=1)
        required = required_version(sync, behind[0] // self._batch_size + 1) if behind else None
        return needed if required is None else min(needed, required)

    # -- the train batch ------------------------------------------------------------------------

    def claim(self, step: int) -> Claimed:
        """Wait for the groups of the step, and renew their leases from then on. Raises PeerGone."""
        self._heart.say("waiting", step=step)
        began = time.monotonic()
        claim = self._wait(lambda: self._try_claim(step), f"the {self._batch_size} groups of step {step}")
        waited = time.monotonic() - began
        self._claims = (claim,)
        if not self._answer_stored:
            self._example = _example(claim.groups)
        if self._experts:
            self._claims += (self._experts.claim(step, self._heart),)
        self._heart.keep(*self._claims)
        # Replayed groups need no wait, in which liveness is checked.
        if any(group.uses for group in claim.groups):
            self._heart.check()
            self._watch.check_alive(f"new groups for step {step}")
        self._heart.say("running", step=step)
        for group in claim.groups:
            if group.runs != self._group_size:
                raise RunError(
                    f"group {group.key} holds {group.runs} answers, not {self._group_size}",
                    hint="actor_rollout_ref.rollout.n must be the same for explorer and trainer",
                )
            self._check_taught(group)
        self._metrics |= {"timing_s/buffer_wait": waited} | lag_metrics(claim.groups, step)
        if self._spec.replay:
            self._metrics |= reuse_metrics(claim.groups)
        experts = (group for each in self._claims[1:] for group in each.groups)
        return Claimed(claim.groups, waited, tuple(experts))

    def _try_claim(self, step: int) -> Claim | None:
        limit = self._spec.max_staleness
        claim = self._buffer.claim_groups(
            self._batch_size,
            owner=self._heart.name,
            step=step,
            min_version=None if limit is None else step - 1 - limit,
            lease_s=self._heart.lease_s,
            replay=self._spec.replay,
        )
        if claim is None and stop_request.read(self._spec.job_dir) == stop_request.AFTER_STEP:
            raise stop_request.StopBeforeStep
        return claim

    def _check_taught(self, group: Group) -> None:
        """Raise RunError for an answer without the teacher's rows that veRL's loss reads."""
        if not is_distilled(self._spec.verl):
            return
        top = stores_top_tokens(self._spec.verl)
        for answer in group.experiences[: -1 if has_baseline(self._spec.verl) else None]:
            if answer.metrics.get(DROPPED) or not answer.response_mask.any():
                continue
            has = answer.teacher_logprobs is not None
            if not has or (answer.teacher_ids is not None) != top:
                found = "those of another loss_mode" if has else "none"
                raise RunError(
                    f"distillation.enabled=True: group {group.key} needs a teacher's log-probabilities, and"
                    f" has {found}",
                    hint="distillation.* must be the same for explorer and trainer",
                )

    def keep_scores(self, find: FindScores) -> None:
        """Hold the scores of a sample, as ``token_scores`` says, until ``commit``; the first of a step."""
        wanted = sorted(self._claims[0].groups, key=_place_in_sample) if self._claims else []
        answers = [(group, it) for group in wanted[: self._spec.token_scores] for it in group.experiences]
        if answers and not self._scored:
            found = zip(answers, find([it for _, it in answers]), strict=True)
            self._scored = [TokenScores(group.group_id or 0, it.run, *of) for (group, it), of in found if of]

    def commit(self, step: int) -> None:
        """Enter the claims in the ledger, after their renewal has stopped. Raises ClaimLost."""
        claims, self._claims = self._claims, ()
        if claims:
            point("after step")
            self._heart.keep()  # first: a renewal after the entry would look like a lost claim
        for claim in claims:
            self._buffer.mark_trained(claim, step=step)
        scored, self._scored = self._scored, []
        if scored:
            self._buffer.keep_token_scores(scored)

    def release(self) -> None:
        """Return untrained claims, so that a restart finds their groups at once."""
        claims, self._claims = self._claims, ()
        self._scored = []
        self._heart.keep()
        for claim in claims:
            self._buffer.release(claim)

    # -- validation -----------------------------------------------------------------------------

    def evaluate(self, step: int, send: SendWeights) -> list[Group]:
        """Send the version, request its evaluation and wait for all groups. Raises PeerGone."""
        self._send(step, send)
        request = self._buffer.request_eval(step=step, version=step)
        self._heart.say("waiting", step=step, evaluation=request.request_id)
        self._wait(lambda: self._buffer.eval_done(request) or None, f"the evaluation of step {step}")
        self._heart.say("running", step=step)
        groups = self._buffer.groups(f"eval:{request.request_id}")
        found = [group.task_no for group in groups]
        if found != list(range(self._val_size)):
            raise RunError(f"the evaluation of step {step} has {len(found)} of {self._val_size} tasks")
        return groups

    def _check_alive(self, what: str) -> None:
        """Raise PeerGone when no explorer is left that could provide ``what``."""
        self._heart.check()
        if gone := self._watch.verdict(what):
            raise gone

    # -- waiting, metrics -----------------------------------------------------------------------

    def _wait(self, poll: Callable[[], _T | None], what: str) -> _T:
        pause = FIRST_POLL_S
        while True:
            if self._turn is None or self._turn.is_mine():
                # Before the poll: an explorer stores its groups, then requests.
                requests = self._requests.open()
                if (found := poll()) is not None:
                    return found
                self._serve_requests(requests)
                if self._turn:
                    self._leave_device()
                    self._turn.give()
            self._heart.check()
            gone = self._watch.verdict(what)
            if gone is not None:
                found = poll()  # the explorer may have finished between poll and verdict
                if found is None:
                    raise gone
                return found
            time.sleep(pause)
            pause = min(pause * 1.2, SLOWEST_POLL_S)

    def log(self, step: int, metrics: Tree) -> dict[str, object]:
        """Store the metrics with those of the buffer and of this exchange."""
        depth = {f"buffer/{state}": count for state, count in self._buffer.depth().items()}
        out: dict[str, object] = {
            **metrics,
            **self._metrics,
            **depth,
            **tokens_per_second(metrics),
        }
        self._metrics = {}
        self._buffer.log_metrics("trainer", step, numbers(out))
        return out


def _place_in_sample(group: Group) -> tuple[bool, float]:
    """Sort key: groups whose rewards differ first, and of these the one with the lowest mean reward."""
    rewards = [it.reward for it in group.experiences]
    return min(rewards) == max(rewards), sum(rewards) / len(rewards)


def _example(groups: Sequence[Group]) -> Experience | None:
    """Beginning of the longest answer, at least a token shorter than it: vLLM needs room for one more."""
    every = (experience for group in groups for experience in group.experiences)
    longest = max(every, key=lambda experience: len(experience.response_ids))
    length = min(len(longest.response_ids) - 1, _EXAMPLE_TOKENS)
    if length < 1:
        return None
    parts = {name: getattr(longest, name)[:length] for name in ("response_ids", "response_mask", "logprobs")}
    return replace(longest, **parts, teacher_ids=None, teacher_logprobs=None)


def tokens_per_second(metrics: Tree) -> dict[str, float]:
    """Return the metric of that name, by veRL's counts; empty without them."""
    known = numbers(metrics)
    tokens, seconds = known.get("perf/total_num_tokens"), known.get("perf/time_per_step")
    return {"perf/tokens_per_second": tokens / seconds} if tokens and seconds else {}


def numbers(metrics: Tree) -> dict[str, float]:
    """Return the metrics that are numbers, as floats."""
    kinds = (int, float, np.integer, np.floating)
    return {key: as_float(value) for key, value in metrics.items() if isinstance(value, kinds)}
