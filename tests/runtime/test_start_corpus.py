"""scripts/start_corpus.py: what stock veRL does not start either."""

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def start_corpus(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("start_corpus_tested", SCRIPTS / "start_corpus.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "start_corpus_tested", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("main", "gone"),
    [
        ("verl.trainer.main_ppo", False),
        ("verl.trainer.main_ppo_sync", True),
        ("verl.experimental.fully_async_policy.fully_async_main", False),
        ("recipe.mine.main_mine", False),
    ],
)
def test_a_main_of_verls_own_that_0_9_1_lacks(start_corpus, main, gone):
    assert start_corpus._is_gone(main) is gone


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (': "${SCRATCH:?say where}"', "$SCRATCH must be set; without it bash ends the script here"),
        ('S="${SCRATCH:-/tmp}"', ""),
    ],
)
def test_a_variable_without_which_bash_ends_the_script(start_corpus, tmp_path, line, told):
    (tmp_path / "run.sh").write_text(f"{line}\npython3 -m verl.trainer.main_ppo a=1\n")
    assert start_corpus._wanting([str(tmp_path), "run.sh"]) == told
    assert start_corpus._wanting(["python3", "-m", "verl.trainer.main_ppo"]) == ""
