import pytest

pytestmark = pytest.mark.runtime


def test_an_engine_that_is_further_apart_than_the_bound_ends_the_run_with_both_numbers(run):
    """No rounding is as small as this bound: what stops here is what other weights would stop."""
    bound = {"TRINITY_COMPAT_HANDOVER_BOUND": "1e-12"}
    one = run("trainer.total_training_steps=3", env=bound).start().finish()
    assert one.code == 1, one.out + one.err
    said = one.out + one.err
    assert (
        "the engine does not hold the weights that the trainer sent: version 1: mean log-probability" in said
    )
    assert "in the trainer over" in said
    assert one.alive() == []
