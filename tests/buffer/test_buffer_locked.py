"""A database that another program locks: everybody waits for it, and nobody is taken for dead meanwhile."""

import sqlite3
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from trinity_compat.buffer import BufferError, open_buffer
from trinity_compat.buffer.heartbeat_thread import SilenceDetector
from trinity_compat.run.job_dir.heartbeats import Heartbeats
from trinity_compat.trainer.explorer_liveness import ExplorerWatch


@pytest.fixture
def buffer(tmp_path):
    with closing(open_buffer(f"sqlite:///{tmp_path}/b.db", retry_s=0.05)) as made:
        yield made


@contextmanager
def locked(buffer):
    with closing(sqlite3.connect(buffer._db.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def turned_clock(monkeypatch, module):
    """The module's clock, which the test turns."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(f"trinity_compat.{module}.time", clock)
    return now


def test_a_lock_past_the_limit_is_one_message_that_names_the_file(buffer):
    with locked(buffer), pytest.raises(BufferError, match=r"b\.db was locked by another program") as caught:
        buffer.beat("trainer", "t", state="running")
    assert "same command" in caught.value.hint
    buffer.beat("trainer", "t", state="running")


def test_a_lock_is_nobody_s_silence_for_the_supervisor(buffer, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(
        "trinity_compat.run.job_dir.heartbeats.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    heartbeats = Heartbeats(SilenceDetector(clock=lambda: now[0]))

    def passes(seconds):
        for _ in range(seconds):
            now[0] += 1.01
            heartbeats.read(buffer)

    buffer.beat("trainer", "t", state="running")
    (who,) = buffer.participants()
    passes(2)
    with locked(buffer):
        passes(45)
        assert heartbeats.of("trainer", who.pid).silent_s < 5
    passes(2)
    assert heartbeats.of("trainer", who.pid).silent_s < 5
    passes(40)
    assert heartbeats.of("trainer", who.pid).silent_s > 40


def test_a_lock_is_no_explorer_s_death_for_the_trainer(buffer, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(
        "trinity_compat.trainer.explorer_liveness.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    watch = ExplorerWatch(buffer, start_s=3600)
    watch._silence = SilenceDetector(clock=lambda: now[0])

    def verdict():
        now[0] += 1
        return watch.verdict("groups")

    buffer.beat("explorer", "e", state="running")
    assert verdict() is None
    with locked(buffer):
        for _ in range(20):
            with pytest.raises(BufferError, match="was locked"):
                verdict()
    assert [verdict() for _ in range(5)] == [None] * 5
    assert "e was last heard of" in str([verdict() for _ in range(9)][-1])
