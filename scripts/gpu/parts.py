"""Cuts wheels into parts of a limited size, and puts together what has arrived. Standard library only.

parts.py cut WHEELS PARTS     each part a folder part-NN: whole wheels, and slices NAME.whl.slice-K-of-N
parts.py join PARTS WHEELS    every wheel that is complete; prints what still lacks a slice
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

TRAVELS = 64 << 20  # at once, the checkout included
LIMIT = 52 << 20
_SLICE = re.compile(r"(.+\.whl)\.slice-(\d+)-of-(\d+)")
# Of a wheel's files, what nothing opens on one Hopper GPU with Python 3.12: kernels of other GPUs (vLLM takes
# FlashAttention 3 there, 2 elsewhere), headers, Java.
_UNUSED = re.compile(
    r"vllm/(vllm-rs$|third_party/(fmha_sm100|deep_gemm/include)/|third_party/deep_gemm/_C\.cpython-3(?!12)\d+"
    r"|vllm_flash_attn/_vllm_fa2_C\.)|ray/(jars/|dashboard/client/.*\.map$)"
)


def cut(wheels: Path, parts: Path, limit: int = LIMIT) -> list[Path]:
    """Small wheels first, together; then the large ones in slices. Returns the parts' folders."""
    for old in (parts, wheels / "trimmed"):
        shutil.rmtree(old, ignore_errors=True)
    files = sorted(map(_trimmed, wheels.glob("*.whl")), key=lambda path: path.stat().st_size)
    print(f"{sum(path.stat().st_size for path in files) / 2**20:.1f} MiB in {len(files)} wheels")
    made, room = list[Path](), 0
    for path in files:
        for name, data in _slices(path, room, limit):
            if len(data) > room:
                made.append(parts / f"part-{len(made):02d}")
                made[-1].mkdir(parents=True)
                room = limit
            (made[-1] / name).write_bytes(data)
            room -= len(data)
    return made


def _slices(path: Path, room: int, limit: int) -> Iterator[tuple[str, bytes]]:
    """The whole file where it fits a part, else what is left of the current part first."""
    data = path.read_bytes()
    if len(data) <= limit:
        yield path.name, data
        return
    starts = [0, *range(room, len(data), limit)] if room else list(range(0, len(data), limit))
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True)):
        yield f"{path.name}.slice-{number}-of-{len(starts)}", data[start:end]


def _trimmed(path: Path) -> Path:
    """The wheel without what is never opened; beside it, so that the download stays whole."""
    with zipfile.ZipFile(path) as wheel:
        if not any(_UNUSED.match(name) for name in wheel.namelist()):
            return path
        target = path.parent / "trimmed" / path.name
        target.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
            for item in wheel.infolist():
                if not _UNUSED.match(item.filename):
                    out.writestr(item, wheel.read(item))
    return target


def join(parts: Path, wheels: Path) -> list[str]:
    """Put every complete wheel into ``wheels``; returns the names of those that lack a slice."""
    wheels.mkdir(parents=True, exist_ok=True)
    slices: dict[str, dict[int, Path]] = {}
    counts: dict[str, int] = {}
    for path in sorted(parts.glob("part-*/*")):
        if match := _SLICE.fullmatch(path.name):
            slices.setdefault(match[1], {})[int(match[2])] = path
            counts[match[1]] = int(match[3])
        else:
            shutil.copyfile(path, wheels / path.name)
    for name, found in slices.items():
        if len(found) == counts[name]:
            with (wheels / name).open("wb") as out:
                for number in range(counts[name]):
                    out.write(found[number].read_bytes())
    return [
        f"{name} ({len(slices[name])} of {counts[name]})"
        for name in slices
        if len(slices[name]) < counts[name]
    ]


if __name__ == "__main__":
    verb, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if verb == "cut":
        for part in cut(source, target):
            size = sum(path.stat().st_size for path in part.iterdir())
            print(
                f"{part}: {size / 2**20:.1f} MiB, {', '.join(sorted(p.name for p in part.iterdir()))[:100]}"
            )
    else:
        for name in join(source, target):
            print(f"not complete: {name}")
