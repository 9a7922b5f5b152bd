"""Names and first lines of the package: one meaning each, and readable at first sight."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trinity_compat"
# A public class name that exists more than once, and why.
TWICE = {"Experience": "trinity_stubs has trinity-rft's own name of it"}
# A docstring that begins so says what it is about and not what it is or does.
RIDDLES = (
    "What",
    "Which",
    "Whether",
    "Where",
    "Who",
    "Whose",
    "Whoever",
    "How",
    "When",
    "It",
    "They",
    "Those",
)


@cache
def trees(folder=PACKAGE):
    return {path.relative_to(folder): ast.parse(path.read_text()) for path in folder.rglob("*.py")}


def test_a_public_class_name_exists_once():
    places = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == TWICE.keys(), twice


@pytest.mark.parametrize("folder", ["trinity_compat", "scripts", "benchmarks"])
def test_a_docstring_begins_with_the_thing_or_a_verb(folder):
    found = []
    for path, tree in trees(ROOT / folder).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or ".").splitlines()[0]
                if first.split()[0] in RIDDLES:
                    found.append(f"{path}:{getattr(node, 'lineno', 1)} {first[:60]}")
    assert found == []


def imported_as(path):
    """The name under which pytest imports a file: its path from the outermost folder with an __init__.py."""
    folder = path.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return path.relative_to(folder).with_suffix("")


def test_each_file_of_tests_has_a_name_of_its_own_to_python():
    """Two files that Python imports under one name end the collection of the whole suite."""
    places = defaultdict(list)
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name != "conftest.py":
            places[imported_as(path)].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
