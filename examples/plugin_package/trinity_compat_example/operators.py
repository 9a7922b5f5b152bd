"""An operator of an experience pipeline: it gets the answers of a batch before they are trained on."""

from trinity.buffer.operators import ExperienceOperator


class ScaleRewards(ExperienceOperator):
    """Multiplies each reward by ``factor``."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor

    def process(self, exps: list) -> tuple[list, dict]:
        for each in exps:
            each.reward *= self._factor
        return exps, {"scaled": len(exps)}
