"""A GPU without flash-attn: sdpa is laid over and said, or the run is refused before it starts."""

from pathlib import Path

import pytest
from test_plan import planned

from trinity_compat.errors import UserError
from trinity_compat.runtime.plan import attention

MODEL = "actor_rollout_ref.model.override_config.attn_implementation"
ULYSSES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"


@pytest.fixture(params=[True, False])
def has_flash(request, monkeypatch):
    monkeypatch.setattr(attention, "installed", lambda: request.param)
    return request.param


@pytest.fixture
def without_flash(monkeypatch):
    monkeypatch.setattr(attention, "installed", lambda: False)


def implementation(made):
    model = made.spec.verl["actor_rollout_ref"]["model"]
    return (model.get("override_config") or {}).get("attn_implementation")


def test_sdpa_takes_its_place_where_it_is_missing_and_that_is_said(has_flash):
    made = planned(device="cuda", mode="both")
    assert implementation(made) == (None if has_flash else "sdpa")
    assert made.spec.verl["actor_rollout_ref"]["model"]["use_remove_padding"] is has_flash
    assert (attention.INSTALL in "\n".join(made.notes)) is not has_flash


def test_the_critic_gets_it_too(without_flash):
    critic = planned(device="cuda", mode="both").spec.verl["critic"]["model"]
    assert critic["override_config"]["attn_implementation"] == "sdpa"


def test_what_the_launch_asks_for_stays_if_it_needs_no_flash_attn(without_flash):
    made = planned(f"+{MODEL}=eager", device="cuda", mode="both")
    assert implementation(made) == "eager"


def test_a_cpu_run_knows_nothing_of_it(without_flash):
    assert attention.INSTALL not in "\n".join(planned().notes)


def test_ulysses_needs_it_and_is_refused_before_anything_starts(without_flash):
    made = planned(f"{ULYSSES}=2", "trainer.n_gpus_per_node=8", device="cuda", mode="both")
    assert implementation(made) is None
    with pytest.raises(UserError, match="needs flash-attn") as refused:
        attention.check(made.spec.verl, "cuda")
    assert attention.INSTALL in str(refused.value)


def test_a_run_with_sdpa_may_start(without_flash):
    attention.check(planned(device="cuda", mode="both").spec.verl, "cuda")


def test_preflight_asks(without_flash, monkeypatch):
    from trinity_compat import extras
    from trinity_compat.runtime.checks import preflight

    made = planned(f"{ULYSSES}=2", "trainer.n_gpus_per_node=8", device="cuda", mode="both")
    monkeypatch.setattr(extras, "need_for_a_run", lambda: None)
    with pytest.raises(UserError, match="needs flash-attn"):
        preflight.check(made)


def test_the_profile_s_words_are_in_the_repository():
    assert (Path(__file__).parents[2] / "overrides" / f"{attention.PROFILE}.yaml").is_file()
