"""The weight receiver against the source of the pinned GPU release of vLLM, not the CPU's release."""

import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    folder = tmp_path_factory.mktemp("vllm_024")
    toy = made_toy(folder / "toy", ToySpec(train_rows=8, val_rows=2, warm_steps=1))
    source = needs.made(".vllm-0.24.0", "hashes/vllm-0.24.0.txt")
    asked = [json.dumps(arguments_of(model, folder / model)) for model in ("Qwen2", "Qwen3")]
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_024_worker.py"), str(toy / "model"), str(folder / "w"), *asked],
        env={**os.environ, "PYTHONPATH": f"{source}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert told, done.stderr[-3000:]
    return json.loads(told[0].removeprefix("FOUND "))


def arguments_of(family, folder):
    """What a launch's engine is started with on a GPU, for a small model of ``family``."""
    import transformers
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from trinity_compat.explorer.engine.arguments import engine_arguments

    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = getattr(transformers, f"{family}Config")(vocab_size=16, num_key_value_heads=1, **size)
    config.architectures = [f"{family}ForCausalLM"]
    config.save_pretrained(folder)
    with initialize_config_module("verl.trainer.config", version_base=None):
        verl = compose("ppo_trainer", overrides=["actor_rollout_ref.rollout.tensor_model_parallel_size=1"])
    given = engine_arguments(
        OmegaConf.to_container(verl, resolve=True), model_path=str(folder), device="cuda"
    )
    return {**given, "skip_tokenizer_init": True, "load_format": "dummy"}


def test_the_source_is_the_pinned_release_s(found):
    assert found["version"] == "0.24.0"


def test_expert_weights_keep_the_kernel_s_layout_after_updates(found):
    """On Blackwell vLLM swaps the halves of w13 once they are loaded: without that step gate and up are
    exchanged, in silence."""
    for updates in found["updates"]:
        assert [(answer["tensors"], *layout) for answer, *layout in updates] == [(2, True, False)] * 2
        assert len({answer["held"] for answer, *_ in updates}) == 1  # the same weights again


def test_tokens_that_the_tokenizer_lacks_are_masked_by_either_model_runner(found):
    assert found["allowed"] == [[0, 2, 3]] * 2


def test_a_run_s_arguments_leave_vllm_the_model_runner_that_it_would_take(found):
    """V2 for the models of its list, of which Qwen3 is one; none of our arguments is one that it lacks."""
    assert found["picked"] == ["V1", "V2"]


def test_damaged_weights_touch_no_layer(found):
    assert "are not what was published" in found["damaged"]["damaged"]


def test_a_quantised_model_is_taken_apart_loaded_and_put_together(found):
    assert found["quantised"] == ["prepare", "load", "process"]


def test_also_when_the_handover_breaks_off(found):
    assert found["quantised, broken off"] == ["prepare", "load", "process", "failed"]
