import pytest

from trinity_compat.trainer.checkpoints import mend_marker


def folder(tmp_path, step, *, whole=True):
    path = tmp_path / f"global_step_{step}"
    path.mkdir()
    if whole:
        (path / "data.pt").touch()


def marker(tmp_path):
    return tmp_path / "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize("text", ["4", "4\n"])
def test_a_whole_marker_is_left_alone(tmp_path, text):
    folder(tmp_path, 4)
    folder(tmp_path, 6)
    marker(tmp_path).write_text(text)
    mend_marker(tmp_path)
    assert marker(tmp_path).read_text() == text


def test_no_marker_stays_none_though_a_folder_is_there(tmp_path):
    folder(tmp_path, 2)
    mend_marker(tmp_path)
    assert not marker(tmp_path).exists()


def test_a_marker_cut_off_by_a_crash_names_the_newest_whole_folder(tmp_path):
    for step in (2, 10, 8):
        folder(tmp_path, step)
    folder(tmp_path, 12, whole=False)
    marker(tmp_path).write_text("")
    mend_marker(tmp_path)
    assert marker(tmp_path).read_text() == "10"


def test_an_empty_marker_without_a_whole_folder_goes(tmp_path):
    folder(tmp_path, 2, whole=False)
    marker(tmp_path).write_text("")
    mend_marker(tmp_path)
    assert not marker(tmp_path).exists()
