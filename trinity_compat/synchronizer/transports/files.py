"""A folder per weight version: safetensors files, of which each rank of the trainer may write some.

    v00000003/part-000000.safetensors …   64 MiB each, or one larger tensor (``parts``)
    v00000003/index.json                 names, sizes and digests of the parts
    spare/                               parts that are no longer needed, to be overwritten

It is written under another name (``.begun``) and renamed. The database is ``store``'s part. The directory is
shared memory on one node, or any file system that all nodes see.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import torch
import xxhash

from trinity_compat.common.crash_points import point
from trinity_compat.common.errors import RunError
from trinity_compat.synchronizer.transports.safetensors_io import (
    PART_BYTES,
    Identity,
    MappedPart,
    Named,
    PartWriter,
    WeightPart,
    mapped_from,
    split,
)

THREADS = min(4, os.cpu_count() or 1)  # parts written, or hashed, at a time
_NAME = re.compile(r"v(\d+)(\.safetensors)?")  # with the suffix: one file, as earlier releases wrote
_INDEX, _SPARE, _BEGUN, _GONE = "index.json", "spare", ".begun", ".gone"


class WeightsDamaged(RuntimeError):
    """A version's file is missing or differs from what was published."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """Folder ``path`` of a version; ``digest``: xxh3_128 of its index, 32 hex digits; ``nbytes``: total."""

    path: str
    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class WriterShare:
    """The ``parts`` that one of several writers has written, of ``count`` in all."""

    count: int
    parts: tuple[WeightPart, ...]


def version_path(directory: str | Path, version: int) -> Path:
    """Return the folder of ``version``."""
    return Path(directory) / f"v{version:08d}"


def write_file(
    directory: str | Path,
    version: int,
    tensors: Iterable[Named],
    *,
    recycle: bool = False,
    by: PartWriter | None = None,
) -> WeightFile:
    """Write all ``tensors`` (any shape; floats as they are) as ``version``, as its only writer.

    A crash leaves the old version or none, never a part of one. Raises OSError for a full disk, RunError for
    a folder in shared memory that others may write into.
    """
    try:
        share = write_share(directory, version, tensors, recycle=recycle, by=by)
        return assemble(directory, version, [share], recycle=recycle)
    finally:
        shutil.rmtree(_begun(directory, version), ignore_errors=True)


def write_share(
    directory: str | Path,
    version: int,
    tensors: Iterable[Named],
    *,
    writer: int = 0,
    writers: int = 1,
    recycle: bool = False,
    by: PartWriter | None = None,
) -> WriterShare:
    """Write every ``writers``-th part of ``version``, from number ``writer`` on.

    All writers get the same ``tensors``, and ``assemble`` makes a version of what they return. A tensor must
    not change while later ones are drawn. ``recycle``: overwrite the spare parts; only where all readers are
    on this node. ``by`` keeps them mapped from one version to the next. Raises as ``write_file``.
    """
    by = by or PartWriter()
    make_private(Path(directory))
    folder, spare = _begun(directory, version), Path(directory) / _SPARE
    folder.mkdir(exist_ok=True)
    count, parts, waiting = 0, list[WeightPart](), deque[Future[WeightPart]]()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
        for number, named in enumerate(split(tensors, PART_BYTES)):
            count += 1
            if number % writers != writer:
                continue
            name = f"part-{number:06d}.safetensors"
            old = spare / name if recycle else None
            waiting.append(pool.submit(by.write, folder / name, named, old))
            if len(waiting) > THREADS:  # each holds its tensors in memory
                parts.append(waiting.popleft().result())
        parts += [written.result() for written in waiting]
    by.forget()
    return WriterShare(count, tuple(parts))


def assemble(
    directory: str | Path, version: int, shares: Sequence[WriterShare], *, recycle: bool = False
) -> WeightFile:
    """Make ``version`` of its writers' shares. Raises RunError when parts are missing."""
    parts = sorted((part for share in shares for part in share.parts), key=lambda part: part.name)
    counts = {share.count for share in shares}
    if counts != {len(parts)}:
        all_counts = ", ".join(map(str, sorted(counts)))
        raise RunError(
            f"the training processes wrote {len(parts)} parts of version {version}, and counted {all_counts}",
            hint="their models differ; please report model and strategy",
        )
    folder, path = _begun(directory, version), version_path(directory, version)
    index = json.dumps({"recycle": recycle, "parts": [asdict(part) for part in parts]}).encode()
    (folder / _INDEX).write_bytes(index)
    point("inside weights")
    _discard(path)  # an earlier run's, of the same step
    folder.replace(path)
    point("after weights")
    nbytes = len(index) + sum(part.nbytes for part in parts)
    return WeightFile(str(path), xxhash.xxh3_128(index).hexdigest(), nbytes)


def _begun(directory: str | Path, version: int) -> Path:
    return version_path(directory, version).with_suffix(_BEGUN)


def make_private(folder: Path) -> None:
    """Create ``folder`` for this user alone.

    Where all users may write, as in /dev/shm, its name can be guessed: raises RunError for a folder there
    that another user has created, or may write into.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not folder.parent.stat().st_mode & stat.S_IWOTH:
        return
    status = folder.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RunError(
            f"{folder} belongs to another user, or others may write there: no weights are written to it",
            hint="remove it, or write synchronizer.sync_method=checkpoint",
        )
    folder.chmod(0o700)


class _Part(TypedDict):
    name: str
    nbytes: int
    digest: str


class _Index(TypedDict):
    recycle: bool
    parts: list[_Part]


class Reader:
    """Reads versions, and keeps recycled files mapped between them. Not thread-safe."""

    def __init__(self) -> None:
        self._mapped: dict[Identity, MappedPart] = {}

    @contextlib.contextmanager
    def opened(self, file: WeightFile) -> Iterator[Iterator[list[Named]]]:
        """Yield the tensors of ``file``, part by part, after all of it was checked.

        They are mapped: copy them for use after the context. Raises WeightsDamaged.
        """
        try:
            text = (Path(file.path) / _INDEX).read_bytes()
        except OSError as error:
            raise WeightsDamaged(f"weights {file.path} can't be read: {error.strerror}") from error
        if (digest := xxhash.xxh3_128(text).hexdigest()) != file.digest:
            raise WeightsDamaged(f"weights {file.path} are not what was published (index {digest})")
        index: _Index = json.loads(text)
        with contextlib.ExitStack() as locked:
            held, wrong = self._held(file, index, locked)
            if wrong:  # a mapping may have been changed by the loader of the former content
                self._mapped.clear()
                held, wrong = self._held(file, index, locked)
            if wrong:
                raise WeightsDamaged(f"weights {file.path}/{wrong[0]} are not what was published")
            try:
                yield (part.tensors() for part in held)
            finally:  # a mapped file keeps its space after it was deleted
                self._mapped = {i: p for i, p in self._mapped.items() if index["recycle"] and not p.gone()}

    def _held(
        self, file: WeightFile, index: _Index, locks: contextlib.ExitStack
    ) -> tuple[list[MappedPart], list[str]]:
        """Lock the parts of ``file``; return them, and the names of those with another digest."""
        try:
            held = [self._locked(Path(file.path) / part["name"], locks) for part in index["parts"]]
            with ThreadPoolExecutor(THREADS) as pool:
                digests = list(pool.map(MappedPart.digest, held))
        except (OSError, ValueError) as error:  # ValueError: an empty file
            why = getattr(error, "strerror", None) or error
            raise WeightsDamaged(f"weights {file.path} can't be read: {why}") from error
        rows = zip(index["parts"], digests, strict=True)
        return held, [part["name"] for part, digest in rows if digest != part["digest"]]

    def _locked(self, path: Path, locks: contextlib.ExitStack) -> MappedPart:
        part = mapped_from(self._mapped, path, MappedPart)
        part.lock(fcntl.LOCK_SH)
        locks.callback(part.unlock)
        return part


def read_file(file: WeightFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and copies of the tensors, after all were checked. Raises WeightsDamaged."""
    with Reader().opened(file) as parts:
        for named in parts:
            for name, tensor in named:
                yield name, tensor.clone()


def versions_in(directory: str | Path) -> dict[int, Path]:
    """Return the versions in ``directory``, in order."""
    matches = ((_NAME.fullmatch(path.name), path) for path in Path(directory).glob("v*"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def prune(directory: str | Path, *, before: int, recycle: bool = False) -> list[int]:
    """Delete versions below ``before``; return them.

    A reader that has one open keeps it. ``recycle``: ``write_share`` will overwrite the last one's parts.
    Unfinished versions of killed writers are deleted too, so call it while none is being written.
    """
    directory = Path(directory)
    gone = {version: path for version, path in versions_in(directory).items() if version < before}
    spare = gone[max(gone)] if gone and recycle else None
    if spare and spare.is_dir():
        _discard(directory / _SPARE)
        spare.rename(directory / _SPARE)
    for path in [*gone.values(), *directory.glob(f"v*{_BEGUN}"), *directory.glob("v*.part")]:
        _discard(path)
    for path in directory.glob(f"*{_GONE}"):
        shutil.rmtree(path, ignore_errors=True)
    return list(gone)


def _discard(path: Path) -> None:
    """Delete it, renaming it first: a version that can be found is complete."""
    if path.is_dir():
        aside = path.with_name(f"{uuid.uuid4().hex}{_GONE}")
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
