"""A train batch of veRL's (``DataProto``) as bytes and back, no pickles: a zip file of numpy arrays and JSON.

Kept: tensors [N, …] with their types, columns of numbers, booleans and texts as arrays, columns of objects as
JSON (their tuples and arrays come back as lists), ``meta_info`` as JSON. What JSON can't hold is left out.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from verl import DataProto

from trinity_compat.buffer import codec

_HALF = "bfloat16"  # numpy has none: its bits are kept as int16
_PIXELS = "multi_modal_inputs"


def encode(batch: DataProto) -> tuple[bytes, list[str]]:
    """The bytes, and the names of what was left out of them."""
    out, left = io.BytesIO(), []
    halves = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        tensors = {} if batch.batch is None else dict(batch.batch.items())
        for name, tensor in tensors.items():
            if tensor.is_nested:
                left.append(name)
                continue
            halves += [name] if tensor.dtype == torch.bfloat16 else []
            _write(file, f"tensors/{name}", _array(tensor))
        for name, column in batch.non_tensor_batch.items():
            if column.dtype != object:
                _write(file, f"columns/{name}", column)
            elif (text := _text(name, column.tolist())) is not None:
                file.writestr(f"objects/{name}", text)
            else:
                left.append(name)
        meta = {name: _text(name, value) for name, value in batch.meta_info.items()}
        left += [name for name, text in meta.items() if text is None]
        kept = {name: text for name, text in meta.items() if text is not None}
        file.writestr("about", json.dumps({"rows": len(batch), "meta": kept, _HALF: halves}))
    return out.getvalue(), left


def decode(data: bytes) -> DataProto:
    """Back from ``encode``."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        about = json.loads(file.read("about"))
        parts: dict[str, dict[str, Any]] = {"tensors": {}, "columns": {}, "objects": {}}
        for entry in file.namelist():
            kind, _, name = entry.partition("/")
            if kind in ("tensors", "columns"):
                parts[kind][name] = np.lib.format.read_array(io.BytesIO(file.read(entry)), allow_pickle=False)
            elif kind == "objects":
                parts[kind][name] = _objects(codec.from_json(file.read(entry).decode()))
    tensors = {name: _tensor(array, name in about[_HALF]) for name, array in parts["tensors"].items()}
    meta = {name: codec.from_json(text) for name, text in about["meta"].items()}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={**parts["columns"], **parts["objects"]}, meta_info=meta
    )


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    plain = tensor.detach().cpu().contiguous()
    array: npt.NDArray[Any] = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def _tensor(array: npt.NDArray[Any], half: bool) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if half else tensor


def _write(file: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    with file.open(name, "w", force_zip64=True) as entry:
        np.lib.format.write_array(entry, array, allow_pickle=False)


def _text(name: str, value: object) -> str | None:
    """JSON; None for what JSON can't hold, and for images' pixels, which it could at ten times their size."""
    pixels = name == _PIXELS and isinstance(value, list) and any(value)
    try:
        return None if pixels else codec.to_json(_plain(value))
    except TypeError:
        return None


def _plain(value: object) -> object:
    """Tensors inside are lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _objects(values: list[Any]) -> npt.NDArray[np.object_]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
