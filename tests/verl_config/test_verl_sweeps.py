"""Several values of a key (TP209): what is said depends on whether --multirun was given."""

import pytest

from trinity_compat.launch import read_argv
from trinity_compat.verl_config.arguments import read_arguments

MAIN = ["python3", "-m", "verl.trainer.main_ppo"]


def message(*words: str) -> str:
    (note,) = read_arguments(read_argv([*MAIN, *words]).launches[0]).diagnostics
    assert note.code == "TP209"
    return note.message


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_a_given_multirun_is_not_asked_for(flag: str) -> None:
    said = message(flag, "actor_rollout_ref.rollout.n=4,8")
    assert "needs --multirun" not in said
    assert "write actor_rollout_ref.rollout.n=VALUE" in said


def test_without_multirun_list_and_text_are_offered() -> None:
    said = message("actor_rollout_ref.rollout.n=4,8")
    assert "needs --multirun" in said
    assert "actor_rollout_ref.rollout.n=[4,8]" in said
