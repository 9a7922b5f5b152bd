"""Which seed a run has."""

import pytest

from trinity_compat.job.run_spec import seed_of


@pytest.mark.parametrize(
    ("data", "rollout", "seed"),
    [({"seed": 7}, {"seed": 3}, 7), ({"seed": None}, {"seed": 3}, 3), ({}, {"seed": None}, 42), ({}, {}, 42)],
)
def test_the_data_s_seed_counts_then_the_rollouts_then_verls_own(data, rollout, seed):
    """veRL after 0.9.1 has rollout.seed: null, and a launch may write it."""
    assert seed_of({"data": data, "actor_rollout_ref": {"rollout": rollout}}) == seed
