"""The symbols of veRL and vLLM that we use, against installed sources and against trees that changed."""

import json
import subprocess
import sys
from pathlib import Path

import needs
import pytest

from trinity_compat.common.resources import data_path
from trinity_compat.run.checks import start_check, upstream_symbols
from trinity_compat.run.checks.doctor import _symbols
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.checks.upstream_symbols import SourceTree

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """Return a function that writes a package ``verl`` of some files and reads it as sources."""

    def written(**files):
        for name, text in {"__init__": "", **files}.items():
            path = tmp_path / "verl" / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return SourceTree(tmp_path / "verl")

    return written


@pytest.fixture
def rows(monkeypatch):
    """Return a function that puts a table in place of the shipped one."""

    def put(table):
        monkeypatch.setattr(upstream_symbols, "table", lambda: table)

    return put


def test_the_table_is_what_its_script_makes_of_the_installed_releases():
    needs.made(".vllm-0.24.0", "hashes/vllm-0.24.0.txt")
    needs.made(".verl-0.9.0", "hashes/verl-0.9.0.txt")
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "import json, make_upstream_symbols as made; print(json.dumps(made.rows()))",
        ],
        cwd=ROOT / "scripts" / "generate",
        capture_output=True,
        text=True,
        check=True,
    )
    fresh = json.loads(made.stdout)
    shipped = json.loads(data_path(upstream_symbols.TABLE).read_text())
    assert fresh == shipped, "run scripts/generate/make_upstream_symbols.py, and read the difference"


@pytest.mark.parametrize(
    ("symbol", "signature"),
    [
        ("verl.core.train", "(config, *, steps=, **kw)"),
        ("verl.train", "(config, *, steps=, **kw)"),  # a re-export
        ("verl.core.Trainer", "class (self, config)"),
        ("verl.core.Trainer.fit", "async (self)"),
        ("verl.core.Trainer.save", "(self, path)"),  # of a base in another module
        ("verl.core.LIMIT", "value"),
        ("verl.starred.Base", "class"),
        ("verl.core", "module"),
    ],
)
def test_a_symbol_is_found_where_python_would_find_it(tree, symbol, signature):
    sources = tree(
        __init__="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .core import train\n",
        base="class Base:\n    def save(self, path): ...\n",
        core=(
            "from verl.base import Base\nLIMIT: int = 3\n"
            "def train(config, *, steps: int = 1, **kw): ...\n"
            "class Trainer(Base):\n    def __init__(self, config): ...\n    async def fit(self): ...\n"
        ),
        starred="from verl.base import *\n",
    )
    assert sources.signature(symbol) == signature


@pytest.mark.parametrize("symbol", ["verl.core.gone", "verl.core.Trainer.gone", "verl.gone", "torch.nn"])
def test_what_a_tree_lacks_is_not_found(tree, symbol):
    assert tree(core="class Trainer: ...\n").signature(symbol) is None


def test_modules_that_import_each_other_end(tree):
    sources = tree(one="from verl.two import name\n", two="from verl.one import name\n")
    assert sources.signature("verl.one.name") is None


def test_a_missing_and_a_changed_symbol_are_named_and_members_follow_their_class(tree, rows):
    rows(
        {
            "verl.core.Gone": {"verl 1.0": "class"},
            "verl.core.Gone.fit": {"verl 1.0": "(self)"},
            "verl.core.save": {"verl 1.0": "(path)"},
            "verl.core.load": {"verl 1.0": "(path)"},
        }
    )
    sources = tree(core="def save(path, force): ...\ndef load(path): ...\n")
    assert list(map(str, upstream_symbols.changed_in(sources, "verl", "1.1"))) == [
        "verl.core.Gone is missing in verl 1.1",
        "verl.core.save has force more (verl 1.1 against verl 1.0)",
    ]


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        ("(path)", "(path, force=)", "has force= more"),
        ("class (self, a, b)", "class (self, b, c)", "has c more, a less"),
        ("(a, b)", "(b, a)", "is (b, a) in place of (a, b)"),
        ("(self)", "async (self)", "is async (self) in place of (self)"),
        ("class", "value", "is value in place of class"),
    ],
)
def test_a_changed_signature_is_told_by_its_difference(before, now, change):
    changed = upstream_symbols.ChangedSymbol("verl.save", "verl 1.1", now, {"verl 1.0": before})
    assert str(changed) == f"verl.save {change} (verl 1.1 against verl 1.0)"


def test_a_tested_release_is_compared_with_its_own_signature_and_another_with_any(tree, rows):
    rows({"verl.core.save": {"verl 1.0": "(path)", "verl 2.0": "(path, force)"}})
    sources = tree(core="def save(path, force): ...\n")
    assert [
        len(upstream_symbols.changed_in(sources, "verl", release)) for release in ("1.0", "2.0", "3.0")
    ] == [
        1,
        0,
        0,
    ]


def test_a_symbol_that_a_tested_release_lacks_is_not_missed_there(tree, rows):
    rows(
        {
            "verl.core.new": {"verl 2.0": "()"},
            "verl.core.old": {"verl 1.0": "()"},
        }
    )
    assert upstream_symbols.changed_in(tree(core="def old(): ...\n"), "verl", "1.0") == []


def test_what_one_tested_release_lacks_an_untested_one_may_lack_too(tree, rows):
    rows(
        {
            "verl.core.new": {"verl 1.0": "()"},
            "verl.core.save": {"verl 1.0": "(path)", "verl 2.0": "(path)"},
        }
    )
    assert [each.symbol for each in upstream_symbols.changed_in(tree(core="old = 1\n"), "verl", "3.0")] == [
        "verl.core.save"
    ]


def test_the_doctor_names_each_symbol_and_the_start_those_of_an_untested_release(
    tree, rows, monkeypatch, tmp_path
):
    rows({"verl.core.save": {"verl 1.0": "(path)"}})
    tree(core="")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    monkeypatch.setattr(upstream_symbols, "installed_release", lambda name: "1.1" if name == "verl" else None)
    message = "verl.core.save is missing in verl 1.1"
    (check,) = _symbols("verl")
    assert (check.state, check.found, check.fix) == ("problem", message, "install a tested release: 1.0")
    assert list(map(str, upstream_symbols.changed_in_untested())) == [message]
    assert f"  untested release: {message}" in list(start_check.lines(StartReport(changed=[message])))


def test_the_installed_releases_are_tested_ones_and_unchanged():
    for package in ("verl", "vllm"):
        assert upstream_symbols.installed_release(package) in upstream_symbols.tested_releases(package)
        assert upstream_symbols.changed_symbols(package) == []
    assert upstream_symbols.changed_in_untested() == []
