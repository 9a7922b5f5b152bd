"""LoRA adapters of a model that sees, handed to vLLM beside images, against transformers with the adapter
merged in by PEFT. One of its vision tower as well travels merged."""

import asyncio
import io
from dataclasses import replace

import pytest
import torch
from explorer_job import verl_config
from omegaconf import OmegaConf
from PIL import Image
from vision_toy import COLOURS, make_vision_toy, square

from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.vllm import GenerationRequest
from trinity_compat.explorer.rollout.worker import arguments_for, make_engine
from trinity_compat.job.lora import MERGE
from trinity_compat.synchronizer.adapters import as_version, beside_language_model
from trinity_compat.synchronizer.transports.files import write_file

pytestmark = pytest.mark.runtime

MODEL = "actor_rollout_ref.model"
SPARED = f'{MODEL}.exclude_modules=".*visual.*"'  # as in veRL's own launch, run_qwen2_5_vl-7b_lora.sh
PROMPT = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what {}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_vision_toy(tmp_path_factory.mktemp("vision"), warm_steps=20)


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


def opened(toy, *words):
    """(configuration, veRL's view of the model)."""
    from verl.utils.config import omega_conf_to_dataclass

    tree = verl_config(toy, f"{MODEL}.lora_rank=4", f"{MODEL}.lora_alpha=8", *words)
    config = OmegaConf.create(tree)
    return config, omega_conf_to_dataclass(config.actor_rollout_ref.model)


@pytest.fixture(scope="module")
def engine(toy, loop):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            ("TORCH_COMPILE_DISABLE", "1"),
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ):
            patch.setenv(name, value)
        made = make_engine(*opened(toy, SPARED), "cpu", 0)
        loop.run(made.start())
        yield made


def transformers_model(toy):
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(toy / "model", dtype=torch.float32).eval()


def adapted(toy, seed, targets="all-linear", **more):
    """(adapter as a version, transformers' model with it merged in); B is not zero."""
    from peft import LoraConfig, get_peft_model
    from peft.utils.save_and_load import get_peft_model_state_dict

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False, **more)
    model = get_peft_model(transformers_model(toy), config)
    adapter = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    return list(as_version(adapter.items(), model.peft_config["default"].to_dict())), model.merge_and_unload()


def images():
    return [Image.open(io.BytesIO(square(colour, index))) for index, colour in enumerate(COLOURS.values())]


def asked(loop, engine, processor, tag):
    """[(image, number, completion)]: two answers to each image."""
    sampling = {"n": 2, "temperature": 1.0, "max_tokens": 6}
    ids = [processor.tokenizer(PROMPT.format(number))["input_ids"] for number in range(4)]
    requests = [
        GenerationRequest(f"{tag}{number}", ids[number], {**sampling, "seed": number}, {"image": [image]})
        for number, image in enumerate(images())
    ]

    async def go():
        return [await future for future in await engine.submit(requests)]

    answers = loop.run(go())
    return [
        (image, number, part)
        for number, (image, parts) in enumerate(zip(images(), answers, strict=True))
        for part in parts
    ]


def distance(model, processor, answers):
    """Largest difference between the engine's log-probabilities and those of transformers' ``model``."""
    return max(apart(model, processor, *answer) for answer in answers)


def apart(model, processor, image, number, part):
    inputs = processor(images=[image], text=[PROMPT.format(number)], return_tensors="pt")
    prompt, answer = inputs["input_ids"], torch.tensor([part.token_ids])
    inputs["input_ids"] = torch.cat([prompt, answer], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        types = inputs["mm_token_type_ids"]
        inputs["mm_token_type_ids"] = torch.cat([types, torch.zeros_like(answer)], 1)
    with torch.no_grad():
        logits = model(**inputs).logits[0, prompt.shape[1] - 1 : -1]
    logits[:, len(processor.tokenizer) :] = -torch.inf
    logits[:, [processor.image_token_id, processor.video_token_id]] = -torch.inf  # never sampled
    own = logits.log_softmax(-1).gather(1, answer[0][:, None])[:, 0]
    return (own - torch.tensor(part.logprobs)).abs().max().item()


def test_an_adapter_of_the_language_model_is_in_place_beside_images(toy, loop, engine, tmp_path):
    _, model = opened(toy)
    processor, base = model.processor, transformers_model(toy)
    assert distance(base, processor, asked(loop, engine, processor, "base")) < 1e-4  # version 0
    for number in (1, 2):
        version, merged = adapted(toy, number, exclude_modules=".*visual.*")
        file = write_file(tmp_path, number, version)
        loop.run(engine.load(file))
        answers = asked(loop, engine, processor, f"v{number}")
        assert distance(merged, processor, answers) < 1e-4
        assert distance(base, processor, answers) > 1e-2, "the adapter must be visible"
        assert file.nbytes < sum(part.nbytes for part in base.state_dict().values()) / 4


def test_what_the_engine_would_leave_out_is_refused_by_name(toy, loop, engine, tmp_path):
    version, _ = adapted(toy, 3)
    with pytest.raises(RunError, match=r"no place for the adapter's visual.*lora\.merge=True"):
        loop.run(engine.load(write_file(tmp_path, 3, version)))


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ((), "visual"),
        ((SPARED,), ""),
        ((f"{MODEL}.target_modules=[q_proj,v_proj]",), ""),
        ((f"{MODEL}.target_modules=[q_proj,qkv]",), "visual"),
        ((f"{MODEL}.target_modules=[q_proj,qkv]", SPARED), ""),
    ],
)
def test_an_adapter_with_parts_in_the_vision_tower_travels_merged(toy, words, beside):
    config, model = opened(toy, *words)
    found = beside_language_model(model)
    assert beside in found and bool(found) == bool(beside)
    given = arguments_for(config, model, "cpu", 0)
    assert ("enable_lora" in given) == (not beside)


def test_a_launch_that_asks_for_whole_models_gets_them(toy):
    assert "enable_lora" not in arguments_for(*opened(toy, SPARED, f"{MERGE}=True"), "cpu", 0)


def test_an_adapter_of_the_user_s_own_is_read_for_what_it_adapts(toy, tmp_path):
    from peft import LoraConfig

    _, model = opened(toy)
    for targets, beside in ((["q_proj"], ""), (["qkv"], "visual")):
        LoraConfig(r=4, target_modules=targets).save_pretrained(tmp_path)
        found = beside_language_model(replace(model, lora_adapter_path=str(tmp_path)))
        assert beside in found and bool(found) == bool(beside)
