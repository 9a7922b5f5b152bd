"""Secrets in every form in which a launch has them, and each output and file of the commands that read it."""

import json
import lzma
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from planted_secrets import (
    FORMS,
    KWARGS,
    NUMBER,
    PLANTED,
    SCRIPT,
    TOKENS,
    VARIABLE,
    leaks,
    mark,
    planted_script,
)

from trinity_compat.common import redaction
from trinity_compat.common.redaction import (
    hidden,
    is_secret,
    masked,
    referred,
    resolved,
    shown,
    without_passwords,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.sh").write_text(planted_script())
    plain = SCRIPT.replace(VARIABLE, "other").partition("trainer.resume_mode")[0]
    (tmp_path / "plain.sh").write_text(f"{plain} data.val_batch_size=8\n")
    (tmp_path / "reward.py").write_text("def compute_score(**_):\n    return 0.0\n")
    return tmp_path


def outputs(folder, *words):
    before = set(folder.rglob("*"))
    command = [Path(sys.executable).with_name("trinity-compat"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ})
    files = [path for path in set(folder.rglob("*")) - before if path.is_file()]
    written = {str(path): path.read_text(errors="replace") for path in files}
    return {"stdout": done.stdout, "stderr": done.stderr, **written}, done.returncode


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "run.sh"],
        ["translate", "run.sh", "-o", "out.yaml", "--resolve"],
        ["parse", "run.sh"],
        ["parse", "run.sh", "--format", "json"],
        *(["audit", "run.sh", "--all", "--format", form] for form in ("text", "md", "html", "json", "sarif")),
        *(["diff", "plain.sh", "run.sh", "--format", form] for form in ("text", "md", "json")),
        ["ignored", "run.sh"],
        ["ignored", "run.sh", "--format", "json"],
    ],
    ids=" ".join,
)
def test_no_command_shows_one(folder, words):
    found, code = outputs(folder, *words)
    assert code in (0, 1), found["stderr"]
    assert leaks(found) == []


@pytest.mark.timeout(600)
def test_no_file_and_no_line_of_a_dry_run_has_one(folder):
    found, code = outputs(folder, "run", "run.sh", "--dry-run", "--job", "job", "--device", "cpu")
    assert code == 0, found["stderr"]
    assert {Path(name).name for name in found} >= {"run.json", "launch.json", "verl.yaml", "trinity.yaml"}
    assert leaks(found) == []


def test_the_run_gets_each_value_exactly(folder):
    """What the YAML and run.json refer to comes back under the variables' values."""
    kwargs = {name: value(text) for name, text in PLANTED.items()} | {"pin_password": int(NUMBER)}
    tree = {"kwargs": kwargs | {f"t{n}": f"cmd {token},x" for n, token in enumerate(TOKENS)}}
    for named in ("natural", "path"):
        saved, variables = referred(tree, named=named)
        assert leaks({"saved": json.dumps(saved)}) == []
        assert resolved(saved, variables) == tree
        assert referred(saved, named=named)[1] == {}


def test_the_translated_yaml_has_the_script_s_own_variable(folder):
    found, _ = outputs(folder, "translate", "run.sh")
    assert yaml.safe_load(found["stdout"])["name"] == "x-${oc.env:MY_TOKEN}"


@pytest.mark.parametrize("name", FORMS)
def test_each_form_alone_is_masked(name):
    line = f"{KWARGS}.{name}={PLANTED[name]}"
    assert mark(name) not in shown(line)
    assert mark(name) not in json.dumps(hidden("", {name: value(PLANTED[name])}))


def value(text):
    return yaml.safe_load(text) if text[:1] in "[{" else text


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:4])
def test_a_token_is_known_by_its_form_anywhere(token):
    for text in (token, f"x {token}.", f'"{token}"', f"a/{token}/b", f"é={token}"):
        assert token not in without_passwords(text)


def test_words_of_a_command_are_masked():
    words = shlex.split("curl -u me:zqPass7 --user me:zqPass7 --password zqPass7 -u 1000:1000 x")
    assert shlex.join(masked(words)).replace("'", "") == (
        "curl -u me:*** --user me:*** --password *** -u 1000:1000 x"
    )


def values(tree):
    if isinstance(tree, dict):
        yield from (f"{key}={value}" for key, value in tree.items() if isinstance(value, str | int | float))
        tree = [*tree, *tree.values()]
    if isinstance(tree, list):
        for each in tree:
            yield from values(each)
    elif isinstance(tree, str):
        yield from tree.splitlines()


def recorded():
    for name in ("main", "public", "verl_defaults"):
        yield from values(json.loads(lzma.decompress((ROOT / f"tests/facts/{name}.json.xz").read_bytes())))
    for folder in ("tests/translate/recorded", "tests/launch/fixtures", "tests/facts", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".sh", ".txt", ".yaml", ".md", ".py", ".json"):
                yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def test_no_value_of_a_release_or_a_recorded_launch_is_taken_for_one(monkeypatch):
    monkeypatch.setattr(redaction, "_known", {})
    lines = set(recorded())
    assert len(lines) > 10_000
    assert [line for line in lines if without_passwords(line) != line] == []
    changed = {line: shown(line) for line in lines if shown(line) != line}
    name = re.compile(r"([A-Za-z][\w-]*)[\"']?\s*[=:]")
    assert [line for line in changed if not any(map(is_secret, name.findall(line)))] == []
