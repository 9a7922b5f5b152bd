"""The programs of scripts/ as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Execute NAME.py below scripts/ again and return it. Until the test ends it imports its neighbours."""
    [file] = SCRIPTS.rglob(f"{name}.py")
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"{name}_tested", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module
