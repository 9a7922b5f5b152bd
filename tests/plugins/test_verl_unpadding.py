"""veRL 0.9.0 without flash-attn: unpadding in torch."""

import importlib.util

import pytest
import torch
from verl.utils import attention_utils

from trinity_compat.plugins import verl_unpadding


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(attention_utils, "_get_attention_functions", attention_utils._get_attention_functions)


def test_a_release_without_a_substitute_gets_veRL_s_own_for_npus(monkeypatch):
    mask = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1]])
    rows = torch.arange(18.0).reshape(3, 3, 2)
    expected = attention_utils._fallback_unpad_input(rows, mask)
    monkeypatch.delattr(attention_utils, "_fallback_unpad_input")
    verl_unpadding.apply()
    assert attention_utils._get_attention_functions is verl_unpadding._in_torch
    values, indices, lengths, longest, *_ = attention_utils.unpad_input(rows, mask)
    assert torch.equal(values, expected[0]) and torch.equal(indices, expected[1])
    assert torch.equal(lengths, expected[2]) and longest == expected[3]
    assert torch.equal(attention_utils.pad_input(values, indices, 3, 3), rows * mask.unsqueeze(-1))


def test_flash_attn_and_a_substitute_of_the_release_s_are_left_alone(monkeypatch):
    before = attention_utils._get_attention_functions
    verl_unpadding.apply()
    monkeypatch.delattr(attention_utils, "_fallback_unpad_input")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    verl_unpadding.apply()
    assert attention_utils._get_attention_functions is before
