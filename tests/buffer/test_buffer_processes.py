"""Several processes at once, deaths in the middle, full disks, lost servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import needs
import pytest
import sqlalchemy as sa
from buffer_postgres import PostgresServer, Unavailable
from buffer_samples import BACKENDS, group, groups
from chaos import chaos

from trinity_compat.buffer import BufferError, BufferFull, open_buffer
from trinity_compat.common.errors import RunError, UserError


def write(url: str, first: int, count: int) -> int:
    buffer = open_buffer(url)
    return sum(buffer.put_groups([group(number)]) for number in range(first, first + count))


def train_all(url: str, owner: str, tasks: int) -> list[int]:
    """Claim pairs until everything is trained; returns the tasks that this process trained."""
    buffer = open_buffer(url)
    mine = []
    while buffer.depth()["trained"] < tasks:
        claim = buffer.claim_groups(2, owner=owner, step=len(mine) + 1)
        if claim is not None:
            mine += [g.task_no for g in claim.groups]
            buffer.mark_trained(claim, step=len(mine))
    return mine


@pytest.fixture
def pool():
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as workers:
        yield workers


def test_four_processes_open_a_new_buffer_at_once(url, pool):
    assert sum(pool.map(write, [url] * 4, range(0, 40, 10), [10] * 4)) == 40


def test_writers_of_the_same_tasks_store_each_once(url, pool):
    assert sum(pool.map(write, [url] * 4, [0] * 4, [25] * 4)) == 25


def test_four_claimers_train_each_group_once(url, pool, sql):
    tasks = 200
    buffer = open_buffer(url)
    buffer.put_groups(groups(tasks, tokens=16))
    shares = list(pool.map(train_all, [url] * 4, "abcd", [tasks] * 4))
    assert Counter(task for share in shares for task in share) == Counter(range(tasks))
    assert sql("SELECT count(*), count(DISTINCT experience_id) FROM ledger") == [(2 * tasks, 2 * tasks)]
    buffer.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", BACKENDS)
def test_kills_lose_nothing_and_double_nothing(backend):
    """The short form; TRINITY_COMPAT_KILLS=1000 makes it long."""
    kills = int(os.environ.get("TRINITY_COMPAT_KILLS", "16"))
    outcome = chaos(backend, kills=kills, restarts=2 if backend == "postgresql" else 0)
    assert outcome.clean, outcome
    assert outcome.trained > 0
    assert outcome.kills >= kills


# -- full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB, where we may mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_disk_full_is_said_and_what_was_acknowledged_is_kept(small_disk):
    buffer = open_buffer(f"sqlite:///{small_disk}/experiences.db")
    stored = 0
    with pytest.raises(
        BufferFull, match=f"no space left for the buffer {small_disk}/experiences.db"
    ) as caught:
        while True:
            buffer.put_groups(groups(4, first=stored, tokens=1024))
            stored += 4
    assert isinstance(caught.value, RunError)
    assert "free some space" in str(caught.value)
    assert stored > 0
    assert [g.task_no for g in buffer.groups("train")] == list(range(stored))
    assert all(len(g.experiences) == 2 for g in buffer.groups("train"))
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    assert buffer.put_groups(groups(4, first=stored, tokens=1024)) == 4
    buffer.close()


# -- lost and locked databases --------------------------------------------------------------------


@pytest.fixture(scope="module")
def frail_server():
    try:
        running = PostgresServer(fsync=False)
    except Unavailable as reason:
        needs.lacking(str(reason))
    yield running
    running.close()


@pytest.fixture
def own_server(frail_server):
    """A server that a test may stop; it runs when the next test begins."""
    if frail_server.process is None:
        frail_server.start()
    return frail_server


@pytest.mark.postgres
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_a_restart_of_the_server_is_survived(own_server, how):
    buffer = open_buffer(own_server.clean_database(), retry_s=300)
    buffer.put_groups(groups(4))
    claim = buffer.claim_groups(2, owner="t", step=1)
    own_server.restart(how)
    buffer.put_groups(groups(2, first=4))
    own_server.stop(how)
    with ThreadPoolExecutor(1) as beside:
        marked = beside.submit(buffer.mark_trained, claim, step=1)
        time.sleep(1.0)
        own_server.start()
        marked.result()
    assert buffer.depth() == {"ready": 4, "claimed": 0, "trained": 2, "stale": 0, "void": 0}
    buffer.close()


@pytest.mark.postgres
def test_a_server_that_stays_away_ends_in_one_message(own_server):
    buffer = open_buffer(own_server.clean_database(), retry_s=1.0)
    own_server.stop()
    began = time.monotonic()
    with pytest.raises(BufferError, match="is out of reach"):
        buffer.put_groups(groups(1))
    assert time.monotonic() - began < 60
    buffer.close()


@pytest.mark.postgres
def test_a_server_with_no_connection_left_says_what_to_raise(own_server):
    url = own_server.clean_database()
    open_buffer(url).close()
    engine = sa.create_engine(url, pool_size=100)
    taken = []
    with suppress(sa.exc.OperationalError):
        while len(taken) < 100:
            taken.append(engine.connect())
    with pytest.raises(BufferError, match=r"clients|slots") as caught:
        open_buffer(url, retry_s=1.0)
    for connection in taken:
        connection.close()
    engine.dispose()
    assert "raise max_connections" in caught.value.hint


@pytest.mark.postgres
def test_a_database_that_does_not_exist_is_the_users_error(server):
    with pytest.raises(UserError, match='database "nowhere" does not exist'):
        open_buffer(server.url("nowhere"))


def test_a_database_locked_for_too_long_ends_in_one_message(tmp_path):
    url = f"sqlite:///{tmp_path}/experiences.db"
    buffer = open_buffer(url, retry_s=0.3)
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(BufferError, match="locked"):
            buffer.put_groups(groups(1))
        assert buffer.depth()["ready"] == 0  # reading goes on
        conn.rollback()
    assert buffer.put_groups(groups(1)) == 1
    engine.dispose()
    buffer.close()


def test_polling_an_empty_queue_waits_for_no_writer(tmp_path):
    url = f"sqlite:///{tmp_path}/experiences.db"
    buffer = open_buffer(url, retry_s=240)
    buffer.put_groups(groups(1))
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert buffer.claim_groups(2, owner="t", step=1, min_version=0) is None
        assert time.monotonic() - began < 120
        conn.rollback()
    engine.dispose()
    buffer.close()


def test_the_long_form_is_a_command_of_its_own():
    shown = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("chaos.py")), "--help"], capture_output=True, text=True
    )
    assert "--kills" in shown.stdout
