"""Answers whose lengths have a long tail: veRL's agent loop of one turn, each answer cut or stretched."""

import os
import random
from collections import Counter

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

MEAN, SIGMA = float(os.environ["PACED_MEAN"]), float(os.environ["PACED_SIGMA"])
_asked = Counter()


class PacedLoop(SingleTurnAgentLoop):
    """Lognormal lengths with mean MEAN tokens, cut at ``rollout.response_length``; a prompt's k-th answer has
    the same length in every run of one process."""

    async def run(self, sampling_params, **kwargs):
        prompt = str(kwargs["raw_prompt"])
        _asked[prompt] += 1
        draw = random.Random(f"{prompt} {_asked[prompt]}").lognormvariate(0, SIGMA)
        length = min(self.response_length, max(1, round(MEAN * draw / 2.718281828459045 ** (SIGMA**2 / 2))))
        return await super().run({**sampling_params, "max_tokens": length, "ignore_eos": True}, **kwargs)
