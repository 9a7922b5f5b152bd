"""scripts/judge/trinity_corpus.py: published YAMLs are planned, and compared with the real package."""

import subprocess

import pytest
from loaded_scripts import loaded
from trinity_files import LEAST, merged

from trinity_compat.trinity.config import dump

GRPO = merged(
    LEAST,
    {
        "cluster": {"node_num": 1, "gpu_per_node": 3},
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
        "model": {"model_path": "${oc.env:TRINITY_MODEL_PATH}"},
    },
)
AWAY = {"buffer": {"explorer_input": {"default_workflow_type": "frozen_lake_workflow"}}}


@pytest.fixture
def corpus(monkeypatch):
    module = loaded("trinity_corpus", monkeypatch)
    monkeypatch.setenv("TRINITY_MODEL_PATH", "/m")
    return module


def test_files_are_read_at_their_commits(corpus, tmp_path):
    folder = tmp_path / "mirror" / "o+n" / "repo"
    (folder / "examples").mkdir(parents=True)
    (folder / "examples" / "a.yaml").write_text("mode: both\n")

    def git(*words):
        author = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(
            ["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "examples/a.yaml")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (folder / "config").unlink(missing_ok=True)
    (folder / ".git").rename(tmp_path / "bare")
    (tmp_path / "mirror" / "o+n" / "repo").rename(tmp_path / "tree")
    (tmp_path / "bare").rename(folder)
    listed = tmp_path / "list.txt"
    listed.write_text(f"# a list\no/n {commit} examples/a.yaml\n")
    assert dict(corpus.read(listed, tmp_path / "mirror", "")) == {f"o a.yaml@{commit[:7]}": "mode: both\n"}
    assert dict(corpus.read(listed, tmp_path / "mirror", "b.yaml")) == {}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "planned"),
        (AWAY, "refused for packages that are missing"),
        ({"unheard": 1}, "refused for another release or a plugin"),
        ({"algorithm": {"algorithm_type": "m2po"}}, "refused for another release or a plugin"),
        ({"buffer": {"explorer_input": {"taskset": {"path": None}}}}, "refused for what fails there too"),
        ({"model": {"tinker": {"enable": True}}}, "refused by a limit of ours"),
    ],
)
def test_a_file_is_planned_or_refused_for_a_reason(corpus, change, state):
    assert corpus.judged("x", dump(merged(GRPO, change)), None).state == state


def test_a_value_that_both_have_and_not_alike_is_found(corpus):
    """An update's size is compared as rows, and a critic only where there is one."""
    trainer = {
        "actor": {"ppo_mini_batch_size": 48, "grad_clip": 7.0, "_target_": "x", "optim": {"lr": "1e-6"}},
        "critic": {"strategy": "x"},
    }
    row = {"config": {"model.model_path": "/other", "buffer.batch_size": 6}, "trainer": trainer}
    found = corpus.judged("x", dump(GRPO), row)
    assert found.compared
    assert found.differing == {
        "model.model_path": ("/m", "/other"),
        "veRL: actor.grad_clip": (1.0, 7.0),
    }
    assert not corpus.judged("x", dump(GRPO), {"error": "ValueError: x"}).compared
