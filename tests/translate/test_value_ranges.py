"""Numbers that vLLM or PyTorch refuses at a run's start are refused before: value_ranges.json."""

import math

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_json

from .helpers import translated

ROWS = data_json("translators/by_hand/verl/value_ranges.json")
LIMITS = [(key, word, limit) for key, row in ROWS.items() for word, limit in row["limits"].items()]


def outside(word, limit):
    """The nearest number that the limit excludes; whole where a whole number is asked for."""
    if word == "above":
        return limit
    if limit == -1:
        return -2
    return math.nextafter(limit, math.inf if word == "at most" else -math.inf)


def inside(word, limit):
    return math.nextafter(limit, math.inf) if word == "above" else limit


@pytest.mark.parametrize(("key", "word", "limit"), LIMITS)
def test_a_number_outside_is_refused_at_its_place_and_one_inside_is_not(key, word, limit):
    translated(f"{key}={inside(word, limit)!r}")
    with pytest.raises(UserError) as refused:
        translated(f"{key}={outside(word, limit)!r}")
    assert f"{word} {limit}" in refused.value.hint
    assert refused.value.message.startswith(f"{key}={outside(word, limit)!r}: ")
    assert refused.value.where is not None


@pytest.mark.verl
@pytest.mark.parametrize(("key", "word", "limit"), LIMITS)
def test_the_library_refuses_what_is_outside_and_takes_what_is_inside(key, word, limit):
    import torch
    from vllm import SamplingParams
    from vllm.config import CacheConfig
    from vllm.exceptions import VLLMValidationError

    name = key.rpartition(".")[2]
    weight = torch.nn.Parameter(torch.zeros(1))
    library = {
        "gpu_memory_utilization": lambda value: CacheConfig(gpu_memory_utilization=value),
        "lr": lambda value: torch.optim.AdamW([weight], lr=value),
        "weight_decay": lambda value: torch.optim.AdamW([weight], weight_decay=value),
    }.get(name, lambda value: SamplingParams(**{name: value}))
    library(inside(word, limit))
    with pytest.raises((ValueError, VLLMValidationError)):
        library(outside(word, limit))
