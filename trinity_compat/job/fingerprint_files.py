"""Identity of files by content: users' code with the modules beside it, model folders, data files.

Nothing is imported or executed. Reading is bounded: up to ``WHOLE_BYTES`` a file is read whole; of a larger
one its size, ``SAMPLES`` samples and a Parquet file's footer count. Modification time and folder do not
count, so a copy is the same file.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import stat
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

WHOLE_BYTES = 64 << 20
SAMPLES, SAMPLE_BYTES = 32, 64 << 10
TOTAL_BYTES = 1 << 30  # of one part of the fingerprint, beyond which its other files are read in samples
_FOOTER_BYTES = 16 << 20
_SOURCE_BYTES = 4 << 20  # a longer text is not parsed for its imports
_SOURCES = 500  # files of one entry and its imports
_FOLDER_FILES = 2000
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_ABOUT = (".md", ".gitattributes", ".lock")  # files beside a model that nothing loads
# A run imports the installed ones, also where a checkout lies beside the user's code.
_INSTALLED = frozenset(["trinity", "trinity_compat", "verl", "vllm", "torch", "ray", "transformers", "numpy"])

UNREADABLE = "unreadable"
_SAMPLED = "~"  # before the digest of a file that was read in part


def digest(data: bytes) -> str:
    """Return a short digest, for comparison only."""
    return blake2b(data, digest_size=8).hexdigest()


def of_file(path: Path, *, whole: int | None = None) -> str:
    """Return the digest of a file's content, UNREADABLE for what is not a readable regular file.

    ``whole``: a smaller limit than WHOLE_BYTES.
    """
    limit = WHOLE_BYTES if whole is None else min(whole, WHOLE_BYTES)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe would block
            return UNREADABLE
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= max(limit, SAMPLES * SAMPLE_BYTES):
                return digest(file.read())
            made = blake2b(str(size).encode(), digest_size=8)
            for number in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
                made.update(file.read(SAMPLE_BYTES))
            made.update(_footer(file, size))
            return f"{_SAMPLED}{made.hexdigest()}"
    except OSError:
        return UNREADABLE


def size_of(path: Path) -> int:
    """Return the size in bytes, 0 for a file that cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_as_before(path: Path, before: str) -> bool:
    """Return True while ``of_file`` with the same limit gives ``before``."""
    return of_file(path, whole=0 if before.startswith(_SAMPLED) else None) == before


def _footer(file: BinaryIO, size: int) -> bytes:
    """Return a Parquet file's footer: place, size and extremes of each column chunk."""
    file.seek(size - 8)
    end = file.read(8)
    if end[4:] != b"PAR1":
        return b""
    length = min(int.from_bytes(end[:4], "little"), _FOOTER_BYTES, size - 8)
    file.seek(size - 8 - length)
    return file.read(length)


def in_folder(folder: Path, *, weights: bool = True) -> dict[str, Path]:
    """Return the files below ``folder`` by relative name, without hidden files and READMEs."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(names):
            skipped = name.startswith(".") or name.endswith(_ABOUT) or name.upper().startswith("LICENSE")
            if not skipped and (weights or not name.endswith(_WEIGHTS)) and len(found) < _FOLDER_FILES:
                path = Path(place) / name
                found[path.relative_to(folder).as_posix()] = path
    return found


# -- Python ---------------------------------------------------------------------------------------------


def of_code(
    entries: Mapping[str, Path], roots: Sequence[Path], *, within: Path | None = None
) -> dict[str, Path]:
    """Return ``entries`` (name → file) with the modules that they import, transitively.

    Modules beside them or in ``roots``, inside the folder ``within``, found by ``import`` statements; one
    imported by a computed name is not found.
    """
    found = dict(entries)
    waiting = deque((path, path.parent) for path in entries.values())
    known = {path.resolve() for path in entries.values()}
    while waiting and len(found) < _SOURCES:
        path, beside = waiting.popleft()
        for name, module in _imports(path, (beside, *roots)):
            if module.resolve() in known or (within and not module.is_relative_to(within)):
                continue
            known.add(module.resolve())
            found[name if name not in found else str(module)] = module
            waiting.append((module, beside))
    return found


def of_module(name: str, roots: Sequence[Path]) -> dict[str, Path]:
    """Return the files of a module in ``roots``, the packages above it first.

    Empty for an installed module.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or parts[0] in _INSTALLED | sys.stdlib_module_names:
        return {}
    for root in roots:
        if found := _files_of(root, parts):
            return {path.relative_to(root).as_posix(): path for path in found}
    return {}


def of_installed(module: str) -> dict[str, Path]:
    """Return the files of an installed module and of what it imports of its own package, by relative name."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # of a name without a dot nothing is run
    except (ImportError, ValueError):
        return {}
    folder = next(iter((spec and spec.submodule_search_locations) or ()), None)
    if folder is not None:
        root = Path(folder).parent
        return of_code(of_module(module, [root]), [root], within=Path(folder))
    return {Path(spec.origin).name: Path(spec.origin)} if spec and spec.origin else {}


def _files_of(base: Path, parts: Sequence[str]) -> list[Path]:
    found = []
    for part in parts:
        init, module = base / part / "__init__.py", base / f"{part}.py"
        if init.is_file():
            found.append(init)
        elif module.is_file():
            return [*found, module]
        elif not (base / part).is_dir():
            break  # a name in the module before it
        base = base / part
    return found


def _imports(path: Path, roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of the modules that a file imports."""
    try:
        if not path.is_file() or path.stat().st_size > _SOURCE_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # its content counts all the same
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from of_module(alias.name, roots).items()
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else []
            for imported in [names, *([*names, alias.name] for alias in node.names)]:
                if node.level:
                    base = path.parents[min(node.level, len(path.parents)) - 1]
                    for file in _files_of(base, ".".join(imported).split(".") if imported else []):
                        root = next((root for root in roots if file.is_relative_to(root)), file.parent)
                        yield file.relative_to(root).as_posix(), file
                elif imported:
                    yield from of_module(".".join(imported), roots).items()
