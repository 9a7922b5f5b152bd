"""Rows whose tasks hold sounds: veRL's engine puts those of a micro-batch into one tensor."""

from types import SimpleNamespace

import pytest
import torch

from trinity_compat.trainer.multi_modal import MultiModal, level

pytestmark = pytest.mark.verl  # verl is imported along the way


def sound(frames, sounds=1):
    mask = torch.ones(sounds, frames, dtype=torch.bool)
    return {"input_features": torch.ones(sounds, frames, 4), "input_features_mask": mask}


def test_sounds_are_made_as_long_as_the_longest_and_masked_behind_their_end():
    rows = [sound(3), {"pixel_values": torch.ones(2, 2)}, sound(5, sounds=2), sound(5)]
    level(rows)
    assert [row["input_features"].shape for row in rows if "input_features" in row] == [
        (1, 5, 4),
        (2, 5, 4),
        (1, 5, 4),
    ]
    short, images, *whole = rows
    assert short["input_features_mask"].tolist() == [[True] * 3 + [False] * 2]
    assert short["input_features"][0, :3].all() and not short["input_features"][0, 3:].any()
    assert list(images) == ["pixel_values"]
    assert all(row["input_features_mask"].all() for row in whole)


def test_rows_without_sounds_stay_as_they_are():
    rows = [{}, {"pixel_values": torch.ones(2, 2)}]
    level(rows)
    assert [list(row) for row in rows] == [[], ["pixel_values"]]


def test_a_model_without_a_processor_has_no_media_of_its_own():
    batch = SimpleNamespace(batch={}, non_tensor_batch={})  # it would be looked at
    MultiModal(SimpleNamespace(data=None), None, None).add(batch, [{}])
    assert (batch.batch, batch.non_tensor_batch) == ({}, {})
