"""Data on the keys that stock veRL reads, and the sentences about a launch's keys that are made of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trinity_compat.common.nested import leaves
from trinity_compat.common.releases import VERL
from trinity_compat.launch import read_text
from trinity_compat.verl_config import FLAVOURS, effective_config
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.reads import FOLLOWED, by_hand, ignored_keys, read_of, read_until, sentence
from trinity_compat.verl_config.releases import release_tree

FACTS = Path(__file__).parents[1] / "facts" / "verl_reads.txt"
MICRO = "critic.ppo_micro_batch_size_per_gpu"


def keys_of(version: str, flavour: str) -> set[str]:
    found = {key for key, _ in leaves(composed_as(release_tree(version), flavour))}
    return {key for key in found if not key.rpartition(".")[2].startswith("_")}


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("version", FOLLOWED)
def test_each_key_of_a_release_has_an_answer(version: str, flavour: str) -> None:
    missing = {key for key in keys_of(version, flavour) if read_of(key, version, flavour) is None}
    assert not missing
    assert read_of("no.such.key", version, flavour) is None


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("data.train_batch_size", "READ"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "READ"),
        ("critic.ppo_max_token_len_per_gpu", "READ IF"),
        ("actor_rollout_ref.actor.optim.clip_grad", "READ"),
        ("reward.custom_reward_function.path", "READ"),
        ("actor_rollout_ref.actor.entropy_checkpointing", "READ VIA"),
        ("actor_rollout_ref.actor.grad_clip", "NOT READ"),
        ("actor_rollout_ref.actor.use_torch_compile", "NOT READ"),
        ("actor_rollout_ref.nccl_timeout", "NOT READ"),
        ("custom_reward_function.path", "NOT READ"),
        ("data.trust_remote_code", "NOT READ"),
        ("reward_model.enable", "NOT READ"),
        ("data.truncation", "STORED ONLY"),
        (MICRO, "CHECKED ONLY"),
        ("critic.use_dynamic_bsz", "CHECKED ONLY"),
        ("critic.ulysses_sequence_parallel_size", "CHECKED ONLY"),
    ],
)
def test_what_the_pinned_release_does_with_a_key(key: str, label: str) -> None:
    found = read_of(key, VERL)
    assert found is not None
    assert found.label == label


def test_a_key_that_an_older_release_read() -> None:
    assert read_until("actor_rollout_ref.actor.grad_clip", VERL) == "0.7.0"
    assert not sentence("actor_rollout_ref.actor.grad_clip", "0.7.0")
    assert (
        sentence("actor_rollout_ref.actor.grad_clip", VERL)
        == "veRL 0.9.1 does not read it (read until 0.7.0)"
    )


@pytest.mark.parametrize("version", by_hand())
def test_a_word_by_hand_is_about_a_key_of_the_release_and_names_its_place(version: str) -> None:
    every = set().union(*(keys_of(version, flavour) for flavour in FLAVOURS))
    for key, word in by_hand()[version].items():
        assert key in every
        assert word["why"]


def verl_source(place: str) -> str:
    """The line of the installed veRL at ``file:line``."""
    spec = importlib.util.find_spec("verl")
    assert spec and spec.submodule_search_locations
    file, _, line = place.rpartition(":")
    return (Path(spec.submodule_search_locations[0]) / file).read_text().splitlines()[int(line) - 1]


def test_the_places_by_hand_hold_the_key_in_the_installed_release() -> None:
    for key, word in by_hand()[VERL].items():
        assert key.rpartition(".")[2] in verl_source(word["place"]), key


def test_the_places_of_stores_and_checks_hold_the_key_in_the_installed_release() -> None:
    found = {key: read_of(key, VERL) for key in keys_of(VERL, FLAVOURS[0])}
    shown = {
        key: read for key, read in found.items() if read and read.label in ("STORED ONLY", "CHECKED ONLY")
    }
    assert len(shown) > 8
    for key, read in shown.items():
        assert any(key.rpartition(".")[2] in verl_source(place) for place in read.places), key


def test_no_key_that_a_stock_run_read_is_said_to_be_unread() -> None:
    """The list is scripts/generate/trace_verl_reads.py's; there a check and a store count as reads."""
    places = dict(line.split() for line in FACTS.read_text().splitlines())
    labels = {key: found.label for key in places if (found := read_of(key, VERL))}
    assert len(labels) > 150
    assert [key for key, label in labels.items() if label == "NOT READ"] == []


def launch(*arguments: str, version: str = VERL, main: str = "verl.trainer.main_ppo"):
    text = f"python3 -m {main} {' '.join(arguments)}"
    return effective_config(read_text(text, name="run.sh").launches[0], version=version)


def test_a_key_that_is_set_to_another_value_than_the_default_is_named() -> None:
    found = ignored_keys(launch(f"{MICRO}=4", "data.truncation=left", "data.train_batch_size=8"))
    assert set(found) == {MICRO, "data.truncation"}
    assert "critic.py:108" in found[MICRO]


def test_a_key_that_is_set_to_its_default_is_not_named() -> None:
    assert not ignored_keys(launch("data.truncation=error"))


def test_a_default_that_is_another_key_s_value_is_compared_as_that_value() -> None:
    dynamic, critic = "actor_rollout_ref.actor.use_dynamic_bsz=True", "critic.use_dynamic_bsz"
    assert not ignored_keys(launch(dynamic, f"{critic}=True"))
    assert set(ignored_keys(launch(dynamic, f"{critic}=False"))) == {critic}


def test_the_release_decides() -> None:
    assert ignored_keys(launch("actor_rollout_ref.actor.grad_clip=0.3"))
    assert not ignored_keys(launch("actor_rollout_ref.actor.grad_clip=0.3", version="0.7.0"))
    assert not ignored_keys(launch("actor_rollout_ref.actor.grad_clip=0.3", version="0.6.1"))


def test_nothing_is_said_of_the_code_of_another_main() -> None:
    main = "verl.experimental.fully_async_policy.fully_async_main"
    assert not ignored_keys(launch("data.truncation=left", main=main))


@pytest.mark.parametrize("word", ["trainer.balance_batch=False", "trainer.esi_redundant_time=5"])
def test_a_key_that_v0_s_trainer_alone_reads(word: str) -> None:
    key = word.partition("=")[0]
    assert set(ignored_keys(launch(word))) == {key}
    assert not ignored_keys(launch(word, "trainer.use_v1=False"))
