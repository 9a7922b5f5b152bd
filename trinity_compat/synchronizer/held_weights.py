"""Digests of the tensors that an engine's worker holds, taken on their device."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import torch

from trinity_compat.synchronizer.transports.nccl import checksum
from trinity_compat.synchronizer.transports.safetensors_io import Named

SWITCH = "TRINITY_COMPAT_HELD_DIGESTS"  # 0: no digests after loading
LAYOUT = 16  # hex digits of the layout, before those of the content
_PIECE = 1 << 22  # elements
_MIX = (0x2545F4914F6CDD1D, 0x1B873593CC9E2D51)


def is_on() -> bool:
    """Return whether digests are taken after each load."""
    return os.environ.get(SWITCH) != "0"


class TensorDigest:
    """Digest of tensors, one after the other; ``nbytes``: their size.

    It is 16 hex digits of names, dtypes, shapes and ``place``, and 32 of the content.

    Contents are compared where the first part is equal: ``place`` says which part of a model a worker holds.
    """

    def __init__(self, place: str = "") -> None:
        self._layout, self._content, self.nbytes = hashlib.sha256(place.encode()), hashlib.sha256(), 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add the next tensor."""
        self.nbytes += tensor.nbytes
        self._layout.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        self._content.update(checksum(torch.nn.functional.pad(flat, (0, -len(flat) % 8))).encode())

    def hexdigest(self) -> str:
        """Return the digest of what was added."""
        return self._layout.hexdigest()[:LAYOUT] + self._content.hexdigest()[:32]


def digest(named: Iterable[Named], place: str) -> str:
    """Return the digest of ``named`` at ``place``."""
    made = TensorDigest(place)
    for name, tensor in named:
        made.add(name, tensor)
    return made.hexdigest()


def checksum_in_any_order(tensors: Iterable[torch.Tensor]) -> int:
    """Return a sum over all elements' bits, the same however they are ordered, joined or padded with zeros.

    So what vLLM has fused or stacked can be compared with what arrived.
    """
    total = 0
    for tensor in tensors:
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        for piece in tensor.detach().reshape(-1).view(kinds[tensor.element_size()]).split(_PIECE):
            mixed = piece.to(torch.int64) * _MIX[0]
            total += int(((mixed ^ (mixed >> 29)) * _MIX[1]).sum())
    return total % 2**64
