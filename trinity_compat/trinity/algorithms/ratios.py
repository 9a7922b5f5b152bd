"""Functions that several policy losses share."""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import Arguments, Tensor, Tokens


def mean_of_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's true tokens, [N, 1]; 0 where there are none."""
    return values.where(mask, 0.0).sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) + 1e-8)


RANGES = "clip_range, or clip_range_low and clip_range_high, must be given with the other arguments"


def bounds(
    clip_range: float | None, clip_range_low: float | None, clip_range_high: float | None
) -> tuple[float | None, float | None]:
    """Return the distances that a ratio may go below and above 1; a missing side has the common range."""
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    return low, high


def ranges_given(arguments: Arguments) -> str:
    """Return what is wrong if a side has no range, else ""."""
    ranges = (arguments[name] for name in ("clip_range", "clip_range_low", "clip_range_high"))
    return RANGES if None in bounds(*ranges) else ""


def clip_range(
    clip_range: float | None, clip_range_low: float | None, clip_range_high: float | None
) -> dict[str, object]:
    """Return veRL's keys for a clip range."""
    actor = "actor_rollout_ref.actor"
    low, high = bounds(clip_range, clip_range_low, clip_range_high)
    told = {
        f"{actor}.clip_ratio": clip_range,
        f"{actor}.clip_ratio_low": low,
        f"{actor}.clip_ratio_high": high,
    }
    return {key: value for key, value in told.items() if value is not None}


def ratio(tokens: Tokens) -> Tensor:
    """π / π_old of each token."""
    return tokens.log_ratio.exp()
