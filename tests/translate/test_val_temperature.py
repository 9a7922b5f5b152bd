"""The temperature of evaluations: whether do_sample counts is the release's."""

import pytest

from .helpers import translated

KEYS = "actor_rollout_ref.rollout.val_kwargs"


@pytest.mark.parametrize(
    ("release", "engine", "words", "temperature"),
    [
        ("0.9.1", "vllm", (), 0.6),
        ("0.9.1", "vllm", (f"{KEYS}.do_sample=False",), 0.6),
        ("0.7.0", "vllm", (), 0.6),
        ("0.6.1", "vllm", (), 0.0),
        ("0.6.1", "vllm", (f"{KEYS}.do_sample=True",), 0.6),
        ("0.9.1", "hf", (), 0.0),
    ],
)
def test_do_sample_counts_where_the_release_reads_it(release, engine, words, temperature):
    given = (f"{KEYS}.temperature=0.6", f"actor_rollout_ref.rollout.name={engine}", *words)
    config = translated(*given, verl_version=release)[1]
    (taskset,) = config["buffer"]["explorer_input"]["eval_tasksets"]
    assert taskset["rollout_args"]["temperature"] == temperature
