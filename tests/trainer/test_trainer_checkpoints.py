import os

import pytest
from omegaconf import OmegaConf

from trinity_compat.job.checkpoints import read_state
from trinity_compat.trainer.checkpoints import (
    CheckpointRetention,
    HeldMarker,
    release_marker,
    repair_marker,
    write_state,
)


def folder(tmp_path, step, *, whole=True, roles=("actor",)):
    path = tmp_path / f"global_step_{step}"
    path.mkdir()
    for role in roles:
        (path / role).mkdir()
    if whole:
        (path / "data.pt").touch()
    return path


def marker(tmp_path):
    return tmp_path / "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize("text", ["4", "4\n"])
def test_a_whole_marker_is_left_alone(tmp_path, text):
    folder(tmp_path, 4)
    folder(tmp_path, 6)
    marker(tmp_path).write_text(text)
    repair_marker(tmp_path)
    assert marker(tmp_path).read_text() == text


def test_no_marker_stays_none_though_a_folder_is_there(tmp_path):
    folder(tmp_path, 2)
    repair_marker(tmp_path)
    assert not marker(tmp_path).exists()


def test_a_marker_cut_off_by_a_crash_names_the_newest_whole_folder(tmp_path):
    for step in (2, 10, 8):
        os.utime(folder(tmp_path, step) / "data.pt", (1, 1))  # all of one age: the number decides
    folder(tmp_path, 12, whole=False)
    marker(tmp_path).write_text("")
    repair_marker(tmp_path)
    assert marker(tmp_path).read_text() == "10"


def test_a_branch_that_a_resume_left_does_not_win_by_its_number(tmp_path):
    left = folder(tmp_path, 8)
    os.utime(left / "data.pt", (1, 1))
    folder(tmp_path, 4)
    marker(tmp_path).write_text("")
    repair_marker(tmp_path)
    assert marker(tmp_path).read_text() == "4"


def test_an_empty_marker_without_a_whole_folder_goes(tmp_path):
    folder(tmp_path, 2, whole=False)
    marker(tmp_path).write_text("")
    repair_marker(tmp_path)
    assert not marker(tmp_path).exists()


def test_a_checkpoint_that_is_written_over_is_not_what_the_marker_names_meanwhile(tmp_path):
    """resume_path=global_step_2 after a run to step 6, and the new branch comes to step 6."""
    for step in (2, 4, 6):
        os.utime(folder(tmp_path, step, roles=() if step == 4 else ("actor",)) / "data.pt", (step, step))
    marker(tmp_path).write_text("6")
    release_marker(tmp_path, 4)
    assert marker(tmp_path).read_text() == "6"
    release_marker(tmp_path, 6)
    assert marker(tmp_path).read_text() == "2", "4 is what retention left of a checkpoint"
    marker(tmp_path).write_text("")
    repair_marker(tmp_path)
    assert marker(tmp_path).read_text() == "2"


def test_without_another_checkpoint_the_marker_goes(tmp_path):
    folder(tmp_path, 6)
    marker(tmp_path).write_text("6")
    release_marker(tmp_path, 6)
    assert not marker(tmp_path).exists()


def test_a_held_marker_counts_after_release(tmp_path):
    marker(tmp_path).write_text("2")
    held = HeldMarker(tmp_path)
    with held.open(str(marker(tmp_path)), "w") as file:
        file.write("4")
    with held.open(tmp_path / "other.jsonl", "w") as file:
        file.write("x")
    assert (marker(tmp_path).read_text(), (tmp_path / "other.jsonl").read_text()) == ("2", "x")
    assert held.open(str(marker(tmp_path))).read() == "2"
    held.publish()
    assert marker(tmp_path).read_text() == "4"
    held.publish()
    assert marker(tmp_path).read_text() == "4"


def trainer(**values):
    return OmegaConf.create({"resume_mode": "auto", "resume_from_path": None, **values})


def roles_left(tmp_path):
    return {path.parent.name[12:] + path.name[0] for path in tmp_path.glob("global_step_*/[ac]*")}


def test_the_newest_are_kept_role_by_role_and_veRL_deletes_none_itself(tmp_path):
    for step in (2, 4, 6):
        folder(tmp_path, step, roles=("actor", "critic"))
    config = trainer(max_actor_ckpt_to_keep=1, max_critic_ckpt_to_keep=2)
    CheckpointRetention.take_over(config).prune(tmp_path, 6)
    assert roles_left(tmp_path) == {"6a", "4c", "6c"}
    assert config.max_actor_ckpt_to_keep is None
    assert (tmp_path / "global_step_2" / "data.pt").exists()


def test_all_are_kept_unless_a_number_is_given(tmp_path):
    for step in (2, 4):
        folder(tmp_path, step, roles=("actor",))
    for number in (None, 0, -1):
        CheckpointRetention.take_over(trainer(max_actor_ckpt_to_keep=number)).prune(tmp_path, 4)
    assert roles_left(tmp_path) == {"2a", "4a"}


def test_a_left_branch_is_not_what_newest_means(tmp_path):
    for step in (2, 4, 10):
        folder(tmp_path, step, roles=("actor",))
    CheckpointRetention.take_over(trainer(remove_previous_ckpt_in_save=True)).prune(tmp_path, 4)
    assert roles_left(tmp_path) == {"4a", "10a"}


@pytest.mark.parametrize("mode", ["resume_path", "auto"])
def test_the_checkpoint_that_the_command_names_is_spared(tmp_path, mode):
    """Also by a trainer that is started again, and goes on from its own."""
    first, *_ = [folder(tmp_path, step, roles=("actor",)) for step in (2, 4, 6)]
    config = trainer(max_actor_ckpt_to_keep=1, resume_mode=mode, resume_from_path=str(first))
    CheckpointRetention.take_over(config).prune(tmp_path, 6)
    assert roles_left(tmp_path) == {"2a", "6a"}


def test_the_own_state_is_read_back_and_stock_veRL_has_none(tmp_path):
    write_state(tmp_path / "global_step_2", {"kl_coef": 0.5})
    assert read_state(tmp_path / "global_step_2") == {"kl_coef": 0.5}
    assert read_state(tmp_path / "global_step_4") == {}
