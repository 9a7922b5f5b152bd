"""``trinity.common.experience``: the result of a workflow."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class EID:
    """Identity of an experience: batch, task, run and step."""

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:6])

    @property
    def tid(self) -> str:
        return f"{self.batch}/{self.task}"

    @property
    def rid(self) -> str:
        return f"{self.tid}/{self.run}"

    @property
    def sid(self) -> str:
        return f"{self.tid}/{self.step}"

    @property
    def uid(self) -> str:
        return f"{self.rid}/{self.step}/{self.suffix}"


class Experience:
    """Experience with upstream's fields.

    ``tokens`` int [P + R], ``prompt_length`` P ≥ 1; ``logprobs`` float [R]; ``action_mask`` bool [R], true
    for tokens of the model (by default all). Other fields keep their values.
    """

    def __init__(
        self,
        *,
        tokens: Tensor | Sequence[int],
        prompt_length: int = 1,
        logprobs: Tensor | Sequence[float] | None = None,
        action_mask: Tensor | Sequence[bool] | None = None,
        reward: float | None = None,
        eid: EID | Mapping[str, Any] | None = None,
        info: dict[str, Any] | None = None,
        metrics: dict[str, float] | None = None,
        truncate_status: str | None = None,
        response_text: str | None = None,
        prompt_text: str | None = None,
        **others: Any,
    ) -> None:
        self.tokens = torch.as_tensor(tokens, dtype=torch.int32)
        self.prompt_length = prompt_length
        self.logprobs = None if logprobs is None else torch.as_tensor(logprobs, dtype=torch.float32)
        written = torch.ones(len(self.tokens) - prompt_length, dtype=torch.bool)
        self.action_mask: Tensor | None = (
            written if action_mask is None else torch.as_tensor(action_mask, dtype=torch.bool)
        )
        self.reward = reward
        self.eid = EID(**eid) if isinstance(eid, Mapping) else eid or EID()
        self.info, self.metrics = info or {}, metrics or {}
        self.truncate_status = truncate_status
        self.response_text, self.prompt_text = response_text, prompt_text
        vars(self).update(others)


def group_by(experiences: Sequence[Experience], id_type: str) -> dict[str, list[Experience]]:
    """Group by ``task``, ``run`` or ``step``. Raises ValueError for another ``id_type``."""
    names = {"task": "tid", "run": "rid", "step": "sid"}
    if id_type not in names:
        raise ValueError(f"id_type is {id_type!r}: write one of {', '.join(names)}")
    found: dict[str, list[Experience]] = {}
    for each in experiences:
        found.setdefault(getattr(each.eid, names[id_type]), []).append(each)
    return found
