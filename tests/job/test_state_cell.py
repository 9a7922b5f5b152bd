"""Stored values of a job's state: their keys and texts stay, so that a job of an earlier release goes on."""

import json
import re
import sqlite3
from contextlib import closing

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.stream_position import FIRST_TASK, StreamPosition
from trinity_compat.explorer.rewards.reward_model import address as reward_model
from trinity_compat.explorer.teachers import address as teachers
from trinity_compat.job.checkpoints import BENCHED
from trinity_compat.job.fingerprint import edits, sign
from trinity_compat.job.run_spec import Fingerprint
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.synchronizer.device_turns import DeviceTurn
from trinity_compat.synchronizer.engine_dtypes import REPORTED, agreed
from trinity_compat.synchronizer.requests import WeightRequest, WeightRequester, WeightRequests
from trinity_compat.synchronizer.transports.nccl import Rendezvous
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver, OfferSender, WeightOffer
from trinity_compat.synchronizer.weight_sync_check import SCORED_ANSWER, ScoredAnswer

PARTS = {"reward function": {"trinity_compat.reward_timeout": "300"}}
MEETING = Rendezvous("t", "g", "127.0.0.1", 1, 2, 3, 1.0)
ANSWER = ScoredAnswer(1, [5, 6], [8], [-0.5])


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv(reward_model.TOKEN, "start1")
    monkeypatch.setenv(teachers.TOKEN, "start2")
    return tmp_path / "b.db"


@pytest.fixture
def buffer(path):
    with closing(open_buffer(f"sqlite:///{path}")) as buffer:
        yield buffer


def stored(path):
    """Rows of the table, with each random id as ID."""
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT key, CAST(value AS TEXT) FROM job_state").fetchall()
    return {key: re.sub("[0-9a-f]{32}", "ID", value) for key, value in rows}


def store_earlier(path, **values):
    with closing(sqlite3.connect(path)) as raw, raw:
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        raw.executemany("INSERT INTO job_state VALUES (?, ?)", rows)


def test_keys_and_texts_of_weights_and_devices(buffer, path):
    WeightRequester(buffer, 2).is_answered(-1)
    asked = WeightRequests(buffer, 3)
    asked.answer(asked.open())
    trainer, explorer = OfferSender(buffer, 1), OfferReceiver(buffer, 0, 4)
    offer = trainer.open(7)
    explorer.accept(offer)
    trainer.meet(offer, MEETING, trainer.members(offer))
    DeviceTurn(buffer, "explorer").give()
    SCORED_ANSWER.set(buffer, ANSWER)
    REPORTED.at(1).set(buffer, {"w": "bfloat16", "b": ""})
    REPORTED.at(0).set(buffer, None)
    assert stored(path) == {
        "sync/ask/2": '{"id":"ID","has":-1}',
        "sync/answer/2": '"ID"',
        "weights/offer": '{"id":"ID","version":7}',
        "weights/ready/0": '{"offer":"ID","member":"ID","ranks":4}',
        "weights/meeting": '{"offer":"ID","first":{"ID":1},"meeting":{"transfer":"t","group":"g",'
        '"address":"127.0.0.1","port":1,"world_size":2,"version":3,"timeout_s":1.0,"whole_s":3600.0,"secret":""}}',
        "device/turn": '"trainer"',
        "handover/probe": '{"version":1,"prompt_ids":[5,6],"response_ids":[8],"logprobs":[-0.5]}',
        "weights/dtypes/1": '{"w":"bfloat16","b":""}',
        "weights/dtypes/0": "null",
    }
    trainer.close()
    assert stored(path)["weights/offer"] == "null"


def test_keys_and_texts_of_a_run(buffer, path):
    FINISHED.set(buffer, False)
    BENCHED.at(20).set(buffer, "a1b2")
    reward_model.address_cell().set(buffer, "h:1")
    reward_model.address_cell(2).set(buffer, "h:2")
    teachers.store_addresses(buffer, ["h:3", "h:4"], 0)
    sign(buffer, Fingerprint(PARTS, {}))
    buffer.reconcile(step=3, position=StreamPosition(6, (8,), stream=9), remake=True)
    assert stored(path) == {
        "finished": "false",
        "bench/20": '"a1b2"',
        "reward_model/address/start1": '"h:1"',
        "reward_model/address/start1/2": '"h:2"',
        "teachers/address/start2": '"h:3 h:4"',
        "made with": '[{"reward function":{"trinity_compat.reward_timeout":"300"}}]',
        "made anew": "2",
        "adopted": '{"step":3,"history":2,"below":6,"beyond":[8]}',
        "stream/4": "9",
    }


def test_what_an_earlier_release_stored_is_read(buffer, path):
    store_earlier(
        path,
        **{
            "sync/ask/0": {"id": "i", "has": 3},
            "weights/offer": {"id": "o", "version": 7},
            "device/turn": "trainer",
            "handover/probe": {"version": 1, "prompt_ids": [5, 6], "response_ids": [8], "logprobs": [-0.5]},
            "weights/dtypes/0": {"w": "bfloat16"},
            "finished": True,
            "teachers/address/start2": "h:3 h:4",
            "bench/0": "a1b2",
            "stream/2": 7,
            "buffer_id": "mine",
            "made with": "a digest, as the first releases had it",
        },
    )
    assert WeightRequests(buffer, 2).open() == {0: WeightRequest("i", 3)}
    assert OfferReceiver(buffer, 0, 1).look() == WeightOffer("o", 7)
    assert DeviceTurn(buffer, "trainer").is_mine()
    assert SCORED_ANSWER.get(buffer) == ANSWER
    assert agreed(buffer, 1) == {"w": "bfloat16"}
    assert buffer.glance().finished
    assert teachers.load_addresses(buffer, 0) == ["h:3", "h:4"]
    assert BENCHED.at(0).get(buffer) == "a1b2"
    assert FIRST_TASK.at(2).get(buffer) == 7
    assert buffer.position(step=1).buffer == "mine"
    assert edits(buffer, Fingerprint(PARTS, {})) == []
    sign(buffer, Fingerprint(PARTS, {}))
    assert stored(path)["made with"] == '"a digest, as the first releases had it"'


def test_before_anything_is_stored(buffer):
    assert not buffer.glance().finished
    assert SCORED_ANSWER.get(buffer) is None
    assert DeviceTurn(buffer, "explorer").is_mine()
    assert reward_model.address_cell().get(buffer) is None
    assert OfferReceiver(buffer, 0, 1).look() is None
