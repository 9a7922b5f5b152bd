"""128 bits over weights on any device, where they lie: sums of their 64-bit words, plain and by place.

Any changed word changes it, and so do two swapped words, unless they differ in their highest bits only. It
finds what a network does to weights; it is no defence against intent. Files have a digest of their own
(``parts``), which is faster on a CPU.
"""

from __future__ import annotations

import torch

_CHUNK = {"cpu": 1 << 16}  # words: a chunk and its product stay in the cache
_CHUNK_ELSEWHERE = 1 << 22


def checksum(data: torch.Tensor) -> str:
    """Of uint8 [N], N a multiple of 8, on any device: 32 digits."""
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
