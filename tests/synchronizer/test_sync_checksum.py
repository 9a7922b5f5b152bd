"""The checksum of weights, over tensors and over files."""

import pytest
import torch

from trinity_compat.synchronizer.checksum import Checksum, checksum, file_checksum


def some(size):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [16, 1 << 23, (1 << 23) + 48])
def test_the_checksum_sees_any_changed_byte_and_any_swap(size):
    data = some(size)
    good = checksum(data)
    assert checksum(data.clone()) == good
    for place in (0, size // 2, size - 1):
        other = data.clone()
        other[place] ^= 128
        assert checksum(other) != good
    swapped = data.view(torch.int64).flip(0).contiguous().view(torch.uint8)
    assert checksum(swapped) != good


@pytest.mark.parametrize("cut", [8, 1 << 19, (1 << 19) + 8])
def test_pieces_give_what_the_whole_gives(cut):
    data, total = some(1 << 20), Checksum()
    for start in range(0, len(data), cut):
        total.add(data[start : start + cut])
    assert total.hex() == checksum(data)


@pytest.mark.parametrize("size", [0, 1, 8, 4 << 20, (4 << 20) + 3, (9 << 20) - 1])
def test_a_file_counts_as_if_filled_up_with_zeros(tmp_path, size):
    data = some(size)
    (tmp_path / "f").write_bytes(data.numpy().tobytes())
    assert file_checksum(tmp_path / "f") == checksum(
        torch.cat([data, torch.zeros(-size % 8, dtype=torch.uint8)])
    )
