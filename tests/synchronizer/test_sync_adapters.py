"""A LoRA adapter as a version: what goes in comes out, and what vLLM would take for another one does not."""

import pytest
import torch

from trinity_compat.errors import UserError
from trinity_compat.synchronizer import adapters
from trinity_compat.synchronizer.files import read_file, write_file

ADAPTER = {f"base_model.model.q_proj.lora_{part}.weight": torch.rand(2, 3) for part in "AB"}
PEFT = {
    "r": 2,
    "lora_alpha": 8,
    "target_modules": {"v_proj", "q_proj"},
    "peft_type": object(),
    "bias": "none",
}


def test_it_comes_out_of_its_files_as_it_went_in(tmp_path):
    file = write_file(tmp_path, 1, adapters.as_version(ADAPTER.items(), PEFT))
    tensors, peft = adapters.taken_apart(read_file(file))
    assert tensors.keys() == ADAPTER.keys()
    assert all(torch.equal(tensors[name], ADAPTER[name]) for name in ADAPTER)
    assert peft == {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}


@pytest.mark.parametrize(
    "own",
    [{"use_dora": True}, {"rank_pattern": {"q": 1}}, {"alpha_pattern": {"q": 1}}, {"modules_to_save": ["h"]}],
)
def test_what_vllm_does_not_read_of_an_adapter_is_refused(own):
    with pytest.raises(UserError, match=next(iter(own))) as refused:
        list(adapters.as_version(ADAPTER.items(), PEFT | own))
    assert "lora.merge=True" in refused.value.hint


def test_a_whole_model_is_no_adapter():
    with pytest.raises(ValueError, match="whole model"):
        adapters.taken_apart([("w", torch.ones(1))])


def test_every_part_of_an_adapter_needs_a_layer():
    adapters.refuse_left_out(
        ["a.qkv_proj", "mlp.experts.base_layer"], ["a.qkv_proj", "mlp.experts", "lm_head"]
    )
    with pytest.raises(ValueError, match=r"no place for the adapter's visual\.0 \(2 in all\)"):
        adapters.refuse_left_out(["visual.1", "a.qkv_proj", "visual.0"], ["a.qkv_proj"])
