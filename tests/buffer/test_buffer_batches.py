"""Batches of steps, as a dataset that changes gets them: stored whole, taken back by a resume."""

import sqlite3

import numpy as np
import pytest
import torch

from trinity_compat.buffer import batches, open_buffer
from trinity_compat.buffer.batch_codec import decode, encode
from trinity_compat.buffer.migrations import MIGRATIONS
from trinity_compat.buffer.position import NOBODYS, Position


def objects(*values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def test_a_batch_comes_back_in_its_parts(buffer, sql, monkeypatch):
    monkeypatch.setattr(batches, "_PART", 4)
    buffer.keep_batch(1, b"0123456789")
    buffer.keep_batch(2, b"ab")
    assert (buffer.kept_batch(1), buffer.kept_batch(2), buffer.kept_batch(3)) == (b"0123456789", b"ab", None)
    assert sql("SELECT step, part FROM train_batches ORDER BY 1, 2") == [(1, 0), (1, 1), (1, 2), (2, 0)]
    buffer.keep_batch(1, b"new")
    assert buffer.kept_batch(1) == b"new"


def test_a_resume_takes_back_those_of_later_steps(buffer):
    for step in (1, 2, 3):
        buffer.keep_batch(step, bytes([step]))
    buffer.reconcile(step=2)
    assert [buffer.kept_batch(step) for step in (1, 2, 3)] == [b"\1", b"\2", None]
    buffer.keep_batch(3, b"again")
    assert [buffer.batch_history(step) for step in (1, 2, 3, 4)] == [1, 1, 2, None]


def test_a_checkpoint_of_another_database_finds_none(buffer):
    buffer.keep_batch(1, b"x")
    buffer.reconcile(step=1, position=Position(below=4, buffer=NOBODYS))
    assert buffer.kept_batch(1) is None


def test_a_database_of_the_schema_before_gets_the_table_and_keeps_its_rows(tmp_path):
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    for migration in MIGRATIONS[:5]:
        for statement in migration.render("sqlite"):
            connection.execute(statement)
        entry = (migration.number, migration.name)
        connection.execute("INSERT INTO schema_migrations VALUES (?, ?)", entry)
    connection.execute("INSERT INTO job_state VALUES ('kept', '7')")
    connection.commit()
    connection.close()
    buffer = open_buffer(f"sqlite:///{path}")
    assert buffer.get_state("kept") == 7
    buffer.keep_batch(1, b"x")
    assert buffer.kept_batch(1) == b"x"
    buffer.close()


def a_batch():
    from verl import DataProto

    tensors = {
        "ids": torch.arange(6).view(2, 3),
        "scores": torch.tensor([[0.5, float("nan")], [1.0, -2.0]]),
        "half": torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16),
        "mask": torch.tensor([[True], [False]]),
    }
    columns = {
        "uid": objects("a", "b"),
        "extra_info": objects({"index": 0, "seen": [1.5]}, {}),
        "raw_prompt": objects([{"role": "user", "content": "é"}], []),
        "acc": np.array([0.0, 1.0]),
        "source": np.array(["x", "yy"]),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info={"temperature": 1.0})


def test_a_batch_of_verls_is_the_same_after_coding():
    batch = a_batch()
    data, left = encode(batch)
    found = decode(data)
    assert left == []
    assert b"pickle" not in data
    assert set(found.batch.keys()) == set(batch.batch.keys())
    for name, tensor in batch.batch.items():
        assert found.batch[name].dtype == tensor.dtype
        assert (
            torch.equal(found.batch[name].nan_to_num(7), tensor.nan_to_num(7)) or tensor.dtype == torch.bool
        )
    assert found.batch["mask"].tolist() == [[True], [False]]
    for name, column in batch.non_tensor_batch.items():
        assert found.non_tensor_batch[name].dtype == column.dtype
        assert found.non_tensor_batch[name].tolist() == column.tolist()
    assert found.meta_info == {"temperature": 1.0}


@pytest.mark.parametrize("value", [{"pixel_values": torch.ones(1)}, {"pixel_values": [1.0]}])
def test_pixels_are_left_out_and_named_but_not_their_empty_column(value):
    batch = a_batch()
    batch.non_tensor_batch["multi_modal_inputs"] = objects({}, {})
    assert encode(batch)[1] == []
    batch.non_tensor_batch["multi_modal_inputs"] = objects({}, value)
    data, left = encode(batch)
    assert left == ["multi_modal_inputs"]
    assert "multi_modal_inputs" not in decode(data).non_tensor_batch


def test_what_json_cannot_hold_is_left_out_and_named():
    batch = a_batch()
    batch.non_tensor_batch["tool"] = objects(object(), None)
    batch.meta_info["callback"] = print
    data, left = encode(batch)
    assert left == ["tool", "callback"]
    assert decode(data).meta_info == {"temperature": 1.0}
