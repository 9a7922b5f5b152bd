"""Batches of steps, as a dataset that changes gets them: stored whole, taken back by a resume."""

import io
import json
import sqlite3
import zipfile

import numpy as np
import pytest
import torch

from trinity_compat.buffer import HistoryChanged, batches, open_buffer
from trinity_compat.buffer.batch_codec import Damaged, decode, encode
from trinity_compat.buffer.migrations import MIGRATIONS
from trinity_compat.buffer.stream_position import NOBODYS, StreamPosition


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


def test_one_that_has_not_heard_of_a_resume_changes_nothing(buffer):
    buffer.reconcile(step=0)
    buffer.keep_batch(1, b"new", history=2)
    with pytest.raises(HistoryChanged):
        buffer.keep_batch(1, b"of the history before", history=1)
    assert (buffer.kept_batch(1), buffer.batch_history(1)) == (b"new", 2)


def test_a_checkpoint_of_another_database_finds_none(buffer):
    buffer.keep_batch(1, b"x")
    buffer.reconcile(step=1, position=StreamPosition(below=4, buffer=NOBODYS))
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


def a_grpo_batch(rows=64, prompt=128, response=256):
    """As it is after an update: answers half as long as they may be, each token's two log-probabilities."""
    from verl import DataProto

    chance = np.random.default_rng(0)
    ids = torch.from_numpy(chance.zipf(1.2, (rows, prompt + response)) % 150_000)
    lengths = torch.from_numpy(chance.integers(1, response, (rows, 1)))
    mask = (torch.arange(response) < lengths).long()
    attention = torch.cat([torch.ones(rows, prompt, dtype=torch.long), mask], dim=1)
    ids *= attention
    likely = -torch.from_numpy(chance.gamma(0.3, 1.0, (rows, response))).float() * mask
    tensors = {
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:],
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clip(min=0),
        "response_mask": mask,
        "rollout_log_probs": likely,
        "old_log_probs": likely * 1.01,
        "advantages": mask * 0.5,
    }
    return DataProto.from_dict(tensors=tensors), int(mask.sum()), rows * prompt


def test_a_batch_takes_little_more_than_its_ids_and_log_probabilities():
    batch, answered, asked = a_grpo_batch()
    data, _ = encode(batch)
    found = decode(data)
    assert len(data) < 10 * answered + 3 * asked, len(data)  # what the plan counts (run/checks/disk_space.py)
    assert {*found.batch.keys()} == {*batch.batch.keys()}
    for name, tensor in batch.batch.items():
        assert torch.equal(found.batch[name], tensor) and found.batch[name].dtype == tensor.dtype, name
        found.batch[name].add_(1)  # a dataset may write to what it is given


def test_ids_that_are_more_than_prompts_and_responses_are_kept_by_themselves():
    batch, *_ = a_grpo_batch(rows=4)
    batch.batch["input_ids"][0, 0] += 1
    assert torch.equal(decode(encode(batch)[0]).batch["input_ids"], batch.batch["input_ids"])


def zipped(method=zipfile.ZIP_DEFLATED, **entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in entries.items():
            file.writestr(name.replace("_", "/", 1), data)
    return out.getvalue()


def array(shape, kind="<f8", body=b""):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": shape})
    return out.getvalue() + body


ABOUT = json.dumps({"rows": 1, "meta": {"step": "3"}, "bfloat16": ["half"]})


def test_a_batch_that_an_older_release_kept_is_read():
    data = zipped(
        about=ABOUT,
        tensors_ids=array((1, 2), "<i8", np.array([3, 4], "<i8").tobytes()),
        tensors_half=array(
            (1, 1), "<i2", torch.tensor([1.5], dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
        ),
        objects_uid='["a"]',
    )
    found = decode(data)
    assert found.batch["ids"].tolist() == [[3, 4]]
    assert found.batch["half"].tolist() == [[1.5]]
    assert found.non_tensor_batch["uid"].tolist() == ["a"]
    assert found.meta_info == {"step": 3}


TURNED = json.dumps({"rows": 1, "meta": {}, "bfloat16": [], "turned": True})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 100,
        zipped(about=ABOUT)[:-1],
        zipped(about="[]"),
        zipped(tensors_x=array((1,), body=bytes(8))),
        zipped(about=ABOUT, tensors_x=array((10**12,))),
        zipped(about=TURNED, tensors_x=array((10**12,))),
        zipped(about=ABOUT, tensors_x=array((-1, -1), body=bytes(8))),
        zipped(about=ABOUT, tensors_x=array((1,), "|O", bytes(8))),
        zipped(about=TURNED, tensors_x=array((1,), "|O", bytes(8))),
        zipped(about=ABOUT, objects_x="[" * 100_000),
        zipped(about=ABOUT, tensors_x=array((1,), body=bytes(8)), tensors_y=array((2,), body=bytes(16))),
        zipped(about=json.dumps({**json.loads(TURNED), "joined": True})),
    ],
)
def test_bytes_that_are_no_batch_are_named_so_and_make_nothing_large(data):
    with pytest.raises(Damaged):
        decode(data)


def test_what_is_packed_without_a_bound_is_not_unpacked():
    bomb = zipped(zipfile.ZIP_BZIP2, about=ABOUT, columns_x=array((1, 10**8), "|i1", bytes(10**8)))
    assert len(bomb) < 2000
    with pytest.raises(Damaged, match="about is packed by method 12"):
        decode(bomb)


def test_parts_that_lie_on_one_another_are_not_unpacked():
    honest = zipped(about=ABOUT, columns_x=array((1, 10**6), "|i1", bytes(10**6)))
    end = honest.rindex(b"PK\5\6")
    begin = honest.index(b"PK\1\2")
    entry = honest.rindex(b"PK\1\2", begin, end)
    many = honest[:begin] + honest[begin:entry] + honest[entry:end] * 200
    size, count = len(many) - begin, 201
    tail = honest[end : end + 8] + count.to_bytes(2, "little") * 2 + size.to_bytes(4, "little")
    with pytest.raises(Damaged, match="that claim to be 2"):
        decode(many + tail + begin.to_bytes(4, "little") + bytes(2))
