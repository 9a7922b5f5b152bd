"""What scripts, benchmarks and tests import of the package is there; mypy looks at the package alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("scripts", "benchmarks", "tests", "examples")
    for path in (ROOT / folder).rglob("*.py")
]


def file_of(module):
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def names_of(path):
    """Names that a module has at its top level, in branches and ``try`` too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            names |= set(ast.literal_eval(node.value))  # a module's __getattr__ may make some of them
    return names


def missing(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.startswith("trinity_compat")]
            yield from (module for module in modules if file_of(module) is None)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trinity_compat"):
            source = file_of(node.module)
            known = names_of(source) if source else set()
            for alias in node.names:
                if alias.name not in known and file_of(f"{node.module}.{alias.name}") is None:
                    yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_of_the_package_is_there(path):
    assert list(missing(path)) == []
