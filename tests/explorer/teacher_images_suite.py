"""A teacher's server, and the images, a video and sounds of the prompts: its log-probabilities are
transformers' of the same prompt, with the same media.

vLLM, the server and veRL's dataset and agent loop are real; the policy's engine is a script.
"""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from explorer_job import verl_config
from hearing_toy import make_hearing_toy
from images_suite import Recorded, opened
from test_teachers import KEY, serving
from vision_toy import CLIP, make_vision_toy, square, strengthen

from trinity_compat.buffer.media import Media, replaced
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.data.tasks import train_stream
from trinity_compat.explorer.engine.media_tokens import placeholders
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.teachers.arguments import Distillation, Teacher
from trinity_compat.explorer.teachers.child import make_engine
from trinity_compat.explorer.teachers.client import TeacherClient
from trinity_compat.explorer.teachers.media import PromptReader

pytestmark = pytest.mark.runtime

ROWS = {"one image": 0, "no image": 2, "two images": 3, "a video": 4}
TOP = 5


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
            ("TORCH_COMPILE_DISABLE", "1"),
            ("VLLM_CPU_KVCACHE_SPACE", "1"),
        ):
            patch.setenv(name, value)
        yield


class Teaching:
    """A teacher's engine behind its server's code, for the tasks of a toy's launch."""

    def __init__(self, toy, loop, **limits):
        from verl.workers.config import HFModelConfig

        self.toy, self.loop = toy, loop
        self.policy = opened(toy)
        rollout = verl_config(toy)["actor_rollout_ref"]["rollout"]
        inference = {**rollout, "dtype": "float32", "max_model_len": 128, **limits}
        model = HFModelConfig(path=str(toy / "model"))
        given = {"inference": inference, "index": 0, "top": TOP}
        self.known, self.processor = len(model.tokenizer), model.processor
        self.engine = make_engine(model, given, "cpu")
        loop.run(self.engine.start())
        self.teacher = Teacher("a", "/a", 1, 1, inference)

    def answers(self, row):
        """(task, two answers to it by veRL's agent loop)."""
        stream = train_stream(self.policy.config, self.policy.tokenizer, self.policy.processor)
        task = stream.task(row)
        loops = AgentLoops(self.policy.config, Recorded(), self.policy.processor)
        return task, self.loop.run(loops.run(RolloutTask(row, task, 2, {"temperature": 1.0})))

    def rows(self, task, parts, top=0, shown=None):
        """The teacher's rows of each of ``parts``. ``shown``: the task whose media are sent."""

        async def go():
            _, address, end = await serving(self.engine, processor=self.processor)
            reader = PromptReader(self.policy.config.data, self.policy.processor)
            teachers = Distillation((self.teacher,), "data_source", top)
            client = TeacherClient(teachers, lambda _: [address], key=KEY, reader=reader)
            try:
                media = await client.media(shown) if shown else None
                return await asyncio.gather(*(client.score(task, part, media) for part in parts))
            finally:
                await client.close()
                await end()

        return self.loop.run(go())

    def expected(self, task, part):
        """transformers' log-probabilities [R, tokens] of a response, as veRL's trainer gives it the media."""
        from transformers import AutoModelForImageTextToText

        from trinity_compat.trainer.multi_modal import MultiModal

        model = AutoModelForImageTextToText.from_pretrained(self.toy / "model", dtype=torch.float32).eval()
        prompt, ids = torch.tensor([part.prompt_ids]), torch.tensor([[*part.prompt_ids, *part.response_ids]])
        batch = SimpleNamespace(
            batch={"prompts": prompt, "input_ids": ids, "attention_mask": torch.ones_like(ids)},
            non_tensor_batch={"multi_modal_inputs": [{}]},
        )
        policy = self.policy
        MultiModal(policy.config, policy.tokenizer, policy.processor).add(batch, [task])
        (inputs,) = batch.non_tensor_batch["multi_modal_inputs"]
        inputs.pop("images_seqlens", None)
        positions = batch.batch["position_ids"]
        if positions.ndim == 3:  # Qwen2-VL's: text, time, height, width
            inputs["position_ids"] = positions.transpose(0, 1)
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0]
        logits[:, self.known :] = -torch.inf
        logits[:, placeholders(self.processor)] = -torch.inf
        return logits[len(part.prompt_ids) - 1 : -1].log_softmax(-1).numpy()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory, loop):
    toy = make_vision_toy(tmp_path_factory.mktemp("vision"), images=(1, 1, 0, 2, CLIP), warm_steps=20)
    strengthen(toy / "model", "visual")
    return Teaching(toy, loop)


def own(found, part):
    """Of the tokens of a response, float [R]."""
    return np.take_along_axis(found, np.array(part.response_ids)[:, None], 1)[:, 0]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rows_are_transformers_with_the_same_media(seeing, row):
    task, parts = seeing.answers(row)
    rows = seeing.rows(task, parts, shown=task)
    tops = seeing.rows(task, parts, TOP, shown=task)
    for part, found, top in zip(parts, rows, tops, strict=True):
        right = seeing.expected(task, part)
        np.testing.assert_allclose(found.logprobs[:, 0], own(right, part), rtol=0, atol=1e-4)
        np.testing.assert_allclose(top.logprobs, -np.sort(-right, axis=1)[:, :TOP], rtol=0, atol=1e-4)
        np.testing.assert_allclose(top.logprobs, np.take_along_axis(right, top.ids, 1), rtol=0, atol=1e-4)


def repainted(value):
    """A copy of a task with black images, which no task of the toy has."""
    if isinstance(value, Media):
        return Media(square((0, 0, 0), 0), "image")
    return replaced(value, repainted)


def test_another_image_gives_other_rows_and_so_does_none(seeing):
    task, parts = seeing.answers(0)
    right, other, none = (seeing.rows(task, parts, shown=each) for each in (task, repainted(task), None))
    for rows in zip(right, other, none, strict=True):
        one, *wrong = (each.logprobs for each in rows)
        assert min(np.abs(one - each).max() for each in wrong) > 1e-2


def test_a_teacher_hears(tmp_path, loop):
    toy = make_hearing_toy(tmp_path / "hearing", warm_steps=20)
    strengthen(toy / "model", "audio")
    sounds = {"engine_kwargs": {"vllm": {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 1}}}}
    hearing = Teaching(toy, loop, **sounds)
    task, parts = hearing.answers(1)
    heard, deaf = hearing.rows(task, parts, shown=task), hearing.rows(task, parts)
    for part, found, other in zip(parts, heard, deaf, strict=True):
        right = own(hearing.expected(task, part), part)
        np.testing.assert_allclose(found.logprobs[:, 0], right, rtol=0, atol=1e-4)
        assert np.abs(other.logprobs[:, 0] - right).max() > 1e-2
