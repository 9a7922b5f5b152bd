"""YAML that others may have written: read within limits, with an error at the line that exceeds them.

The loader of each format (OmegaConf's, Trinity's) is one of these two with resolvers of its own; `safe_load`
is for files without. Every error of theirs is a ``yaml.YAMLError``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError, SafeConstructor

from trinity_compat.common.limits import DIGITS, LEVELS, SCRIPT

MOST_NODES = 50_000  # of one text; a whole configuration of veRL's has some two thousand
_MOST_FOLLOWED = 100_000  # once the aliases are followed
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Bounded(Composer, SafeConstructor):
    """Composes by PyYAML's rules, whatever scans the text: libyaml's own composer has no limits."""

    _composed = _level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._composed += 1
        self._level += 1
        if self._composed > MOST_NODES or self._level > LEVELS:
            problem = f"more than {MOST_NODES} values" if self._level <= LEVELS else "nested too deeply"
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]  # of the parser
            raise ComposerError(None, None, problem, mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def compose_document(self) -> yaml.Node | None:
        root = super().compose_document()
        if root is not None:
            _check_aliases(root)
        return root

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value.count(".") > LEVELS:
                problem = f"a key of more than {LEVELS} parts"
                raise ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > DIGITS:
            raise ConstructorError(None, None, f"a number of more than {DIGITS} digits", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, OverflowError) as error:  # !!int x, !!bool x, 2024-99-99
            raise ConstructorError(
                None, None, f"a value that YAML cannot read: {error}", node.start_mark
            ) from None


class BoundedLoader(_Bounded, yaml.SafeLoader):
    """PyYAML's own scanner, which OmegaConf uses too."""

    def __init__(self, text: str | bytes) -> None:
        _check_size(text)
        yaml.SafeLoader.__init__(self, text)


class FastBoundedLoader(_Bounded, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's scanner where it is installed, eight times faster."""

    def __init__(self, text: str | bytes) -> None:
        _check_size(text)
        Composer.__init__(self)
        getattr(yaml, "CSafeLoader", yaml.SafeLoader).__init__(self, text)


def safe_load(text: str | bytes) -> Any:
    """Read one document by ``yaml.safe_load``'s rules. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=FastBoundedLoader)  # noqa: S506 - a safe loader


def _check_size(text: str | bytes) -> None:
    if len(text) > SCRIPT:
        raise yaml.YAMLError(f"larger than {SCRIPT >> 20} MiB")


def _check_aliases(root: yaml.Node) -> None:
    """Raise ComposerError at a node that is too large or too deep with its aliases followed, or holds itself.

    An alias is its anchor's very node, so each one is counted once.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of each node: the nodes and the levels below it
    pending: list[tuple[yaml.Node, bool]] = [(root, False)]
    while pending:
        node, counted_below = pending.pop()
        below = _below(node)
        if counted_below:
            found = [sizes[id(item)] for item in below]
            size, levels = 1 + sum(each[0] for each in found), 1 + max((each[1] for each in found), default=0)
            sizes[id(node)] = size, levels
            if size > _MOST_FOLLOWED or levels > LEVELS:
                what = f"too large once its aliases are followed: more than {_MOST_FOLLOWED} values"
                what = what if size > _MOST_FOLLOWED else "nested too deeply once its aliases are followed"
                raise ComposerError(None, None, what, node.start_mark)
        elif id(node) not in sizes:
            sizes[id(node)] = _MOST_FOLLOWED + 1, 0  # what meets itself below is endless
            pending.append((node, True))
            pending += [(item, False) for item in reversed(below)]


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node.value, str):
        return []
    return [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
