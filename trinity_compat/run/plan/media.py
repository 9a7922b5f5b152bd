"""Images, videos and audio in a launch's data files, by their first rows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trinity_compat.common.nested import Tree, section_at
from trinity_compat.common.paths import from_home

Kind = Literal["images", "videos", "audios"]
_KEYS: dict[str, Kind] = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}  # of data
_ROWS = 8  # a dataset of texts has such a column empty throughout


def held(verl: Tree, cwd: Path) -> dict[Kind, str]:
    """Kind → the local training file and column that has it. ``cwd``: the launch's folder."""
    data = section_at(verl, "data")
    files = data.get("train_files")
    found: dict[Kind, str] = {}
    for text in files if isinstance(files, list | tuple) else [files]:
        path = cwd / from_home(str(text))
        for key, kind in _KEYS.items():
            column = str(data.get(key) or kind)
            if path.suffix == ".parquet" and path.is_file() and _holds(path, column):
                found.setdefault(kind, f"{path} has {column} (data.{key})")
    return found


def _holds(path: Path, column: str) -> bool:
    """Return whether the first rows of a column have values."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            return False
        batch = next(file.iter_batches(batch_size=_ROWS, columns=[column]), None)
    except (pyarrow.ArrowException, OSError):
        return False  # the check of the data files reports the problem
    return batch is not None and any(batch.column(0).to_pylist())
