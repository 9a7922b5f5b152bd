"""``format_reward``: whether an answer has the required form."""

from __future__ import annotations

import re

_BLOCKS = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
ONE_EACH = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$"  # math_reward's


class FormatReward:
    """0.1 for an answer that ``pattern`` matches from its beginning, else -0.1.

    Dots match newlines, ``^`` and ``$`` at every line.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = re.compile(pattern or _BLOCKS, re.DOTALL | re.MULTILINE)

    def __call__(self, response: str, truth: str = "", **about: object) -> dict[str, float]:
        """Score a response."""
        return {"format_score": 0.1 if self._pattern.match(response) else -0.1}
