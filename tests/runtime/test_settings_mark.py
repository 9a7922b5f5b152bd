"""Which edits of a launch make groups that wait for their training worthless."""

import pytest

from trinity_compat.settings_mark import settings_mark

VERL = {
    "data": {"max_response_length": 5, "val_files": "a"},
    "actor_rollout_ref": {
        "rollout": {"n": 8, "temperature": 1.0, "n_gpus_per_node": 4, "val_kwargs": {"n": 1}},
        "actor": {"optim": {"lr": 1e-6}},
    },
    "reward": {"num_workers": 1},
}


def edited(path, value):
    *sections, key = path.split(".")
    tree = {**VERL}
    node = tree
    for section in sections:
        node[section] = {**node[section]}
        node = node[section]
    node[key] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        ("data.max_response_length", 9, False),
        ("actor_rollout_ref.rollout.n", 4, False),
        ("actor_rollout_ref.rollout.temperature", 0.7, False),
        ("reward.num_workers", 2, False),
        ("data.val_files", "b", True),
        ("data.dataloader_num_workers", 0, True),
        ("data.dataloader_num_workers", 8, False),  # another order
        ("actor_rollout_ref.rollout.val_kwargs", {"n": 2}, True),
        ("actor_rollout_ref.actor.optim", {"lr": 1e-5}, True),
        ("actor_rollout_ref.rollout.n_gpus_per_node", 2, True),  # another split, or machine
    ],
)
def test_what_a_group_is_made_of(path, value, same):
    assert (settings_mark(edited(path, value)) == settings_mark(VERL)) is same
