"""``accuracy_reward`` and ``math_reward``, by math_verify, and ``format_reward``, in math_reward too.

No time limit here: a scorer's is that of every reward function. math_verify's own needs SIGALRM, which only a
main thread has, so it is off.
"""

from __future__ import annotations

import re

from trinity_compat.common import optional_packages

_ANSWER = re.compile(r"<answer>(.*?)</answer>")  # on one line
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


class AccuracyReward:
    """1 where the answer's LaTeX equals the truth's, else 0 (trinity/common/rewards/accuracy_reward.py)."""

    def __init__(self) -> None:
        optional_packages.need("math-verify")

    def __call__(self, response: str, truth: str, **about: object) -> dict[str, float]:
        """Score a response."""
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig

        latex = LatexExtractionConfig()
        boxed_first = LatexExtractionConfig(
            normalization_config=NormalizationConfig(
                nits=False,
                malformed_operators=False,
                basic_latex=True,
                equations=True,
                boxed="all",
                units=True,
            ),
            boxed_match_priority=0,
            try_extract_without_anchor=False,
        )
        expected = _parsed(truth, extraction_mode="first_match", extraction_config=[latex]) or truth
        answer = _parsed(response, extraction_mode="first_match", extraction_config=[boxed_first])
        return {"accuracy": _equal(answer, expected)}


class MathReward:
    """The answer between <answer> marks, else the whole text, against the truth; and its form."""

    def __init__(self, pattern: str | None = ONE_EACH) -> None:
        optional_packages.need("math-verify")
        self._form = FormatReward(pattern)

    def __call__(self, response: str, truth: str, **about: object) -> dict[str, float]:
        """Score a response."""
        accuracy = _equal(_parsed(_marked(response)), _parsed(_marked(truth)))
        return {"accuracy": accuracy, **self._form(response)}


def _marked(text: str) -> str:
    found = _ANSWER.search(text)
    return found[1] if found else text


def _parsed(text: str, **how: object) -> list[object]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=None, **how))


def _equal(answer: object, expected: object) -> float:
    """Upstream's order of the two: math_verify is not symmetric. What it cannot compare is not equal."""
    from math_verify import verify

    try:
        return float(verify(answer, expected, timeout_seconds=None))
    except Exception:
        return 0.0
