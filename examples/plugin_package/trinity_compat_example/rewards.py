"""A reward: made once with ``reward_fn_args``, called for each answer."""

from trinity.common.rewards import RewardFn


class DigitsInPlace(RewardFn):
    """The share of the truth's digits that stand at their place in the answer."""

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight

    def __call__(self, response: str, truth: str, **about: object) -> dict[str, float]:
        right = sum(given == wanted for given, wanted in zip(response.strip(), truth, strict=False))
        return {"in_place": self._weight * right / len(truth)}
