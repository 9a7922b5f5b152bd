"""The page's files: one wheel, what is pinned, and their size."""

import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import make_web
import pytest
from translate_texts import ROOT


@pytest.fixture(scope="module")
def files(site):
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in make_web.files_of(site)}


def parts_of(wheel):
    with zipfile.ZipFile(io.BytesIO(wheel)) as parts:
        return {name: parts.read(name) for name in parts.namelist()}


def test_the_wheel_is_the_one_that_pip_builds_but_for_the_editor_s_script(files, tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    own, built = parts_of(files[f"wheels/{wheel.name}"]), parts_of(wheel.read_bytes())
    left_out = {name for name in built if name.endswith(make_web.EDITOR)}
    assert len(left_out) == 2 and own == {name: built[name] for name in built.keys() - left_out}


def test_all_files_together_are_within_the_limit(files):
    assert sum(map(len, files.values())) <= make_web.LARGEST
    assert gzip.decompress(files["pyodide/pyodide.asm.wasm.bin"])[:4] == b"\0asm"


def test_the_service_worker_keeps_every_file(files):
    text = files["sw.js"].decode()
    (names,) = re.findall(r"^const FILES = (.*);$", text, flags=re.MULTILINE)
    assert set(json.loads(names)) == files.keys() - {"sw.js"}


def test_each_script_and_style_of_the_page_is_there(files):
    page = files["index.html"].decode()
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(named) > 10 and not [name for name in named if name != "../" and name not in files]


def test_the_policy_allows_this_origin_alone(files):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', files["index.html"].decode())
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'" and allowed["connect-src"] == "'self'"
    assert allowed["script-src"] == "'self' 'wasm-unsafe-eval'" and allowed["style-src"] == "'self'"
    assert not re.search(r"https?:|unsafe-inline|'unsafe-eval'|\*", policy)


def test_the_example_that_opens_the_page_has_the_command_line_s_answers(files, tmp_path):
    first = json.loads(files["first.json"])
    (tmp_path / first["name"]).write_text(first["text"])
    assert first["text"].encode() == files[f"examples/{first['name']}"]
    command = [Path(sys.executable).with_name("trinity-compat"), "translate", first["name"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert first["answers"]["translate"]["text"] == done.stdout
    assert all(each["code"] == 0 for each in first["answers"].values())


def test_our_scripts_make_no_html_of_text():
    for name in (*make_web.OWN, "sw.js"):
        text = (make_web.SOURCES / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|https?://", text
        ), name


def test_python_is_pinned_with_the_digest_that_npm_compares():
    folder = ROOT / "requirements" / "pyodide"
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert all(each["integrity"].startswith("sha512-") for name, each in locked.items() if name)


def test_there_are_ten_examples_and_each_has_its_script():
    listed = json.loads((make_web.SOURCES / "examples.json").read_text())
    names = {path.name for path in (make_web.SOURCES / "examples").iterdir()}
    assert len(listed) == 10 and {each["name"] for each in listed} == names
