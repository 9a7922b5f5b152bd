"""The public corpus: what real bash handed on for every veRL launch script of seven revisions.

Collected only where TC_VERL_GIT names a git clone of volcengine/verl (conftest.py): the scripts are not ours
to copy, what bash made of them is in tests/facts.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import textwrap
from pathlib import Path

import facts
import pytest
import yaml

from trinity_compat.launch import read_script, read_text

CLONE = os.environ.get("TC_VERL_GIT", "")
# bash was started without sbatch. We read what the `#SBATCH` lines give (docs/parse.md): these keys differ.
BY_SLURM = {
    "examples/slurm/ray_on_slurm.slurm": {"trainer.n_gpus_per_node": "4", "trainer.nnodes": "2"},
    "v0.6.1:recipe/langgraph_agent/example/run_gpt_oss_20b_bf16.sh": {"trainer.n_gpus_per_node": "4"},
    "v0.6.1:recipe/langgraph_agent/example/run_qwen2.5_3b.sh": {"trainer.n_gpus_per_node": "4"},
    "examples/sapo_trainer/run_qwen30b_sapo.sh": {"trainer.n_gpus_per_node": "8", "trainer.nnodes": "1"},
}
ENV = {"HOME": "/home/user", "USER": "tester", "SOURCE_DATE_EPOCH": "1767323045"}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    root = tmp_path_factory.mktemp("trees")
    corpus = facts.load("public")
    for tag in {entry["tag"] for entry in corpus["scripts"]}:
        revision = corpus["head"] if tag == "HEAD" else tag
        archive = subprocess.run(["git", "-C", CLONE, "archive", revision], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(root / tag, filter="data")
    return root, corpus["scripts"]


def blocks_of(path: Path) -> list[str]:
    """Every piece of a document that could be a script."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
        found = [re.sub(r"(?m)^(!|%%bash\n)", "", cell) for cell in cells] + cells
    elif path.suffix == ".yaml":
        found = [value for value in yaml.safe_load(text).values() if isinstance(value, str)]
    else:
        found = re.findall(r"(?ms)^[ \t]*```\w*[ \t]*\n(.*?)^[ \t]*```", text)
        found += re.findall(r"(?ms)\.\. code(?:-block)?:: \w+[^\n]*\n\n?((?:[ \t]+[^\n]*\n|\n)+)", text)
    return [shape for block in found for shape in _shapes(block)]


def _shapes(block: str) -> list[str]:
    bare = textwrap.dedent(block).strip()
    return [block, block.strip(), block.rstrip("\n"), bare, bare + "\n", block.strip() + "\n"]


def expected(entry):
    path = entry["path"]
    given = BY_SLURM.get(path) or BY_SLURM.get(f"{entry['tag']}:{path}") or {}
    return [
        (launch["module"], [_with_slurm(argument, given) for argument in launch["args"]])
        for launch in entry["launches"]
    ]


def _with_slurm(argument, given):
    key = argument.partition("=")[0]
    return f"{key}={given[key]}" if key in given else argument


def found_in(reading, tree):
    return [
        (launch.module, [word.text.replace(str(tree), "/repo") for word in launch.arguments])
        for launch in reading.launches
    ]


def options(entry, tree):
    env = dict(ENV, **dict(pair.split("=", 1) for pair in entry["env"].split()))
    return {"cwd": entry["cwd"].replace("/repo", str(tree), 1), "env": env, "args": entry["args"]}


def test_every_script_equals_bash(trees):
    root, entries = trees
    wrong = []
    for entry in (e for e in entries if e["kind"] == "file"):
        tree = root / entry["tag"]
        reading = read_script(tree / entry["path"], **options(entry, tree))
        if found_in(reading, tree) != expected(entry):
            wrong.append(f"{entry['tag']}:{entry['path']}")
    assert wrong == []


def test_scripts_in_documents_equal_bash(trees):
    """Those whose text can be cut out of the document again; most can."""
    root, entries = trees
    wrong, compared = [], 0
    for entry in (e for e in entries if e["kind"] == "doc"):
        tree = root / entry["tag"]
        blocks = blocks_of(tree / entry["path"].rsplit("__", 1)[0])
        text = next((b for b in blocks if hashlib.sha256(b.encode()).hexdigest()[:16] == entry["sha"]), None)
        if text is None:
            continue
        compared += 1
        if found_in(read_text(text, name="doc.sh", **options(entry, tree)), tree) != expected(entry):
            wrong.append(f"{entry['tag']}:{entry['path']}")
    assert wrong == []
    assert compared >= 10
