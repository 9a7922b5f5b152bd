"""Base of the adapters of veRL's trainers: metrics, checkpoints, validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf, open_dict

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.crash_points import point
from trinity_compat.common.nested import Tree
from trinity_compat.common.parent_watch import STOPPED
from trinity_compat.job import stop_request
from trinity_compat.job.checkpoints import CheckpointState, check_named, loaded_roles, newest, read_state
from trinity_compat.trainer.adapter import Claimed, Exchange
from trinity_compat.trainer.batch import BatchShape
from trinity_compat.trainer.checkpoints import (
    CheckpointRetention,
    HeldMarker,
    release_marker,
    repair_marker,
    write_state,
)
from trinity_compat.trainer.publisher import VersionPublisher


class StoredRun:
    """Base of a subclass of a veRL trainer, whose only access to the run is ``exchange``.

    ``defined_in``: the module whose names ``open`` and ``torch`` veRL's trainer uses.
    """

    defined_in: ModuleType
    config: DictConfig
    exchange: Exchange
    global_steps: int
    use_critic: bool
    total_training_steps: int
    actor_rollout_wg: Any
    _save_checkpoint: Callable[[], None]
    _shutdown_dump_executor: Callable[[], None]
    checkpoint_manager: VersionPublisher
    shape: BatchShape
    longer = False  # whether a row may join several answers, and be longer than one
    _validated: tuple[int, list[Group]] | None = None

    def _take_over_checkpoints(self) -> None:
        """Delete older checkpoints and write the marker in veRL's place. Call before the first checkpoint."""
        self._directory = Path(self.config.trainer.default_local_dir)
        self._retention = CheckpointRetention.take_over(self.config.trainer)
        self._marker, self._saved = HeldMarker(self._directory), 0
        self._newest = 0  # step of the newest checkpoint, of this start or loaded

    def set_rows_per_task(self, rows: int) -> None:
        """Write the number of rows of each task in this step to the configuration, where veRL reads it."""
        with open_dict(self.config):
            self.config.actor_rollout_ref.rollout.n = rows

    def widths(self, experiences: Sequence[Experience]) -> BatchShape:
        """Shape of a batch of experiences.

        veRL's configured widths; where a row may join several answers (up to max_model_len), at least those
        of the longest, as in trinity-rft (trainer/verl/utils.py).
        """
        if not self.longer:
            return self.shape
        prompt = max((len(each.prompt_ids) for each in experiences), default=0)
        response = max((len(each.response_ids) for each in experiences), default=0)
        own = self.shape
        return BatchShape(max(own.prompt, prompt), max(own.response, response), own.pad_id)

    def validation_answers(self) -> list[Group]:
        """Groups of this step's evaluation, by position; requested once per step."""
        if self._validated is None or self._validated[0] != self.global_steps:
            groups = self.exchange.evaluate(self.global_steps, self.checkpoint_manager.send)
            self._validated = self.global_steps, groups
        return self._validated[1]

    def _log(self, step: int, metrics: Tree) -> dict[str, object]:
        logged = self.exchange.log(step, metrics)
        self._publish_marker()
        return logged

    def _stop_if_asked(self) -> None:
        """End the process after a step where the user asked for it, with a checkpoint of that step.

        After the last step veRL ends by itself.
        """
        asked = stop_request.read(self._directory) == stop_request.AFTER_STEP
        if asked and self.global_steps < self.total_training_steps:
            self._end_with_checkpoint()

    def claimed(self, step: int) -> Claimed:
        """Wait for the train batch of ``step``; where the user asked for the end meanwhile, end before it."""
        try:
            return self.exchange.claim(step)
        except stop_request.StopBeforeStep:
            self.global_steps = step - 1
            self._end_with_checkpoint()

    def _end_with_checkpoint(self) -> NoReturn:
        """End the process with a checkpoint of this step, which is trained and logged."""
        if self._newest != self.global_steps:
            self._save_checkpoint()
            self._publish_marker()
        # As veRL does after its last step, for checkpoints and answers that are still being written.
        if hasattr(self.actor_rollout_wg, "async_calls_finalize_fn_exec"):
            self.actor_rollout_wg.async_calls_finalize_fn_exec(blocking=True)
        self._shutdown_dump_executor()
        raise stop_request.StoppedAfterStep(STOPPED)

    def _save(self, verls: Callable[[], Any]) -> None:
        """Enter the step in the ledger, then let ``verls`` write its checkpoint."""
        self.exchange.commit(self.global_steps)
        release_marker(self._directory, self.global_steps)
        # veRL saves neither the adaptive KL coefficient nor the position in the task stream.
        kl = getattr(self, "kl_ctrl_in_reward", None)
        state: CheckpointState = {
            "step": self.global_steps,
            "kl_coef": kl.value if kl else None,
            "position": self.exchange.position(self.global_steps),
        }
        write_state(self._directory / f"global_step_{self.global_steps}", state)
        point("before checkpoint")
        with patch.object(self.defined_in, "open", self._marker.open, create=True):
            verls()
        self._saved = self._newest = self.global_steps

    def _publish_marker(self) -> None:
        """Publish the marker of a checkpoint whose step was logged now, and delete older checkpoints."""
        if self._saved:
            self._marker.publish()
            point("after checkpoint")
            self._retention.prune(self._directory, self._saved)
            self._saved = 0

    def _load(self, verls: Callable[[], Any]) -> None:
        """Let ``verls`` load a checkpoint, if there is one, and go on with the run from it.

        Raises UserError where it cannot: veRL would start from step 0, over the checkpoints that are there.
        """
        repair_marker(self._directory)
        trainer = self.config.trainer
        verl = cast(Tree, OmegaConf.to_container(self.config))
        roles = loaded_roles(verl, critic=self.use_critic)
        if trainer.resume_mode == "auto":
            newest(self._directory, roles).check()
        elif trainer.resume_mode == "resume_path":
            check_named(Path(trainer.resume_from_path), roles)
        with patch.object(self.defined_in.torch, "load", _no_state):
            verls()
        self._newest = self.global_steps
        own: CheckpointState = {}
        if self.global_steps:
            loaded = self._directory / f"global_step_{self.global_steps}"
            own = read_state(
                Path(trainer.resume_from_path) if trainer.resume_mode == "resume_path" else loaded
            )
            kl = getattr(self, "kl_ctrl_in_reward", None)
            if kl is not None:
                kl.value = own.get("kl_coef") or kl.value
        afresh = trainer.resume_mode == "disable"
        self.exchange.resumed(self.global_steps, own.get("position"), afresh=afresh)


def _no_state(path: str, **_: object) -> dict[str, object]:
    """Replacement for ``torch.load`` of ``data.pt``, the dataloader's state, which veRL would unpickle.

    The dataloader of either adapter has no state.
    """
    return {}
