"""Selection of the weight version that each step is sampled with, as the synchronizer's policy names it."""

from __future__ import annotations

import time

from trinity_compat.buffer.model import BufferState, EvalRequest, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.scheduling.step_work import StepWork
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.last_work import LastWork
from trinity_compat.synchronizer.policy import (
    changes_within_a_step,
    last_step,
    requests_weights,
    required_version,
    takes_newest,
    trainer_interval,
)
from trinity_compat.synchronizer.requests import WeightRequester
from trinity_compat.synchronizer.versions import (
    SyncTimeout,
    find_version,
    is_available,
    timed_out,
    unreachable_version,
)

ELSEWHERE_S = 15.0  # until a published file has to be visible on this machine


class VersionSelector:
    """Selects versions for one explorer, number ``index``; steps are ``batch_size`` tasks long."""

    def __init__(self, spec: RunSpec, buffer: Buffer, batch_size: int, index: int) -> None:
        self._spec, self._sync, self._buffer = spec, spec.sync, buffer
        self._batch_size = batch_size
        self._requester = WeightRequester(buffer, index)
        self._trainer = LastWork(buffer, spec, "trainer")
        self._requested_for = 0  # the last step whose weights were requested and published
        self._selected: WeightVersion | None = None
        self._state = BufferState(history=0, finished=False, evaluation=None, latest=None)
        self._missing_since: tuple[WeightVersion, float] | None = None

    def observe(self, state: BufferState) -> None:
        """Take note of the buffer's latest state."""
        if state.history != self._state.history:  # weights from before a resume may be invalid
            self._selected = None
        self._state = state

    @property
    def takes_over(self) -> bool:
        """Return whether weights come from the trainer's memory into the engines', without files."""
        return self._sync.method == "nccl"

    @property
    def receives(self) -> bool:
        """Return whether weights come without files, all of them or those that need none."""
        return self.takes_over or self._spec.handover == "device"

    @property
    def follows(self) -> bool:
        """Return whether newer weights are loaded in the middle of a step."""
        return changes_within_a_step(self._sync)

    def accepts_offer(self, selected: WeightVersion | None) -> bool:
        """Return whether to accept new weights now, ``selected`` being the next step's version.

        Under ``fixed`` the steps that need the present weights come first.
        """
        return selected is None or self._sync.style != "fixed"

    def version_for(self, work: StepWork, loaded: WeightVersion | None) -> WeightVersion | None:
        """Select the weights for a step, ``loaded`` being those in the engines.

        None: not published yet, or the explorer is too far ahead of the trainer.
        """
        sync, step = self._sync, work.step
        if sync.style == "fixed":
            return self._find(step, loaded)
        newest = self.follows or takes_newest(sync, step)
        if self._selected is None or newest or not self._is_available(self._selected, loaded):
            self._selected = self._find(step, loaded)
        due = self.needs_request(step)
        first_task = work.tasks(self._batch_size)[0]
        ahead = self._selected is not None and first_task >= self.task_bound(self._selected)
        if not due and not ahead:
            return self._selected
        if sync.style != "explorer_driven":
            self._selected = None
        elif self._requester.is_answered(_number(loaded)):
            self._requested_for, self._selected = step, None
        return None

    def version_for_evaluation(
        self, request: EvalRequest, loaded: WeightVersion | None
    ) -> WeightVersion | None:
        """Return the weights of an evaluation; None while they are unavailable."""
        version = self._buffer.get_version(request.version)
        return version if version and self._is_available(version, loaded) else None

    def needs_request(self, step: int) -> bool:
        """Return whether the weights of this step have to be requested and were not."""
        return requests_weights(self._sync, step) and self._requested_for != step

    def task_bound(self, version: WeightVersion) -> int:
        """Return the number below which tasks may begin with ``version`` loaded.

        With a ``staleness_threshold`` t, as in veRL's fully_async_policy 0.9.1: the groups that are begun and
        not trained when a version comes are at most (1 + t) times those that the trainer takes until the
        next.
        """
        threshold = self._spec.staleness_threshold
        if self._sync.style == "fixed" or threshold is None:
            return last_step(self._sync, self._spec.max_staleness, version.version) * self._batch_size
        ahead = trainer_interval(self._sync) * self._batch_size * (1 + threshold)
        return version.version * self._batch_size + int(ahead)

    def joint_bound(self, step: int, version: WeightVersion) -> int:
        """Return the number below which tasks may be taken together with those of ``step``.

        Before others, newer weights have to be requested or looked up.
        """
        bound = self.task_bound(version)
        own_interval = self._sync.explorer_interval is not None
        while (
            step * self._batch_size < bound
            and not requests_weights(self._sync, step + 1)
            and not (own_interval and takes_newest(self._sync, step + 1))
        ):
            step += 1
        return min(bound, step * self._batch_size)

    def check_wait(self, step: int, since: float) -> None:
        """Raise SyncTimeout when a longer wait for a step's weights, begun at ``since``, is of no use."""
        waited_s = self._trainer.waited_s(since, time.monotonic())
        if waited_s > self._sync.timeout_s:
            raise timed_out(self._buffer, self._sync, step, waited_s)
        version = unreachable_version(self._buffer) if waited_s > ELSEWHERE_S else None
        if version is None:
            return
        if self._missing_since is None or self._missing_since[0] != version:
            self._missing_since = version, time.monotonic()
        if time.monotonic() - self._missing_since[1] > ELSEWHERE_S:
            raise SyncTimeout(
                f"version {version.version} of the weights is published as {version.path}, "
                "which is not on this machine",
                hint="on several machines use synchronizer.sync_method checkpoint with a job directory that "
                "all of them share, or nccl",
            )

    def request_if_missed(self, loaded: WeightVersion | None) -> None:
        """Request another transfer when one took place before this explorer started."""
        newest = self._state.latest if self.receives else None
        if newest is None:
            return
        if newest.method == "device":
            missed = newest != loaded
        else:
            missed = self.takes_over and (loaded is INITIAL or _number(loaded) < newest.version)
        if missed:
            self._requester.is_answered(-1)

    def _find(self, step: int, loaded: WeightVersion | None) -> WeightVersion | None:
        if not self.takes_over:
            held = loaded if loaded and loaded.method == "device" else None
            if (
                held
                and held == self._buffer.latest_version()
                and held.version >= (required_version(self._sync, step) or 0)
            ):
                return held
            return self._published(step) or self._initial(step)
        if loaded is None or loaded is INITIAL:
            return loaded and self._initial(step)
        return loaded if loaded.version >= (required_version(self._sync, step) or 0) else None

    def _published(self, step: int) -> WeightVersion | None:
        if self._sync.style == "fixed":
            return find_version(self._buffer, self._sync, step)
        newest = self._state.latest
        return newest if newest and is_available(newest) else None

    def _initial(self, step: int) -> WeightVersion | None:
        """Return the model path as version 0 of a run that has just begun: the engine holds it already.

        Not with an initial adapter, which only the trainer holds.
        """
        if self._spec.verl["actor_rollout_ref"]["model"].get("lora_adapter_path"):
            return None
        fresh = self._state.history == 1 and self._state.latest is None
        resumes = self._spec.verl["trainer"].get("resume_mode") == "resume_path"
        zero = (required_version(self._sync, step) or 0) == 0
        return INITIAL if fresh and zero and not resumes else None

    def _is_available(self, version: WeightVersion, loaded: WeightVersion | None) -> bool:
        """Return whether engines hold or can load a version. The model path has no file to return to."""
        if self.takes_over or version is INITIAL or version.method == "device":
            return version == loaded
        return is_available(version)


def _number(version: WeightVersion | None) -> int:
    return -1 if version is None else version.version
