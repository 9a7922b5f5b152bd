"""A damaged SQLite file: each command and process says so, and what to do."""

import random
import shutil
import sqlite3

import pytest
from buffer_samples import groups
from click.testing import CliRunner

from trinity_compat.buffer import open_buffer
from trinity_compat.cli.buffer import command
from trinity_compat.common.errors import UserError


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A database of a run, in one file."""
    file = tmp_path_factory.mktemp("stored") / "experiences.db"
    with_closed(file, lambda buffer: buffer.put_groups(groups(64, tokens=200)))
    conn = sqlite3.connect(file)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.execute("PRAGMA journal_mode=DELETE")
    conn.close()
    return file


def with_closed(file, work):
    buffer = open_buffer(f"sqlite:///{file}", retry_s=1.0)
    try:
        work(buffer)
    finally:
        buffer.close()


def use(file):
    """Open and use the database as a start and the sides of a run do."""

    def work(buffer):
        buffer.depth()
        buffer.forget_participants()
        buffer.reconcile(step=0)
        buffer.put_groups(groups(40, first=1000, tokens=100))
        claimed = buffer.claim_groups(90, owner="t", step=1)
        buffer.mark_trained(claimed, step=1)

    with_closed(file, work)


def header(data):
    return b"\xde\xad" * 50 + data[100:]


def magic_alone(data):
    return data[:16] + b"\xff" * 84 + data[100:]


def page_one(data):
    return data[:100] + bytes(3000) + data[3100:]


def most_pages(data):
    return data[:8192] + b"\x55" * (len(data) - 8192)


def root_pages(data):
    page = 8192
    return data[:page] + bytes(random.Random(1).randbytes(30 * page)) + data[31 * page :]


def schema_text(data):
    return data.replace(b"CREATE TABLE", b"CREATE \x99ABLE")


def first(size):
    return lambda data: data[:size]


CUTS = [first(100), first(5000), first(8192), first(100_000), lambda data: b"x" * 20_000]
DAMAGES = [header, magic_alone, page_one, most_pages, root_pages, schema_text, *CUTS]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_says_that_its_database_is_damaged(stored, tmp_path, damage):
    file = tmp_path / "experiences.db"
    file.write_bytes(damage(stored.read_bytes()))
    with pytest.raises(UserError) as told:
        use(file)
    assert str(file) in told.value.message and "damaged" in told.value.message
    assert "move the file away with its -wal and -shm" in told.value.hint


def test_each_table_that_is_missing_is_damage(stored, tmp_path):
    found = sqlite3.connect(stored).execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in found:
        if table.startswith("sqlite_") or table == "schema_migrations":
            continue
        file = tmp_path / f"{table}.db"
        shutil.copy(stored, file)
        conn = sqlite3.connect(file)
        conn.executescript(f"PRAGMA foreign_keys=OFF; DROP TABLE {table}")
        conn.close()
        try:
            use(file)
        except UserError as error:
            assert "is damaged, or was not written by trinity-compat" in error.message


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("words", [("stats",), ("show",), ("export",), ("prune", "--keep-steps", "0")])
def test_the_commands_on_it_end_with_2(stored, tmp_path, damage, words):
    file = tmp_path / "experiences.db"
    before = damage(stored.read_bytes())
    file.write_bytes(before)
    result = CliRunner().invoke(command, [words[0], str(file), *words[1:]])
    assert result.exception is None or isinstance(result.exception, UserError | SystemExit), result.exception
