"""A group's answers one by one, also those of a class that asks the model for all of them at once
(trinity-rft's repeatable workflows)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from trinity_compat.trinity.workflows.model import GeneratedAnswer, Writer

T = TypeVar("T")


def nobody() -> None:
    """Whom nothing needs to be told."""


class PerAnswerWriter:
    """A ``Writer`` that asks for each of a group's ``answers`` by itself, with the seeds that one request's
    would have: so the first that ends leaves its place on the engine to another group's. ``ended`` is
    called as each is there. Whatever else is asked goes as it is."""

    def __init__(self, writer: Writer, answers: int, ended: Callable[[], None]) -> None:
        self._writer, self._answers, self._ended = writer, answers, ended

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """As ``Writer.write``."""
        greedy = sampling.get("temperature") == 0  # equal answers: the engine makes one of them
        if greedy or self._answers == 1 or int(sampling.get("n") or 1) != self._answers:
            return await self._writer.write(prompt_ids, sampling)
        asked = [self._writer.write(prompt_ids, _of(sampling, place)) for place in range(self._answers)]
        return [written for (written,) in await together(asked, self._ended)]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """As ``Writer.score``."""
        return await self._writer.score(token_ids)


def _of(sampling: Mapping[str, Any], place: int) -> dict[str, Any]:
    """vLLM adds an answer's place to the seed (vllm 0.28, v1/engine/parallel_sampling.py)."""
    seed = sampling.get("seed")
    return {**sampling, "n": 1, **({} if seed is None else {"seed": seed + place})}


async def together(runs: Sequence[Coroutine[Any, Any, T]], ended: Callable[[], None] = nobody) -> list[T]:
    """What they return, in order; of a group that failed none goes on. ``ended`` is called as each ends."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    for task in tasks:
        task.add_done_callback(lambda _: ended())
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
