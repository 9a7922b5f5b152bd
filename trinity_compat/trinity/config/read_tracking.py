"""Records which keys of a configuration a run reads, while it reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trinity_compat.common.nested import joined


class _Watched(dict[str, object]):
    """A section that records the path of each value that is read from it."""

    def __init__(self, section: Mapping[str, object], path: str, read: set[str]) -> None:
        super().__init__({key: _watch(value, joined(path, key), read) for key, value in section.items()})
        self._path, self._read = path, read

    def __getitem__(self, key: str) -> object:
        self._read.add(joined(self._path, key))
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        self._read.add(joined(self._path, key))
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:  # without it, dict(…) and {**…} would copy past __getitem__
        return super().__iter__()

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


def watched(config: Mapping[str, object]) -> tuple[dict[str, object], set[str]]:
    """Return a copy of ``config``, and the set of dotted paths read from it, which grows with each read."""
    read: set[str] = set()
    return _Watched(config, "", read), read


def plain(value: Any) -> Any:
    """Return watched values as plain containers; everything in them counts as read."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def values_of(config: Mapping[str, object]) -> dict[str, object]:
    """Return dotted path → value of everything that holds no further keys; list positions count as parts."""
    return dict(_values(config, ""))


def _values(node: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _values(value, joined(path, key))
    elif isinstance(node, list) and any(isinstance(item, Mapping) for item in node):
        for position, value in enumerate(node):
            yield from _values(value, joined(path, position))
    else:
        yield path, node


def _watch(value: object, path: str, read: set[str]) -> object:
    if isinstance(value, Mapping):
        return _Watched(value, path, read)
    if isinstance(value, list):
        return [_watch(item, joined(path, position), read) for position, item in enumerate(value)]
    return value
