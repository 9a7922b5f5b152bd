"""Checksum of 128 bits over weights on any device: sums of their 64-bit words, plain and by place.

Any changed word changes it, and so do two swapped words, unless they differ in their highest bits only. It
detects errors of a network, not intent. Files have another digest (``safetensors_io``), which is faster on a
CPU.
"""

from __future__ import annotations

import torch

_CHUNK = {"cpu": 1 << 16}  # words: a chunk and its product stay in the cache
_CHUNK_ELSEWHERE = 1 << 22


def checksum(data: torch.Tensor) -> str:
    """Compute the 32 digits for uint8 [N], N a multiple of 8, on any device."""
    words = data.view(torch.int64)
    size = _CHUNK.get(data.device.type, _CHUNK_ELSEWHERE)
    odd = torch.arange(1, 2 * min(size, len(words)) + 1, 2, device=data.device)
    plain = weighted = 0
    for start in range(0, len(words), size):
        part = words[start : start + size]
        here = int(part.sum())
        plain += here
        weighted += int((part * odd[: len(part)]).sum()) + 2 * start * here
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"
