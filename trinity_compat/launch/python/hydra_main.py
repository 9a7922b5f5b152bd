"""``@hydra.main(config_path=…, config_name=…)`` of a Python file, read as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_PACKAGE = "pkg://"
_DECORATOR = re.compile(r"^[ \t]*@((?:hydra\.)?main\(.*?\))[ \t]*(?:#.*)?$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class HydraMain:
    """The folder and config that a decorator names (None for one that is not a literal), and its line.

    ``shown`` is the name as it is written.
    """

    folder: str | None
    name: str | None
    shown: str
    line: int


def hydra_mains(text: str) -> Iterator[HydraMain]:
    """The decorators that name a configuration. Each is parsed alone: the rest may be of a newer Python."""
    for found in _DECORATOR.finditer(text):
        try:
            node = ast.parse(found[1], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        words = node.keywords if isinstance(node, ast.Call) else ()
        given = {word.arg: word.value for word in words if word.arg}
        if given.keys() & {"config_path", "config_name"}:
            folder, name = (_literal(given.get(key)) for key in ("config_path", "config_name"))
            shown = name or (_shown(given["config_name"]) if "config_name" in given else "")
            yield HydraMain(
                folder, name and name.removesuffix(".yaml"), shown, text.count("\n", 0, found.start(1)) + 1
            )


def hydra_config(text: str) -> tuple[str, str] | None:
    """Return (config_path, config_name) of the first Hydra main that gives both as literals, or None."""
    mains = hydra_mains(text)
    return next(((main.folder, main.name) for main in mains if main.folder is not None and main.name), None)


def package_folder(spelled: str) -> str:
    """The folder that Hydra's ``pkg://a.b`` names, from where the package is imported; empty for others."""
    return spelled.removeprefix(_PACKAGE).replace(".", "/") if spelled.startswith(_PACKAGE) else ""


def _shown(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        return "…"


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
