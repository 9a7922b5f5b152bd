"""Values of a job's state are read and written by cells alone, each of which has a key of its own."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "trinity_compat"
CELLS = "job/state_cell.py"
STORE = "buffer/store.py"  # Buffer passes both on into a transaction
READS = {"get_state", "set_state"}


def calls():
    """(file, called name, node) of each call in the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                yield path.relative_to(PACKAGE).as_posix(), name, node


def test_only_cells_read_and_write_the_state():
    assert {file for file, name, _ in calls() if name in READS} == {CELLS, STORE}


def test_a_key_is_declared_once():
    keys = [ast.unparse(node.args[0]) for _, name, node in calls() if name == "StateCell"]
    assert len(keys) > 15
    assert sorted(keys) == sorted(set(keys))
