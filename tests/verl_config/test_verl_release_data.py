"""The data of veRL's releases."""

from __future__ import annotations

import facts
import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, nodes
from trinity_compat.verl_config import FLAVOURS, VERSIONS
from trinity_compat.verl_config.compose import Choices, compose
from trinity_compat.verl_config.effective import asked_for
from trinity_compat.verl_config.releases import check_version, key_index, release_tree


def defaults(version: str, flavour: str) -> dict:
    return compose(release_tree(version).find, flavour, Choices())


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_are_those_recorded_from_the_release(version: str, flavour: str) -> None:
    recorded = facts.load("verl_defaults")[version][flavour]
    ours = dict(leaves(defaults(version, flavour)))
    assert ours == recorded
    assert {key: type(value) for key, value in ours.items()} == {k: type(v) for k, v in recorded.items()}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_fingerprints_say_which_release_has_which_key(flavour: str) -> None:
    index = key_index()
    assert tuple(index["versions"]) == VERSIONS
    for bit, version in enumerate(VERSIONS):
        have = nodes(defaults(version, flavour))
        assert {key for key, (has, _) in index[flavour].items() if has >> bit & 1} == set(have)
        filled = {key for key, value in have.items() if value is not None}
        assert {key for key, (_, mask) in index[flavour].items() if mask >> bit & 1} == filled


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("0.9.1", "0.9.1"),
        ("0.9.0", "0.9.0"),
        ("0.9.0.dev0", "0.9.0"),
        ("0.9", "0.9.1"),
        ("0.9.2", "0.9.1"),
        ("0.6", "0.6.1"),
        ("0.6.0", "0.6.1"),
        ("0.3.0.post1", "0.3.0"),
    ],
)
def test_a_version_stands_for_the_recorded_release_of_its_line(asked: str, taken: str) -> None:
    assert check_version(asked) == taken
    choice = asked_for(asked)
    assert choice is not None and choice.stands_in == (asked != taken)
    stands_in = f"used instead of {asked}, which was requested"
    assert choice.why == (f"requested ({asked})" if asked == taken else stands_in)


@pytest.mark.parametrize("asked", ["0.10.0", "1.0", "", "main", "0", "../0.9.1"])
def test_an_unknown_version_is_refused_with_the_known_ones(asked: str) -> None:
    with pytest.raises(UserError) as refused:
        check_version(asked)
    assert "0.9.1" in str(refused.value)
