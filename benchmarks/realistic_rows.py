"""Answers as large as real ones, for what measures the store."""

from __future__ import annotations

import numpy as np

from trinity_compat.buffer.model import Experience


def answers(
    rng: np.random.Generator, *, count: int, prompt: int, response: int, prompt_text: str
) -> tuple[Experience, ...]:
    """``count`` answers of ``response`` tokens to one prompt of ``prompt`` tokens, with log-probs; a token is
    about four letters of text."""

    def one(run: int) -> Experience:
        return Experience(
            run=run,
            prompt_ids=rng.integers(0, 150_000, prompt, dtype=np.int32),
            response_ids=rng.integers(0, 150_000, response, dtype=np.int32),
            response_mask=np.ones(response, np.uint8),
            logprobs=-rng.random(response, dtype=np.float32),
            reward=1.0,
            min_model_version=0,
            max_model_version=0,
            prompt_text=prompt_text,
            response_text="word " * (response * 25 // 32),
            metrics={"acc": 1.0},
            info={"acc": 1.0, "pred": "4"},
        )

    return tuple(one(run) for run in range(count))
