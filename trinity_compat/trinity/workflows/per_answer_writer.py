"""Answers of a group requested one by one.

This includes those of classes that request all at once (trinity-rft's repeatable workflows).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from trinity_compat.trinity.workflows.model import GeneratedAnswer, Writer

T = TypeVar("T")


def nobody() -> None:
    """No-op callback."""


class PerAnswerWriter:
    """``Writer`` that sends a request for each of a group's ``answers``, with the seeds of a joint request.

    So the engine gives the slot of the first finished answer to another group. ``ended`` is called after each
    answer. Other requests are passed unchanged.
    """

    def __init__(self, writer: Writer, answers: int, ended: Callable[[], None]) -> None:
        self._writer, self._answers, self._ended = writer, answers, ended

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Generate like ``Writer.write``."""
        greedy = sampling.get("temperature") == 0  # equal answers: the engine makes one of them
        if greedy or self._answers == 1 or int(sampling.get("n") or 1) != self._answers:
            return await self._writer.write(prompt_ids, sampling)
        asked = [self._writer.write(prompt_ids, _of(sampling, place)) for place in range(self._answers)]
        return [written for (written,) in await together(asked, self._ended)]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Score like ``Writer.score``."""
        return await self._writer.score(token_ids)


def _of(sampling: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Sampling parameters of one answer, with the seed that vLLM would give it in a joint request.

    vLLM adds an answer's position to the seed (vllm 0.28, v1/engine/parallel_sampling.py).
    """
    seed = sampling.get("seed")
    return {**sampling, "n": 1, **({} if seed is None else {"seed": seed + place})}


async def together(runs: Sequence[Coroutine[Any, Any, T]], ended: Callable[[], None] = nobody) -> list[T]:
    """Results in order; the first failure cancels the others. ``ended`` is called as each ends."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    for task in tasks:
        task.add_done_callback(lambda _: ended())
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
