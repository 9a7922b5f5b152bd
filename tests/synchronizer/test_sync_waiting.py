import threading
from pathlib import Path

import pytest
import torch

from trinity_compat.buffer import open_buffer
from trinity_compat.spec import SyncSpec
from trinity_compat.synchronizer.store import write_version
from trinity_compat.synchronizer.waiting import SyncTimeout, find_version, misplaced, wait_for_version


@pytest.fixture
def buffer(tmp_path):
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    yield buffer
    buffer.close()


def publish(buffer, directory, *versions):
    for version in versions:
        buffer.publish_version(write_version(directory, version, {"w": torch.full((2,), version)}.items()))


def found(buffer, sync, step):
    version = find_version(buffer, sync, step)
    return None if version is None else version.version


def test_fixed_uses_its_own_version_though_newer_ones_are_there(buffer, tmp_path):
    sync = SyncSpec(offset=1)
    publish(buffer, tmp_path, 0, 1, 2, 3)
    assert [found(buffer, sync, step) for step in (1, 2, 3, 4, 5)] == [0, 0, 1, 2, 3]
    assert found(buffer, sync, 6) is None


def test_other_styles_use_the_newest(buffer, tmp_path):
    sync = SyncSpec(style="trainer_driven", interval=2)
    assert found(buffer, sync, 1) is None
    publish(buffer, tmp_path, 0, 2)
    assert found(buffer, sync, 1) == 2


def test_after_a_resume_the_version_that_follows_stands_in_for_a_lost_file(buffer, tmp_path):
    sync = SyncSpec(interval=2)
    publish(buffer, tmp_path, 0, 2)
    Path(buffer.get_version(2).path).unlink()
    buffer.reconcile(step=3)
    publish(buffer, tmp_path, 3)
    assert found(buffer, sync, 4) == 3


@pytest.mark.parametrize("style", ["fixed", "trainer_driven"])
def test_what_an_ended_run_left_in_memory_is_waited_for_until_its_rerun_publishes_it_again(
    buffer, tmp_path, style
):
    sync = SyncSpec(style=style, offset=0)
    publish(buffer, tmp_path, 0, 1)
    for version in (0, 1):
        Path(buffer.get_version(version).path).unlink()
    assert found(buffer, sync, 2) is None
    buffer.reconcile(step=1)
    publish(buffer, tmp_path, 1)
    assert found(buffer, sync, 2) == 1


def test_a_file_that_is_not_here_while_the_trainer_waits_is_misplaced(buffer, tmp_path):
    publish(buffer, tmp_path, 0)
    buffer.beat("trainer", "t", state="waiting")
    assert misplaced(buffer) is None
    Path(buffer.get_version(0).path).unlink()
    assert misplaced(buffer).version == 0
    buffer.beat("trainer", "t", state="starting")
    assert misplaced(buffer) is None


def test_waits_until_the_version_is_published(buffer, tmp_path):
    publish(buffer, tmp_path, 0)
    later = threading.Timer(0.2, publish, (buffer, tmp_path, 1))
    later.start()
    assert wait_for_version(buffer, SyncSpec(), 2, 5.0).version == 1
    later.join()


def test_a_timeout_is_an_error_that_says_what_was_there(buffer, tmp_path):
    publish(buffer, tmp_path, 0)
    with pytest.raises(SyncTimeout, match=r"step 4 waited 0.1 s for version 3 .* newest published is 0"):
        wait_for_version(buffer, SyncSpec(timeout_s=0.1), 4)


def test_the_caller_can_end_the_wait(buffer):
    def peer_died():
        raise RuntimeError("the trainer is gone")

    with pytest.raises(RuntimeError, match="the trainer is gone"):
        wait_for_version(buffer, SyncSpec(), 1, 60.0, check=peer_died)
