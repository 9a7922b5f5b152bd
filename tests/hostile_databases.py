"""Job databases as an attacker makes them: each function spoils the file of a finished job."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"


def _changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in ("PRAGMA legacy_alter_table=ON", *statements):
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _columns(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _forged(path: Path, statement: str) -> None:
    _changed(path, "PRAGMA writable_schema=ON", statement)


def endless_view(path: Path, table: str = "metrics") -> None:
    """A view in place of a table, which never ends."""
    columns = ", ".join(f"x AS {name}" for name in _columns(path, table))
    _changed(path, f"DROP TABLE {table}", f"CREATE VIEW {table} AS {ENDLESS} SELECT {columns} FROM n")


def other_ledger(path: Path) -> None:
    """The one view that a job has, with another query."""
    _changed(path, "DROP VIEW ledger")
    endless_view(path, "ledger_entries")
    _changed(path, f"CREATE VIEW ledger AS {ENDLESS} SELECT x AS trainer_step, x AS use_no FROM n")


def forged_view(path: Path) -> None:
    """A view whose entry in the schema has another name."""
    _changed(path, "DROP TABLE participants")
    view = f"CREATE VIEW participants AS {ENDLESS} SELECT x AS role, x AS name FROM n"
    _forged(path, f"INSERT INTO sqlite_master VALUES ('view', 'harmless', 'harmless', 0, '{view}')")


def doubled_views(path: Path) -> None:
    """Views upon views: to know the columns of the last, 2^60 are expanded."""
    views = [f"CREATE VIEW v{n} AS SELECT a.* FROM v{n - 1} a, v{n - 1} b" for n in range(1, 60)]
    _changed(path, "CREATE VIEW v0 AS SELECT 1 AS x", *views)


def virtual_table(path: Path) -> None:
    """A virtual table in place of a table."""
    columns = ", ".join(_columns(path, "participants"))
    _changed(path, "DROP TABLE participants", f"CREATE VIRTUAL TABLE participants USING fts5({columns})")


def computed_column(path: Path) -> None:
    """A column that is a text of a gigabyte in each row, computed when it is read."""
    kept = [name for name in _columns(path, "metrics") if name != "metrics"]
    column = "metrics TEXT AS (replace(hex(zeroblob(400000000)), '00', '[]'))"
    copied = ", ".join(kept)
    _changed(
        path,
        f"CREATE TABLE new ({copied}, {column})",
        f"INSERT INTO new ({copied}) SELECT {copied} FROM metrics",
        "DROP TABLE metrics",
        "ALTER TABLE new RENAME TO metrics",
    )


def lacking_column(path: Path) -> None:
    """A table that lacks a column."""
    _changed(path, "ALTER TABLE participants RENAME COLUMN detail TO details")


def large_text(path: Path) -> None:
    """Metrics and texts of 300 MB."""
    text = "printf('%.*c', 300000000, '[')"
    _changed(path, f"UPDATE metrics SET metrics = {text} WHERE step = (SELECT max(step) FROM metrics)")
    _changed(path, f"UPDATE task_groups SET task = {text} WHERE id = 1")


def large_blob(path: Path) -> None:
    """Token ids of 150 MB, of the first answer and the last."""
    ends = "id IN (1, (SELECT max(id) FROM experiences))"
    _changed(path, f"UPDATE experiences SET response_ids = zeroblob(150000000) WHERE {ends}")


def other_types(path: Path) -> None:
    """Texts where a run writes numbers, and numbers where it writes JSON."""
    _changed(
        path,
        "UPDATE metrics SET step = 'x' || step, metrics = 7",
        "UPDATE experiences SET reward = 'much', num_turns = x'00', response_mask = 3, metrics = '[]'",
        "UPDATE task_groups SET explorer_step = '', task = '[[', size = 'x'",
        "UPDATE participants SET beat_at = '\x1b[31m', detail = '{'",
        "UPDATE counters SET value = 'x'",
    )


def no_rows(path: Path) -> None:
    """None of the rows that each job has."""
    tables = ("counters", "histories", "participants", "metrics")
    _changed(path, "PRAGMA foreign_keys=OFF", *(f"DELETE FROM {table}" for table in tables))


def many_tables(path: Path) -> None:
    """100,000 tables."""
    entry = "SELECT 'table', 't' || x, 't' || x, 4, 'CREATE TABLE t' || x || ' (a, b)' FROM n LIMIT 100000"
    _forged(path, f"{ENDLESS} INSERT INTO sqlite_master {entry}")


def damaged_pages(path: Path) -> None:
    """Each page but the first is noise."""
    data = bytearray(path.read_bytes())
    size = _page_size(data)
    data[size:] = bytes((7 * place + 3) % 256 for place in range(len(data) - size))
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    """The first two pages of the file."""
    data = path.read_bytes()
    path.write_bytes(data[: 2 * _page_size(data)])


def no_database(path: Path) -> None:
    """A header, then noise."""
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)


def pages_in_circles(path: Path) -> None:
    """Each table and index leads to one of its leaves by a thousand to the sixth ways."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")]
    data = bytearray(path.read_bytes())
    size = _page_size(data)
    for root in roots:
        leaf = bytes(data[(root - 1) * size : root * size])
        while leaf[0] in (_INDEX, _TABLE):
            child = struct.unpack_from(">I", leaf, 8)[0]  # the last one
            leaf = bytes(data[(child - 1) * size : child * size])
        count = struct.unpack_from(">H", leaf, 3)[0]
        if count == 0:
            continue
        kind, entry = _TABLE, b"\1"  # a row's number
        if leaf[0] != _ROWS:
            last = struct.unpack_from(">H", leaf, 8 + 2 * (count - 1))[0]
            kind, entry = _INDEX, leaf[last : last + 1 + leaf[last]]  # its size in one byte, then the record
        data += leaf
        for _ in range(5):
            data += _interior(kind, entry, len(data) // size, size)
        data[(root - 1) * size : root * size] = _interior(kind, entry, len(data) // size, size)
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)


_INDEX, _TABLE, _ROWS = 2, 5, 13  # pages with children, of an index and of a table; a table's leaf


def _interior(kind: int, entry: bytes, child: int, size: int) -> bytes:
    """A page whose cells all have one child."""
    cell = struct.pack(">I", child) + entry
    count = (size - 12) // (len(cell) + 2)
    start = size - count * len(cell)
    pointers = b"".join(struct.pack(">H", start + at * len(cell)) for at in range(count))
    head = struct.pack(">BHHHBI", kind, 0, count, start, 0, child) + pointers
    return head + bytes(start - len(head)) + cell * count


def _page_size(data: bytes | bytearray) -> int:
    return int.from_bytes(data[16:18], "big")


SPOILED: list[Callable[[Path], None]] = [
    endless_view, other_ledger, forged_view, virtual_table, computed_column, lacking_column, large_text,
    large_blob, other_types, no_rows, many_tables, damaged_pages, cut_short, no_database, pages_in_circles,
]  # fmt: skip
