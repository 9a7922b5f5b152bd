"""What vLLM is given: as stock veRL gives it, apart from what is listed here."""

import asyncio
import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.explorer.engine.arguments import engine_arguments, engine_environment
from trinity_compat.job.vllm_arguments import SECTION
from trinity_compat.verl_config.pinned import compose_pinned

ROLLOUT = "actor_rollout_ref.rollout"
MEANT = {  # as the docstring of engine_arguments.py says
    "load_format": ("dummy", "auto"),
    "enable_sleep_mode": (True, False),
    "max_model_len": (512, 56),  # all that the toy model can; prompt + response
    "worker_extension_cls": (
        "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
        "trinity_compat.plugins.vllm_weights.WeightReceiver",
    ),
}


DRAFTING = {
    "mtp__enable": True,
    "mtp__enable_rollout": True,
    "mtp__method": "mtp",
    "mtp__num_speculative_tokens": 2,
}


def arguments(device="cuda", *, shared=False, positions=None, index=0, layers=0, **changed):
    """Arguments for a model at /m, with keys of the rollout section changed."""
    given = {f"{ROLLOUT}.{name.replace('__', '.')}": value for name, value in changed.items()}
    verl = compose_pinned({f"{ROLLOUT}.name": "vllm"} | given)
    made = engine_arguments(
        verl,
        model_path="/m",
        device=device,
        index=index,
        shared=shared,
        positions=positions,
        layers=layers,
    )
    assert json.loads(json.dumps(made)) == made, "plain, so that it can be shown"
    return made


def test_no_heavy_package_is_imported():
    code = "import sys, trinity_compat.explorer.engine.arguments; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"torch", "vllm", "verl", "ray"} & set(modules)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ({"scheduling_policy": "priority"}, "scheduling_policy", "priority"),
        ({"logprobs_mode": None}, "logprobs_mode", None),
        ({"cudagraph_capture_sizes": [1, 2]}, "compilation_config", ("FULL_AND_PIECEWISE", [1, 2])),
        ({"limit_images": 2}, "limit_mm_per_prompt", {"image": 2}),
        ({"load_format": "safetensors"}, "load_format", "safetensors"),
        ({"load_format": "dummy_dtensor"}, "load_format", "auto"),
        ({"max_model_len": 9000}, "max_model_len", 9000),
        ({"engine_kwargs__vllm__seed": 7}, "seed", 7),
        ({"engine_kwargs__vllm__swap_space": 4}, "swap_space", None),
        ({"expert_parallel_size": 2}, "enable_expert_parallel", True),
        ({"engine_kwargs__vllm__enable_expert_parallel": True}, "enable_expert_parallel", None),
        (
            {"expert_parallel_size": 2, "engine_kwargs__vllm__enable_expert_parallel": False},
            "enable_expert_parallel",
            True,
        ),
        (
            {"limit_images": 2, "engine_kwargs__vllm__limit_mm_per_prompt": {}},
            "limit_mm_per_prompt",
            {"image": 2},
        ),
        ({"quantization": "fp8"}, "load_format", "dummy"),
        ({"quantization": "fp8", "load_format": "safetensors"}, "load_format", "dummy"),
        (DRAFTING, "speculative_config", {"method": "mtp", "num_speculative_tokens": 2}),
        (
            DRAFTING | {"engine_kwargs__vllm__speculative_config": '{"num_speculative_tokens": 3}'},
            "speculative_config",
            {"method": "mtp", "num_speculative_tokens": 3},
        ),
        (DRAFTING | {"mtp__enable": False}, "speculative_config", None),
        (
            {"engine_kwargs__vllm__compilation_config": '{"level": 3}'},
            "compilation_config",
            ("FULL_AND_PIECEWISE", None),
        ),
        (
            {"engine_kwargs__vllm__compilation_config__cudagraph_mode": "NONE"},
            "compilation_config",
            ("NONE", None),
        ),
        (
            {"engine_kwargs__vllm__decode_context_parallel_size": 2},
            "compilation_config",
            ("PIECEWISE", None),
        ),
    ],
)
def test_a_setting_reaches_the_engine(given, name, expected):
    found = arguments(**given).get(name)
    if name == "compilation_config":
        found = (found["cudagraph_mode"], found.get("cudagraph_capture_sizes"))
    assert found == expected


def test_the_length_is_prompt_and_response_but_no_more_than_the_model_can():
    lengths = {"prompt_length": 1000, "response_length": 30000}
    assert arguments(**lengths)["max_model_len"] == 31000
    assert arguments(**lengths, positions=40960)["max_model_len"] == 31000
    assert arguments(**lengths, positions=4096)["max_model_len"] == 4096


def test_a_prompt_fits_a_batch_of_tokens_where_it_is_not_cut_into_chunks():
    lengths = {"prompt_length": 1000, "response_length": 30000}
    assert arguments(**lengths)["max_num_batched_tokens"] == 8192
    assert arguments(**lengths, enable_chunked_prefill=False)["max_num_batched_tokens"] == 31000
    assert arguments("cpu", **lengths)["max_num_batched_tokens"] == 31000


def test_a_cpu_has_one_place_and_no_chunks():
    made = arguments("cpu", enable_chunked_prefill=True)
    assert (made["tensor_parallel_size"], made["enable_chunked_prefill"]) == (1, False)


def test_fp8_is_of_every_linear_layer_but_the_routers():
    made = arguments(quantization="fp8", layers=2)
    assert made["quantization"] == "fp8"
    blocks = made["hf_overrides"]["quantization_config"]
    assert blocks["weight_block_size"] == [128, 128]
    assert blocks["ignored_layers"] == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]


def test_a_cpu_spreads_no_experts():
    assert "enable_expert_parallel" not in arguments("cpu", expert_parallel_size=2)
    assert "enable_expert_parallel" not in arguments()


def test_an_engine_sleeps_only_beside_the_trainer():
    assert "enable_sleep_mode" not in arguments()
    assert arguments(shared=True)["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in arguments("cpu", shared=True)


def test_each_engine_has_its_own_seed():
    assert [arguments(index=index)["seed"] for index in (0, 1)] == [42, 43]


@pytest.mark.parametrize("text", ["{level: 3}", "[1]"])
def test_a_compilation_config_that_is_no_json_object_is_named(text):
    with pytest.raises(UserError, match=rf"{SECTION}.compilation_config="):
        arguments(engine_kwargs__vllm__compilation_config=text)


@pytest.mark.parametrize(("device", "invariant"), [("cuda", {"VLLM_BATCH_INVARIANT": "1"}), ("cpu", {})])
def test_full_determinism_is_the_engine_process_s_environment(device, invariant):
    verl = compose_pinned({f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.full_determinism": True})
    seeds = {"VERL_FULL_DETERMINISM": "1", "VERL_SEED": "44", "PYTHONHASHSEED": "44"}
    assert engine_environment(verl, device, 2) == seeds | invariant
    verl["actor_rollout_ref"]["rollout"]["full_determinism"] = False
    assert engine_environment(verl, device) == {}


def test_the_engine_s_processes_are_told_that_they_quantize():
    verl = compose_pinned({f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.quantization": "fp8"})
    assert engine_environment(verl, "cuda") == {"VERL_VLLM_FP8_QUANT_ENABLED": "1"}


# -- against veRL's own server --------------------------------------------------------------------


def of_stock(verl):
    """(vLLM's arguments, the model's configuration) as veRL's server makes them for its second engine."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from vllm import AsyncEngineArgs

    section = OmegaConf.create(verl).actor_rollout_ref
    server = object.__new__(vLLMHttpServer)
    server.config, server.model_config = map(omega_conf_to_dataclass, (section.rollout, section.model))
    server.replica_rank, server.node_rank, server.nnodes, server.gpus_per_node = 1, 0, 1, 1
    server.workers, server._disaggregation_role = [], "null"
    server.profiler_controller = SimpleNamespace(check_enable=lambda: False)
    caught = []

    async def run_server(given):
        caught.append(AsyncEngineArgs.from_cli_args(given))

    server.run_server = run_server
    server._validate_configs()
    asyncio.run(server.launch_server())
    return caught[0], server.model_config


@pytest.mark.verl
def test_vllm_gets_what_stock_verl_gives_it(toy):
    from explorer_job import verl_config

    from trinity_compat.explorer.engine.vllm import engine_args

    verl = verl_config(
        toy,
        *("data.max_prompt_length=48", "data.max_response_length=8"),
        f"{ROLLOUT}.enable_chunked_prefill=True",
        f"{ROLLOUT}.enable_sleep_mode=True",  # back to what the CPU's profile has changed
        f"{ROLLOUT}.load_format=dummy",
        f"{ROLLOUT}.cudagraph_capture_sizes=[1,2]",
        f"{ROLLOUT}.scheduling_policy=priority",
        f"{ROLLOUT}.disable_log_stats=False",
        f"{ROLLOUT}.enable_prefix_caching=False",
        f"+{ROLLOUT}.limit_images=2",
        "actor_rollout_ref.model.lora_rank=9",
        f"+{SECTION}.block_size=32",
        f"+{SECTION}.hf_overrides.a=3",
        f"+{SECTION}.compilation_config.max_cudagraph_capture_size=2",
        f"+{SECTION}.structured_outputs_config.backend=xgrammar",
    )
    stock, model = of_stock(verl)
    made = engine_arguments(verl, model_path=model.local_path, device="cuda", index=1, positions=512)
    assert differing(stock, engine_args(made, "mp")) == MEANT


def differing(stock, ours):
    """Field → (stock's value, ours), where they are not the same."""
    return {
        field.name: (getattr(stock, field.name), getattr(ours, field.name))
        for field in dataclasses.fields(stock)
        if str(getattr(stock, field.name)) != str(getattr(ours, field.name))
    }


@pytest.mark.verl
def test_a_quantized_engine_with_spread_experts_that_drafts_is_stock_s_too(toy, monkeypatch):
    """And it begins as stock's does, with no weights of its own."""
    from explorer_job import verl_config
    from verl.workers.rollout.vllm_rollout import vllm_async_server

    from trinity_compat.explorer.engine.vllm import engine_args

    monkeypatch.setenv("VERL_VLLM_FP8_QUANT_ENABLED", "0")  # what stock sets is undone after the test
    monkeypatch.setattr(vllm_async_server, "apply_vllm_quant_patches", lambda: None)
    verl = verl_config(
        toy,
        *("data.max_prompt_length=48", "data.max_response_length=8"),
        f"{ROLLOUT}.enable_chunked_prefill=True",
        f"{ROLLOUT}.enable_sleep_mode=True",
        f"{ROLLOUT}.load_format=dummy",
        f"+{ROLLOUT}.quantization=fp8",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.expert_parallel_size=2",
        "actor_rollout_ref.model.mtp.enable=True",
        "actor_rollout_ref.model.mtp.enable_rollout=True",
        f"+{SECTION}.speculative_config.num_speculative_tokens=3",
    )
    stock, model = of_stock(verl)
    made = engine_arguments(
        verl,
        model_path=model.local_path,
        device="cuda",
        index=1,
        positions=512,
        layers=model.hf_config.num_hidden_layers,
    )
    meant = {name: values for name, values in MEANT.items() if name != "load_format"}
    assert differing(stock, engine_args(made, "mp")) == meant
    assert (stock.quantization, stock.enable_expert_parallel) == ("fp8", True)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scheduling_policy": "lifo"}, "--scheduling-policy: invalid choice: 'lifo'"),
        ({"max_num_seqs": "many"}, "--max-num-seqs: invalid int value: 'many'"),
    ],
)
def test_a_value_that_vllm_refuses_is_named(given, said):
    from trinity_compat.explorer.engine.vllm import engine_args

    with pytest.raises(UserError, match=said):
        engine_args(arguments() | given, "uni")
