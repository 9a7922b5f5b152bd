"""A configuration of the pinned release in the keys of another one that runs."""

from __future__ import annotations

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, value_at
from trinity_compat.common.releases import VERL, VERL_RUNNABLE
from trinity_compat.verl_config import FLAVOURS, compose_pinned
from trinity_compat.verl_config.compose import Choices, compose
from trinity_compat.verl_config.interpolate import Resolver
from trinity_compat.verl_config.pinned import in_keys_of
from trinity_compat.verl_config.releases import release_tree

OTHERS = [release for release in VERL_RUNNABLE if release != VERL]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("release", OTHERS)
def test_the_pinned_defaults_become_exactly_the_keys_of_the_release(release: str, flavour: str) -> None:
    own = Resolver(compose(release_tree(release).find, flavour, Choices())).resolve()
    made = in_keys_of(release, compose_pinned({}, flavour), flavour)
    assert dict(leaves(made)).keys() == dict(leaves(own)).keys()


def test_a_value_that_both_releases_have_is_kept_and_an_own_key_has_its_release_s_default() -> None:
    given = compose_pinned({"data.train_batch_size": 8}, "ppo_megatron_trainer")
    made = in_keys_of("0.9.0", given, "ppo_megatron_trainer")
    assert value_at(made, "data.train_batch_size") == 8
    assert value_at(given, "critic.megatron.grad_offload") is None
    assert value_at(made, "critic.megatron.grad_offload") is False


def test_a_key_that_the_release_lacks_is_refused_unless_it_has_its_default() -> None:
    key = "actor_rollout_ref.rollout.router_config_path"
    assert value_at(in_keys_of("0.9.0", compose_pinned({key: None}), "ppo_trainer"), key, "none") == "none"
    with pytest.raises(UserError, match=rf"^{key}=/r\.yaml: the installed veRL 0\.9\.0 has no such key"):
        in_keys_of("0.9.0", compose_pinned({key: "/r.yaml"}), "ppo_trainer")


def test_a_default_that_follows_another_key_is_refused_by_that_key_alone() -> None:
    given = compose_pinned({"global_profiler.finish_hook_cmd": "true"})
    assert value_at(given, "actor_rollout_ref.actor.profiler.finish_hook_cmd") == "true"
    with pytest.raises(UserError, match=r"^global_profiler\.finish_hook_cmd=true"):
        in_keys_of("0.9.0", given, "ppo_trainer")


@pytest.mark.parametrize("release", [None, VERL, "0.10.0"])
def test_another_installed_release_gets_the_pinned_keys(release: str | None) -> None:
    given = compose_pinned({})
    assert in_keys_of(release, given, "ppo_trainer") == given
