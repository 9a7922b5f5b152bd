import pytest
import torch

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.errors import RunError
from trinity_compat.synchronizer import files
from trinity_compat.synchronizer.files import WeightsDamaged, versions_in
from trinity_compat.synchronizer.store import prune, read_version, write_version


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(7, 4, generator=generator),
        "norm": torch.randn(4, generator=generator).to(torch.bfloat16),
        "steps": torch.tensor([3], dtype=torch.int64),
    }


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name])


def test_what_is_written_is_read(tmp_path):
    version = write_version(tmp_path, 3, weights().items())
    assert (version.version, version.method) == (3, "memory")
    assert_same(dict(read_version(version)), weights())


def test_tied_and_sliced_tensors_come_back_whole(tmp_path):
    tied, wide = torch.randn(5, 4), torch.randn(4, 6)
    given = {"embed": tied, "lm_head": tied, "slice": wide[:, 1:3], "transposed": wide.T}
    back = dict(read_version(write_version(tmp_path, 1, given.items())))
    assert_same(back, {name: tensor.contiguous() for name, tensor in given.items()})


def test_weights_that_change_later_do_not_reach_a_written_version(tmp_path):
    live = weights()
    version = write_version(tmp_path, 1, live.items())
    live["embed"].zero_()
    assert_same(dict(read_version(version)), weights())


def test_one_flipped_bit_is_found(tmp_path):
    version = write_version(tmp_path, 1, weights().items())
    path = tmp_path / "v00000001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsDamaged, match="not what was published"):
        next(iter(read_version(version)))


def test_a_file_of_another_version_is_found(tmp_path):
    first = write_version(tmp_path, 1, weights(1).items())
    second = write_version(tmp_path, 2, weights(2).items())
    mixed = WeightVersion(2, first.path, second.digest, second.nbytes)
    with pytest.raises(WeightsDamaged):
        dict(read_version(mixed))


def test_a_missing_file_is_named(tmp_path):
    version = write_version(tmp_path, 1, weights().items())
    prune(tmp_path, before=2)
    with pytest.raises(WeightsDamaged, match=r"v00000001\.safetensors can't be read"):
        dict(read_version(version))


def test_a_writer_that_fails_halfway_leaves_the_old_version(tmp_path):
    version = write_version(tmp_path, 1, weights().items())

    def broken():
        yield "embed", torch.zeros(2)
        raise RuntimeError("rank 1 died")

    with pytest.raises(RuntimeError, match="rank 1 died"):
        write_version(tmp_path, 1, broken())
    assert_same(dict(read_version(version)), weights())
    assert [path.name for path in tmp_path.iterdir()] == ["v00000001.safetensors"]


def test_prune_keeps_the_newer_ones_and_foreign_files(tmp_path):
    (tmp_path / "notes.txt").touch()
    for number in (0, 2, 4):
        write_version(tmp_path, number, weights().items())
    assert prune(tmp_path, before=3) == [0, 2]
    assert list(versions_in(tmp_path)) == [4]
    assert (tmp_path / "notes.txt").exists()


def test_prune_takes_away_what_a_killed_writer_had_begun(tmp_path):
    (tmp_path / "v00000007.safetensors.123.part").touch()
    write_version(tmp_path, 4, weights().items())
    assert prune(tmp_path, before=3) == []
    assert [path.name for path in tmp_path.iterdir()] == ["v00000004.safetensors"]


@pytest.fixture
def open_place(tmp_path):
    """As /dev/shm is: everybody may write there."""
    place = tmp_path / "shm"
    place.mkdir()
    place.chmod(0o1777)
    return place


def test_a_folder_where_everybody_may_write_is_this_user_s_alone(open_place):
    write_version(open_place / "job", 1, weights().items())
    assert (open_place / "job").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_an_older_run_of_this_user_left_is_closed(open_place):
    (open_place / "job").mkdir(mode=0o755)
    write_version(open_place / "job", 1, weights().items())
    assert (open_place / "job").stat().st_mode & 0o777 == 0o700


def test_a_folder_into_which_others_may_write_is_refused(open_place):
    (open_place / "job").mkdir()
    (open_place / "job").chmod(0o777)
    with pytest.raises(RunError, match="others may write there: no weights are put into it"):
        write_version(open_place / "job", 1, weights().items())
    assert list((open_place / "job").iterdir()) == []


def test_somebody_else_s_folder_is_refused(open_place, monkeypatch):
    (open_place / "job").mkdir(mode=0o700)
    monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
    with pytest.raises(RunError, match="belongs to somebody else"):
        write_version(open_place / "job", 1, weights().items())


def test_a_link_that_somebody_laid_there_is_refused(open_place, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (open_place / "job").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="belongs to somebody else"):
        write_version(open_place / "job", 1, weights().items())
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_the_job_s_own_keeps_its_mode(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o775)
    (tmp_path / "shared").chmod(0o775)
    write_version(tmp_path / "shared", 1, weights().items())
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o775
