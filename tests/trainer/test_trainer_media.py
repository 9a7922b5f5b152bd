"""Rows whose tasks hold sounds: veRL's engine puts those of a micro-batch into one tensor."""

from types import SimpleNamespace

import pytest
import torch

from trinity_compat.trainer import multi_modal
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


class Processor:
    """Inputs of a made-up model, and the tokens with which it was asked for them."""

    taken_out = frozenset({"mm_token_type_ids"})

    def __init__(self, *names):
        self.names, self.asked = names, []

    def media(self, messages):
        return {"images": messages}

    def inputs(self, ids, media):
        self.asked.append(ids.tolist())
        return {name: torch.tensor([len(media["images"])]) for name in self.names}

    def positions(self, ids, attention, inputs):
        inputs.pop("mm_token_type_ids", None)
        return ids


def asked_for_two_tasks(monkeypatch, *names):
    """Return the requests to the processor for three rows of two tasks, and the rows' inputs."""
    processor = Processor(*names)
    monkeypatch.setattr(multi_modal, "_Worker", lambda *_: processor)
    first, second = {"raw_prompt": ["image"]}, {"raw_prompt": ["image", "image"]}
    rows = [
        (torch.tensor(prompt), torch.tensor(ids), torch.ones(1, 3))
        for prompt, ids in (([[1]], [[1, 8, 9]]), ([[1]], [[1, 7, 7]]), ([[2]], [[2, 5, 5]]))
    ]
    made = MultiModal(SimpleNamespace(data=None), None, object()).inputs_of(rows, [first, first, second])
    assert [positions.tolist() for _, positions in made] == [ids.tolist() for _, ids, _ in rows]
    return processor.asked, [inputs for inputs, _ in made]


def test_a_processor_reads_no_answer_where_its_inputs_follow_from_the_media(monkeypatch):
    asked, inputs = asked_for_two_tasks(monkeypatch, "pixel_values", "mm_token_type_ids")
    assert asked == [[[1]], [[2]]]
    assert inputs == [{"pixel_values": 1}, {"pixel_values": 1}, {"pixel_values": 2}]


def test_it_reads_each_answer_where_some_follow_from_the_tokens(monkeypatch):
    asked, inputs = asked_for_two_tasks(monkeypatch, "pixel_values", "cross_attention_mask")
    assert asked == [[[1]], [[1, 8, 9]], [[1, 7, 7]], [[2]], [[2, 5, 5]]]
    assert [sorted(each) for each in inputs] == [["cross_attention_mask", "pixel_values"]] * 3
