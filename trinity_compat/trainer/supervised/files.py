"""The rows of files: Parquet, JSON, JSON lines; or a dataset by its name.

A folder is read as the ``datasets`` library would: the files whose name has the split in it, all of them for
"train" where none has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RowsSpec

SUFFIXES = (".parquet", ".jsonl", ".json")
Row = Mapping[str, Any]


class FileRows(Protocol):
    """Rows by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Row: ...


def open_rows(spec: RowsSpec, paths: Sequence[str] | None = None) -> FileRows:
    """The rows of ``spec.paths``, or of ``paths``. Raises UserError where there are none."""
    named = list(spec.paths if paths is None else paths)
    rows = (
        _named(spec, named[0])
        if len(named) == 1 and Path(named[0]).suffix not in SUFFIXES and not Path(named[0]).exists()
        else _Tables([_read(each) for each in _files(spec, named)])
    )
    if not len(rows):
        raise UserError(f"{', '.join(named)}: there are no rows")
    return rows


def _files(spec: RowsSpec, paths: Sequence[str]) -> list[Path]:
    found = [
        file for path in map(Path, paths) for file in (_in_folder(spec, path) if path.is_dir() else [path])
    ]
    for file in found:
        if not file.is_file():
            raise UserError(f"{file}: no such file")
    return found


def _in_folder(spec: RowsSpec, folder: Path) -> list[Path]:
    below = folder / spec.subset if spec.subset and (folder / spec.subset).is_dir() else folder
    files = sorted(path for path in below.rglob("*") if path.suffix in SUFFIXES)
    of_split = [path for path in files if re.search(rf"(^|[^a-z]){spec.split}([^a-z]|$)", path.stem)]
    found = of_split or (files if spec.split == "train" else [])
    if not found:
        raise UserError(
            f"{folder} holds no {spec.split} split",
            hint=f"a file ({', '.join(SUFFIXES)}) needs {spec.split} in its name",
        )
    return found


def _read(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        # One object a line, or a list of objects. Only "\n" ends a line: JSON's texts may hold what Python
        # takes for the end of one.
        text = path.read_text(encoding="utf-8")
        lines = (json.loads(line) for line in text.split("\n") if line.strip())
        rows: list[Row] = json.loads(text) if text.lstrip().startswith("[") else list(lines)
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("a row is not an object")
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    except (pa.ArrowException, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}"
        ) from error


class _Tables:
    """Tables one after the other, with rows decoded to Python values on access."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = tables

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def __getitem__(self, number: int) -> Row:
        for table in self._tables:
            if number < table.num_rows:
                row: Row = table.slice(number, 1).to_pylist()[0]
                return row
            number -= table.num_rows
        raise IndexError(number)


def _named(spec: RowsSpec, name: str) -> FileRows:
    """A dataset of the hub, or of its cache here."""
    import datasets

    try:
        found: FileRows = datasets.load_dataset(name, name=spec.subset, split=spec.split)
    except (FileNotFoundError, ValueError, ConnectionError) as error:
        raise UserError(
            f"{name}: neither a file here nor a dataset that can be loaded ({str(error).splitlines()[0]})"
        ) from error
    return found
