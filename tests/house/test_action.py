"""The GitHub action: its scripts on a real repository, and what it names is here."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
COMMAND = Path(sys.executable).parent / "trinity-compat"
SCRIPT = """python3 -m verl.trainer.main_ppo data.train_files=t.parquet data.val_files=v.parquet \\
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.optim.lr=1e-6
"""


@pytest.fixture
def repository(tmp_path):
    """A repository whose last commit changes one script in effect and one in its spelling alone."""
    folder = tmp_path / "repository"
    folder.mkdir()
    call(folder, "git", "init", "-q")
    for name in ("changed.sh", "spelt.sh", "new <b>.sh"):
        (folder / name).write_text(SCRIPT)
    commit(folder)
    for name in ("changed.sh", "new <b>.sh"):
        (folder / name).write_text(SCRIPT.replace("1e-6", "3e-6"))
    (folder / "spelt.sh").write_text(SCRIPT.replace("1e-6", "0.000001"))
    commit(folder)
    return folder


def commit(folder):
    call(folder, "git", "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    call(folder, "git", *who, "commit", "-qm", "Change")


def call(folder, *words, code=0, **env):
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def variables(folder):
    """The variables that a step has of the runner and of action.yml."""
    runner = folder.parent / "runner"
    runner.mkdir(exist_ok=True)
    return {
        "RUNNER_TEMP": str(runner),
        "GITHUB_OUTPUT": str(runner / "output"),
        "TRINITY_COMPAT": str(COMMAND),
        "SOURCES": "changed.sh\n\nspelt.sh\nnew <b>.sh\n",
        "FAIL_ON": "",
        "RULES": "",
    }


def step(folder, name, code=0, **env):
    """Run a script of the action as its step does; returns what it printed."""
    return call(folder, "bash", ROOT / "scripts/action" / name, code=code, **{**variables(folder), **env})


def test_the_audit_is_sarif_and_its_code_an_output(repository):
    shown = step(repository, "audit.sh")
    runner = repository.parent / "runner"
    told = dict(line.split("=", 1) for line in (runner / "output").read_text().splitlines())
    assert told == {"sarif": str(runner / "trinity-compat.sarif"), "code": "0"}
    sarif = json.loads(Path(told["sarif"]).read_text())
    assert sarif["version"] == "2.1.0" and "verl.trainer.main_ppo" in shown
    step(repository, "audit.sh", FAIL_ON="mapped")
    assert (runner / "output").read_text().endswith("code=1\n")


def test_a_source_that_is_not_there_fails_the_step(repository):
    step(repository, "audit.sh", SOURCES="nowhere.sh", code=2)


def test_the_comment_has_the_settings_that_change_in_effect(repository):
    base = call(repository, "git", "rev-parse", "HEAD~1").strip()
    step(repository, "diff.sh", BASE=base)
    told = (repository.parent / "runner" / "trinity-compat.md").read_text()
    assert "### `changed.sh`" in told and "spelt.sh" not in told
    assert "| actor_rollout_ref.actor.optim.lr | `1e-06` | `3e-06` |" in told
    assert "### `new _b_.sh`" in told  # markup in a name is shown as text
    assert call(repository, "git", "worktree", "list").count("\n") == 1


def test_a_script_that_cannot_be_read_is_no_markup_of_the_comment(repository):
    bad = SCRIPT.replace("main_ppo", "main_ppo 'data.seed=[![x](http://x)'")
    (repository / "changed.sh").write_text(bad)
    commit(repository)
    step(repository, "diff.sh", BASE=call(repository, "git", "rev-parse", "HEAD~1").strip())
    told = (repository.parent / "runner" / "trinity-compat.md").read_text()
    assert "### `changed.sh`" in told and "![x]" in told
    assert all(line.startswith("    ") for line in told.splitlines() if "![x]" in line)


def test_no_comment_is_written_where_nothing_changes_in_effect(repository):
    head = call(repository, "git", "rev-parse", "HEAD").strip()
    step(repository, "diff.sh", BASE=head)
    assert (repository.parent / "runner" / "trinity-compat.md").read_text() == ""
    assert step(repository, "comment.sh", NUMBER="1") == ""


def test_the_comment_replaces_its_last_one(repository):
    binaries = repository.parent / "bin"
    binaries.mkdir()
    (binaries / "gh").write_text('#!/bin/sh\necho "$@"\ncat "$7"\n')
    (binaries / "gh").chmod(0o755)
    base = call(repository, "git", "rev-parse", "HEAD~1").strip()
    step(repository, "diff.sh", BASE=base)
    told = step(repository, "comment.sh", NUMBER="7", PATH=f"{binaries}:{os.environ['PATH']}")
    assert told.startswith("pr comment 7 --edit-last --create-if-none --body-file ")
    assert "### `changed.sh`" in told
    (repository.parent / "runner" / "trinity-compat.md").write_text("| `a` |\n" + f"| `{'@b ' * 30_000}` |\n")
    told = step(repository, "comment.sh", NUMBER="7", PATH=f"{binaries}:{os.environ['PATH']}")
    assert told.endswith("| `a` |\n"), "a row that is cut would leave its code span open"


def test_the_action_names_files_that_are_here_and_no_input_in_a_script():
    """An input in a script's text would be run as code."""
    texts = [each.get("run", "") for each in ACTION["runs"]["steps"]]
    assert not any("${{" in text for text in texts)
    named = re.findall(r"GITHUB_ACTION_PATH/(scripts/[\w./-]+)", "\n".join(texts))
    sourced = {"scripts/action/reader.sh"}
    assert {ROOT / name for name in {*named, *sourced}} == set((ROOT / "scripts/action").glob("*.sh"))
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == ACTION["inputs"].keys()


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say_of_a_dockerfile(path):
    linter = Path(sys.executable).parent / "hadolint"
    assert call(ROOT, linter, path) == ""


def test_a_docker_context_has_what_a_wheel_is_made_of(tmp_path):
    """The files that .dockerignore leaves suffice to build; nothing else of a checkout goes along."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in kept:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    call(tmp_path, *build, "--outdir", tmp_path / "dist", tmp_path)
    assert list((tmp_path / "dist").glob("*.whl"))
