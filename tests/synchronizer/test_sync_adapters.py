"""A LoRA adapter as a version: what goes in comes out, and what vLLM would take for another one does not."""

from types import SimpleNamespace

import pytest
import torch

from trinity_compat.common.errors import UserError
from trinity_compat.synchronizer import adapters
from trinity_compat.synchronizer.transports.files import read_file, write_file

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


@pytest.fixture(scope="module")
def seeing():
    """The configuration of a small model that sees."""
    from transformers import Qwen2VLConfig

    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    scaling = {"type": "mrope", "mrope_section": [4, 2, 2], "rope_type": "default"}
    text |= {"num_key_value_heads": 1, "vocab_size": 64, "rope_scaling": scaling}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}
    return Qwen2VLConfig(text_config=text, vision_config=vision)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("targets", "excluded", "beside"),
    [
        ("all-linear", None, "visual"),
        ("all-linear", ".*visual.*", ""),
        (["q_proj", "v_proj"], None, ""),
        (["qkv"], None, "visual"),
    ],
)
def test_layers_beside_a_language_model_are_found_before_vllm_leaves_them_out(
    seeing, targets, excluded, beside
):
    model = SimpleNamespace(
        hf_config=seeing, trust_remote_code=False, lora_rank=4, lora_adapter_path=None,
        target_modules=targets, exclude_modules=excluded,
    )  # fmt: skip
    found = adapters.beside_language_model(model)
    assert (beside in found.split(".")) if beside else not found
