"""A train batch of veRL's (``DataProto``) as bytes and back, no pickles: a zip file of arrays and JSON.

Kept: tensors [N, …] with their types, columns of numbers, booleans and texts as arrays, columns of objects
and ``meta_info`` as JSON that keeps their types (``typed_json``). What that doesn't know is left out.
Batches stay as long as the run does, so an array lies there small (``packed_arrays``), and what two others
say together (veRL's ``input_ids``) not at all.
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

from trinity_compat.buffer import packed_arrays, typed_json
from trinity_compat.common.errors import RunError

_HALF = "bfloat16"  # numpy has none: its bits are kept as int16
_PIXELS = "multi_modal_inputs"
_TURNED = "turned"  # of arrays: how packed_arrays writes them; before, as numpy does
_WHOLE, _PARTS = "input_ids", ("prompts", "responses")
_JOINED = "joined"  # whether _WHOLE is to be made of _PARTS
_MOST = 1100  # times its size a deflated file can have, and somewhat more


class Damaged(RunError):
    """The bytes are no batch."""


def encode(batch: DataProto) -> tuple[bytes, list[str]]:
    """The bytes, and the names of what was left out of them."""
    out, left = io.BytesIO(), []
    halves = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        tensors = {} if batch.batch is None else dict(batch.batch.items())
        if joined := _is_joined(tensors):
            del tensors[_WHOLE]
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
        about = {"rows": len(batch), "meta": kept, _HALF: halves, _TURNED: True, _JOINED: joined}
        file.writestr("about", json.dumps(about))
    return out.getvalue(), left


def decode(data: bytes) -> DataProto:
    """Back from ``encode``.

    Raises Damaged for other bytes, whatever they are: nothing of them is run, and they are given no more
    memory than ``_MOST`` times their own size.
    """
    try:
        return _decoded(data)
    except Exception as error:  # what zipfile, numpy, json and veRL raise for it has no end
        raise Damaged(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error


def _decoded(data: bytes) -> DataProto:
    parts: dict[str, dict[str, Any]] = {"tensors": {}, "columns": {}, "objects": {}}
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        _check(file, len(data))
        about = json.loads(file.read("about"))
        read = packed_arrays.unpack if about.get(_TURNED) else packed_arrays.unpack_plain
        for entry in file.namelist():
            kind, _, name = entry.partition("/")
            if kind in ("tensors", "columns"):
                parts[kind][name] = read(file.read(entry))
            elif kind == "objects":
                parts[kind][name] = _objects(typed_json.loads(file.read(entry).decode()))
    tensors = {name: _tensor(array, name in about[_HALF]) for name, array in parts["tensors"].items()}
    if about.get(_JOINED):
        tensors[_WHOLE] = torch.cat([tensors[part] for part in _PARTS], dim=1)
    meta = {name: typed_json.loads(text) for name, text in about["meta"].items()}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={**parts["columns"], **parts["objects"]}, meta_info=meta
    )


def _check(file: zipfile.ZipFile, size: int) -> None:
    """Raises ValueError for what ``encode`` never writes: other methods pack without a bound, and parts that
    lie on one another say the same bytes many times."""
    entries = file.infolist()
    odd = next((each for each in entries if each.compress_type != zipfile.ZIP_DEFLATED), None)
    if odd is not None:
        raise ValueError(f"{odd.filename} is packed by method {odd.compress_type}")
    if (whole := sum(each.file_size for each in entries)) > _MOST * size:
        raise ValueError(f"{size} bytes that claim to be {whole}")


def _is_joined(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether ``_WHOLE`` says nothing that ``_PARTS`` don't."""
    if not all(name in tensors and tensors[name].dim() == 2 for name in (_WHOLE, *_PARTS)):
        return False
    whole, parts = tensors[_WHOLE], torch.cat([tensors[part] for part in _PARTS], dim=1)
    return whole.dtype == parts.dtype and torch.equal(whole, parts)


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    plain = tensor.detach().cpu().contiguous()
    array: npt.NDArray[Any] = (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def _tensor(array: npt.NDArray[Any], half: bool) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if half else tensor


def _write(file: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    with file.open(name, "w", force_zip64=True) as entry:
        for part in packed_arrays.pack(array):
            entry.write(part)


def _text(name: str, value: object) -> str | None:
    """JSON; None for what is not on its list of types, and for images' pixels, which take too much room."""
    pixels = name == _PIXELS and isinstance(value, list) and any(value)
    try:
        return None if pixels else typed_json.dumps(value)
    except TypeError:
        return None


def _objects(values: list[Any]) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object, len(values))
