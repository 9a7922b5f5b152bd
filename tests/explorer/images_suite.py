"""A prompt with images, from the data file to the train batch, beside what stock veRL makes of the same row.

The engine is a script in both; everything else is real: veRL's dataset and agent loop, the buffer, the
trainer's batch.
"""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from explorer_job import verl_config
from hearing_toy import RATE, make_hearing_toy
from omegaconf import OmegaConf
from vision_toy import VIDEO, make_vision_toy

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.data.tasks import train_stream
from trinity_compat.explorer.engine import media_tokens
from trinity_compat.explorer.engine.media_tokens import placeholders, takes_audio
from trinity_compat.explorer.engine.trajectory import RolloutResult, RolloutTask
from trinity_compat.explorer.engine.vllm import AsyncEngine, Completion, EngineConfig, InProcessEngine
from trinity_compat.explorer.rewards.scoring import Score
from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
from trinity_compat.synchronizer.transports.files import WeightFile

pytestmark = pytest.mark.runtime

ANSWERS = [[65, 66, 67, 258], [70, 258]]  # 258 is <|im_end|>
ROWS = {"one image": 0, "no image": 2, "two images": 3, "a video": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Configuration, tokenizer and processor of the vision toy."""
    toy = make_vision_toy(tmp_path_factory.mktemp("vision"), images=(1, 1, 0, 2, VIDEO), warm_steps=0)
    return opened(toy)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    """The same of one that hears."""
    return opened(make_hearing_toy(tmp_path_factory.mktemp("hearing") / "toy"))


def opened(toy):
    from verl.utils import hf_processor, hf_tokenizer

    config = OmegaConf.create(
        verl_config(toy, "data.shuffle=False", "data.max_prompt_length=96", "data.max_response_length=8")
    )
    path = str(toy / "model")
    return SimpleNamespace(config=config, tokenizer=hf_tokenizer(path), processor=hf_processor(path))


class Recorded:
    """Answers by place, and remembers what it was asked."""

    def __init__(self):
        self.requests, self.asked = [], []

    async def submit(self, requests):
        self.requests += requests
        futures = []
        for number in range(len(self.requests) - len(requests), len(self.requests)):
            ids = ANSWERS[number % len(ANSWERS)]
            futures.append(asyncio.get_running_loop().create_future())
            futures[-1].set_result([Completion(ids, [-0.5] * len(ids), "stop")])
        return futures

    async def generate(self, request_id, *, prompt_ids, sampling_params, **media):
        """As veRL's client."""
        from verl.workers.rollout.replica import TokenOutput

        ids = ANSWERS[len(self.asked) % len(ANSWERS)]
        self.asked.append((prompt_ids, media))
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed")


def verls(made, row):
    """(batch, requests) that veRL's own worker makes of a row of the data file."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.trainer.ppo.utils import create_rl_dataset

    data = made.config.data
    dataset = create_rl_dataset(data.train_files, data, made.tokenizer, made.processor, is_train=True)
    fields = {name: value for name, value in dataset[row].items() if name != "dummy_tensor"}

    async def go():
        client = Recorded()
        worker = AgentLoopWorker(made.config, client)
        about = {"step": 0, "sample_index": row, "rollout_n": 0, "validate": False}
        outputs = [
            await worker._run_agent_loop({}, about, agent_name="single_turn_agent", trace=False, **fields)
            for _ in ANSWERS
        ]
        return worker._postprocess(outputs), client.asked

    return asyncio.run(go())


class Half:
    async def group(self, task, parts):
        return [Score(0.5, {}) for _ in parts]


def ours(made, row, folder):
    """(batch, requests, group) through explorer, buffer and trainer."""
    from trinity_compat.trainer.batch import BatchShape, task_columns, to_dataproto
    from trinity_compat.trainer.multi_modal import MultiModal

    stream = train_stream(made.config, made.tokenizer, made.processor)
    job = RolloutTask(row, stream.task(row), len(ANSWERS), {"temperature": 1.0})
    engine = Recorded()

    async def go():
        loops = AgentLoops(made.config, engine, made.processor)
        one = replace(job, n=1)  # one after the other: which answer is whose must not depend on threads
        rollout = RolloutResult(row, tuple([part for _ in ANSWERS for part in await loops.run(one)]))
        maker = GroupBuilder(None, Half(), made.tokenizer, placeholders=placeholders(made.processor))
        return await maker._score(SimpleNamespace(kind="train", step_of=lambda _: 1), job, rollout, 0, 1)

    group = asyncio.run(go())
    buffer = open_buffer(f"sqlite:///{folder}/experiences.db")
    buffer.put_groups([group])
    (claimed,) = buffer.claim_groups(1, owner="t", step=1).groups
    buffer.close()
    rollout = made.config.actor_rollout_ref.rollout
    shape = BatchShape(rollout.prompt_length, rollout.response_length, made.tokenizer.pad_token_id)
    batch = to_dataproto(claimed.experiences, shape)
    MultiModal(made.config, made.tokenizer, made.processor).add(batch, [claimed.task] * len(ANSWERS))
    batch.non_tensor_batch |= task_columns([claimed] * len(ANSWERS))
    return batch, engine.requests, claimed


@pytest.fixture(params=list(ROWS), scope="module")
def both(request, made, tmp_path_factory):
    row = ROWS[request.param]
    return row, verls(made, row), ours(made, row, tmp_path_factory.mktemp("buffer"))


def test_the_train_batch_is_verls(both):
    _, (theirs, _), (batch, _, _) = both
    check_columns(batch, theirs)
    assert batch.batch["position_ids"].shape[1] == 4


def check_columns(batch, theirs):
    for name in theirs.batch.keys():  # noqa: SIM118 (a TensorDict iterates over rows)
        assert batch.batch[name].dtype == theirs.batch[name].dtype, name
        assert torch.equal(batch.batch[name], theirs.batch[name]), name


def test_pixels_and_grids_are_verls(both):
    row, (theirs, _), (batch, _, _) = both
    for mine in check_media(batch, theirs):
        assert ("pixel_values" in mine) == (row in (0, 3))
        assert ("pixel_values_videos" in mine) == (row == 4)


def check_media(batch, theirs):
    """The trainer's inputs beside the tokens, by answer."""
    pairs = zip(
        batch.non_tensor_batch["multi_modal_inputs"],
        theirs.non_tensor_batch["multi_modal_inputs"],
        strict=True,
    )
    for mine, stock in pairs:
        assert mine.keys() == stock.keys()
        for name in stock:
            assert mine[name].dtype == stock[name].dtype
            assert torch.equal(mine[name], stock[name]), name
    return batch.non_tensor_batch["multi_modal_inputs"]


@pytest.mark.parametrize(("frames", "same"), [(2, True), (4, False)])
def test_stock_positions_in_a_video_are_vllms_up_to_two_frames(made, frames, same):
    """Of Qwen2.5-VL, as docs/explorer.md says; where they come to agree, tests/faults/test_vision_run.py may
    train on longer videos."""
    from trinity_compat.trainer.multi_modal import _Worker

    processor, steps = made.processor, frames // 2
    pads = [processor.video_token_id] * (4 * steps)
    ids = torch.tensor([[1, *pads, 2, 65, 66]])
    inputs = {"video_grid_thw": torch.tensor([[steps, 4, 4]]), "mm_token_type_ids": ids}
    worker = _Worker(made.config.data, made.tokenizer, processor)
    trained = worker.positions(ids, torch.ones_like(ids), inputs)[0, 1:]
    # vLLM's parser drops a Qwen2.5-VL's metadata, and the processor takes 24 frames a second then
    rolled = positions_of_vllm(processor.config, ids[0].tolist(), steps, seconds=2 / 24)
    assert torch.equal(trained, rolled) is same


def positions_of_vllm(config, ids, steps, seconds):
    """int64 [3, P]."""
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration as Model

    data = {"video_grid_thw": torch.tensor([steps, 4, 4]), "second_per_grid_ts": torch.tensor(seconds)}
    video = SimpleNamespace(
        modality="video",
        mm_position=SimpleNamespace(offset=1),
        data={name: SimpleNamespace(data=value) for name, value in data.items()},
    )
    model = SimpleNamespace(config=config)
    model.iter_mm_grid_thw = lambda features: Model.iter_mm_grid_thw(model, features)
    return Model.get_mrope_input_positions(model, ids, [video])[0]


def test_a_sound_goes_the_way_that_it_goes_under_verl(hearing, tmp_path):
    theirs, asked = verls(hearing, 1)
    batch, requests, group = ours(hearing, 1, tmp_path)
    check_columns(batch, theirs)
    for mine in check_media(batch, theirs):
        assert mine["input_features"].shape == (1, 30, 128)  # 0.3 s, a frame each 10 ms
    begin, sound, end = hearing.tokenizer.convert_tokens_to_ids(["<|audio>", "<|audio|>", "<audio|>"])
    for (ids, media), request in zip(asked, requests, strict=True):
        assert ids.count(sound) == 8  # a token for 40 ms
        first = ids.index(begin)
        # vLLM writes the run and its ends; veRL passes all of them on (media_tokens.collapse_placeholders)
        mine = request.prompt["prompt_token_ids"]
        assert mine == [*ids[:first], sound, *ids[ids.index(end) + 1 :]]
        assert request.prompt["multi_modal_data"] == {"audio": media["audio_data"]}
        assert (
            request.prompt["mm_processor_kwargs"] == media["mm_processor_kwargs"] == {"sampling_rate": RATE}
        )
    (part, _) = group.task["raw_prompt"][0]["content"]
    assert part["audio"].kind == "numbers"


def test_vllm_is_asked_with_the_images_and_a_placeholder_for_each(both, made):
    from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

    row, (_, asked), (_, requests, _) = both
    for (ids, media), request in zip(asked, requests, strict=True):
        prompt = request.prompt
        assert prompt["prompt_token_ids"] == qwen2_5_vl_dedup_image_tokens(ids, made.processor)
        images = prompt.get("multi_modal_data", {}).get("image", [])
        assert prompt["prompt_token_ids"].count(made.processor.image_token_id) == len(images)
        for mine, stock in zip(images, media["image_data"] or [], strict=True):
            assert np.array_equal(np.asarray(mine), np.asarray(stock))
        videos = prompt.get("multi_modal_data", {}).get("video", [])
        assert prompt["prompt_token_ids"].count(made.processor.video_token_id) == len(videos) == (row == 4)
        for (mine, about), (stock, stocks) in zip(videos, media["video_data"] or [], strict=True):
            assert torch.equal(mine, stock) and mine.shape == (4, 3, 56, 56)  # frames come in pairs
            assert about == stocks


def test_the_prompts_text_shows_an_image_as_one_placeholder(both):
    row, _, (_, _, group) = both
    count = {0: (1, 0), 2: (0, 0), 3: (2, 0), 4: (0, 1)}[row]
    for experience in group.experiences:
        text = experience.prompt_text
        assert (text.count("<|image_pad|>"), text.count("<|video_pad|>")) == count
        assert experience.prompt_text.count(f"what {row}") == 1


def test_a_reward_function_gets_the_images_that_verl_would_give_it(made):
    from PIL import Image

    from trinity_compat.explorer.engine.trajectory import Trajectory
    from trinity_compat.explorer.rewards.scoring import to_dataproto

    task = train_stream(made.config, made.tokenizer, made.processor).task(3)
    given = to_dataproto(task, Trajectory([1], [2], [1], [0.0]))
    content = given.non_tensor_batch["raw_prompt"][0][0]["content"]
    assert [part["type"] for part in content] == ["image", "image", "text"]
    assert all(isinstance(part["image"], Image.Image) for part in content[:2])


def test_an_image_that_a_tool_returns_is_refused(made):
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    from trinity_compat.explorer.agents.verl_loops import trajectory

    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[2],
        response_mask=[1],
        multi_modal_data={"images": [object(), object()]},
        metrics=AgentLoopMetrics(),
    )
    counts = {"images": 1, "videos": 0, "audios": 0}
    with pytest.raises(
        ValueError, match="2 images, 1 of them the prompt's: those of tools cannot be trained"
    ):
        trajectory(output, counts)


def test_images_for_a_model_without_a_processor_are_refused(made):
    with pytest.raises(UserError, match=r"row 0 of the data has images, .*; veRL found no processor"):
        train_stream(made.config, made.tokenizer, None).task(0)


def test_the_engine_never_samples_a_placeholder(made, monkeypatch):
    from trinity_compat.explorer.rollout import worker

    monkeypatch.setattr(worker, "arguments_for", lambda *_, **__: {})
    engine = worker.make_engine(made.config, made, "cpu", 0)
    assert set(engine._config.banned) == {made.processor.image_token_id, made.processor.video_token_id}


def test_nor_one_of_a_sound(hearing):
    kinds = ("image", "video", "audio")
    wanted = [getattr(hearing.processor, f"{kind}_token_id") for kind in kinds]
    assert placeholders(hearing.processor) == wanted and None not in wanted
    assert placeholders(None) == []


def test_vllm_makes_of_it_the_prompt_that_is_trained_on(hearing, tmp_path):
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.processing.context import TimingContext
    from vllm.multimodal.processing.inputs import ProcessorInputs

    from trinity_compat.explorer.engine.vllm import engine_args

    path = hearing.config.actor_rollout_ref.model.path
    sizes = {"dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 1024}
    seen = {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 1}}
    made = engine_args({"model": path, **sizes, **seen}, "uni").create_engine_config()
    processor = MULTIMODAL_REGISTRY.create_processor(made.model_config)

    def taken(request, ids):
        prompt = request.prompt
        items = processor.info.parse_mm_data(dict(prompt["multi_modal_data"]))
        given = ProcessorInputs(ids, items, hf_processor_mm_kwargs=prompt["mm_processor_kwargs"])
        return processor.apply(given, TimingContext(enabled=False))["prompt_token_ids"]

    _, requests, group = ours(hearing, 1, tmp_path)
    for request, experience in zip(requests, group.experiences, strict=True):
        trained = experience.prompt_ids.tolist()
        assert taken(request, request.prompt["prompt_token_ids"]) == trained
        assert taken(request, trained) != trained  # as stock veRL 0.9.1 asks


def test_each_image_and_sound_is_one_placeholder_token_in_a_request():
    words = {"boi": 1, "I": 2, "eoi": 3, "boa": 4, "A": 5, "eoa": 6, "x": 7}
    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda marks: [words[each] for each in marks])
    marks = {f"{end}_token": end for end in ("boi", "eoi", "boa", "eoa")}
    processor = SimpleNamespace(tokenizer=tokenizer, image_token_id=2, audio_token_id=5, **marks)

    def given(text):
        return [words[each] for each in text.split()]

    for text, one in (
        ("x boa A A A eoa x boi I I eoi x", "x A x I x"),
        ("boa A eoa boa A A eoa", "A A"),  # two sounds
        ("x boa x A A eoa", "x boa x A A eoa"),  # no run between its ends
        ("eoa boa boa A eoa eoa", "eoa boa A eoa"),
        ("x x", "x x"),
    ):
        assert media_tokens.collapse_placeholders(given(text), processor) == given(one), text
        assert media_tokens.collapse_placeholders(given(text), None) == given(text)


def test_only_a_model_with_a_part_for_sounds_hears(hearing, made):
    assert not takes_audio(made.processor) and not takes_audio(None)
    processor = SimpleNamespace(audio_token_id=7, config=SimpleNamespace(audio_config=None))
    assert not takes_audio(processor)  # as the larger ones of Gemma 4
    assert takes_audio(hearing.processor)


def test_sounds_of_several_lengths_become_one_tensor_and_are_heard_as_alone():
    from transformers import Gemma4AudioConfig, Gemma4AudioModel
    from verl.utils.model import extract_multi_modal_inputs

    from trinity_compat.trainer.multi_modal import level

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 16}
    tower = Gemma4AudioModel(Gemma4AudioConfig(**sizes, subsampling_conv_channels=[128, 4])).eval()
    rows = [
        {"input_features": torch.randn(1, frames, 128), "input_features_mask": torch.ones(1, frames).bool()}
        for frames in (30, 17, 44)
    ]
    before = [dict(row) for row in rows]
    rows.insert(1, {})  # a prompt without a sound
    level(rows)
    together = extract_multi_modal_inputs(rows)
    assert together["input_features"].shape == (3, 44, 128)
    with torch.no_grad():
        heard = tower(together["input_features"], together["input_features_mask"])
        for index, alone in enumerate(before):
            own = tower(alone["input_features"], alone["input_features_mask"])
            mine = heard.last_hidden_state[index][heard.attention_mask[index]]
            assert torch.allclose(mine, own.last_hidden_state[own.attention_mask], atol=1e-5)


class Noted:
    """Stands for vLLM's engine: remembers which of its methods were called."""

    def __init__(self, asynchronous):
        self.asynchronous, self.calls = asynchronous, []

    def __getattr__(self, name):
        def called(*_, **__):
            self.calls.append(name)
            return later() if self.asynchronous else []

        async def later():
            return []

        return called


@pytest.mark.parametrize("kind", [InProcessEngine, AsyncEngine])
def test_new_weights_make_the_engine_look_at_an_image_again(kind):
    engine = kind(EngineConfig(arguments={}, vocabulary=1))
    engine._engine = Noted(kind is AsyncEngine)
    asyncio.run(engine.load(WeightFile("", "", 0)))
    assert "reset_encoder_cache" in engine._engine.calls
    assert engine._engine.calls.index("reset_prefix_cache") > engine._engine.calls.index("collective_rpc")
