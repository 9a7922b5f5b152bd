"""Replacements for the parts of veRL's trainers that the explorer's side has: servers, scoring, teachers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self


class NoServers:
    """Replacement for LLMServerManager, since the trainer's processes have no rollout engine."""

    @classmethod
    def create(cls, *_: object, **__: object) -> Self:
        """Create an instance; all arguments are ignored."""
        return cls()

    def get_client(self) -> None:
        """Return None, since no server runs."""
        return

    def get_replicas(self) -> list[object]:
        """Return no replicas, since no server runs."""
        return []

    def start_profile(self) -> None:
        """No-op."""

    def stop_profile(self) -> None:
        """No-op."""


class NoRewardLoop:
    """Replacement for RewardLoopManager, since the explorer has scored the answers."""

    reward_loop_workers = None  # v0's name
    reward_loop_worker_handles: Sequence[object] = ()  # v1's; None would make veRL score the answers itself

    def __init__(self, *_: object, **__: object) -> None:
        pass


class NoTeachers:
    """Replacement for MultiTeacherModelManager, since the explorer's side has asked the teachers."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def get_client(self) -> None:
        """Return None, since no server runs."""
        return
