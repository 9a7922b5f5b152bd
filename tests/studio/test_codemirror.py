"""The bundled editor is the one that its record describes."""

import hashlib
import json

from loaded_scripts import loaded

from trinity_compat.web import ASSETS

VENDOR = ASSETS / "vendor"
RECORD = json.loads((VENDOR / "codemirror.json").read_text())


def test_the_bundle_is_the_recorded_one():
    assert hashlib.sha256((VENDOR / "codemirror.iife.min.js").read_bytes()).hexdigest() == RECORD["sha256"]


def test_the_record_is_that_of_the_pinned_packages(monkeypatch):
    script = loaded("make_codemirror", monkeypatch)
    assert {name: each["version"] for name, each in RECORD["packages"].items()} == script.PACKAGES
    assert RECORD["esbuild"] == script.ESBUILD


def test_each_package_has_its_licence():
    text = (VENDOR / "codemirror.LICENSE").read_text()
    assert {each["licence"] for each in RECORD["packages"].values()} == {"MIT"}
    assert [name for name in RECORD["packages"] if name not in text] == []
    assert "Permission is hereby granted" in text


def test_the_bundle_asks_no_host():
    assert b"https://" not in (VENDOR / "codemirror.iife.min.js").read_bytes()
