"""What a launch's data files hold beside texts, as far as their first rows tell."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trinity_compat.common.containers import Tree, section_at
from trinity_compat.common.paths import from_home

Kind = Literal["images", "videos", "audios"]
_KEYS: dict[str, Kind] = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}  # of data
_ROWS = 8  # a dataset of texts has such a column empty throughout


def held(verl: Tree, cwd: Path) -> dict[Kind, str]:
    """Kind → where the training files that are here have it, in words. ``cwd``: where the launch was made."""
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
    """Whether the first rows of a column have something in them."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            return False
        batch = next(file.iter_batches(batch_size=_ROWS, columns=[column]), None)
    except (pyarrow.ArrowException, OSError):
        return False  # the check of the data files names what is wrong with it
    return batch is not None and any(batch.column(0).to_pylist())
