"""Teachers without an engine: bodies of requests, routing, servers that fail; a launch's teachers."""

import asyncio
import io
import json
import os
from dataclasses import replace

import aiohttp
import numpy as np
import pytest
import torch
from aiohttp import web
from explorer_job import job, verl_config
from omegaconf import OmegaConf
from PIL import Image

from trinity_compat.buffer.media import Media
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.engine.vllm import Completion, EngineDied, PromptTop
from trinity_compat.explorer.served.server import free_port
from trinity_compat.explorer.teachers import address
from trinity_compat.explorer.teachers.arguments import Distillation, Teacher, distillation, teacher_arguments
from trinity_compat.explorer.teachers.child import TeacherServer
from trinity_compat.explorer.teachers.client import TeacherClient, connected
from trinity_compat.explorer.teachers.media import PromptMedia, PromptReader
from trinity_compat.explorer.teachers.wire import ScoreRequest, TeacherRows

verl = pytest.mark.verl
PART = Trajectory([1, 2, 3], [4, 5], [1, 1], [0.0, 0.0])
TASK = {"index": 7, "data_source": "sort"}
KEY = "the key of this start"


def array(kind, *rows):
    return np.array(rows, kind)


@pytest.mark.parametrize("ids", [None, array(np.int32, [1, 2], [3, 4], [5, 6])])
def test_rows_come_back_as_they_were_sent(ids):
    logprobs = array(np.float32, [-0.1, -np.inf], [-1e-30, -2.0], [0.0, -3.3])
    sent = TeacherRows(ids, logprobs if ids is not None else logprobs[:, :1])
    found = TeacherRows.decode(sent.encode())
    assert found.logprobs.dtype == np.float32 and np.array_equal(found.logprobs, sent.logprobs)
    assert (found.ids is None) == (ids is None) and (ids is None or np.array_equal(found.ids, ids))


def test_a_request_comes_back_as_it_was_sent():
    found = ScoreRequest.decode(ScoreRequest(np.array([5, 1 << 30, 0]), 2, 64).encode())
    assert found.token_ids.dtype == np.int32 and found.token_ids.tolist() == [5, 1 << 30, 0]
    assert (found.rows, found.top) == (2, 64)


def shown():
    """Media of a prompt by vLLM's kinds, as veRL's loop hands them over."""
    pixels = np.arange(60 * 90 * 3, dtype=np.uint8).reshape(90, 60, 3)
    frames = torch.arange(2 * 3 * 28 * 28, dtype=torch.float32).reshape(2, 3, 28, 28)
    about = {"fps": 2.0, "frames_indices": torch.tensor([0, 5]), "video_backend": "torchcodec"}
    return {
        "image": [Image.fromarray(pixels), Image.fromarray(pixels[..., 0]), Image.fromarray(pixels)],
        "video": [(frames, about)],
        "audio": [np.linspace(0, 1, 4000), [0.5, -0.25], (np.zeros(3, np.float32), 16_000)],
    }


def test_media_come_back_as_they_were_sent():
    sent = PromptMedia.encode(shown(), {"sampling_rate": 16_000})
    request = ScoreRequest.decode(ScoreRequest(np.array([5, 6]), 1, 0, sent).encode())
    assert request.token_ids.tolist() == [5, 6]
    (found, kwargs), before = request.media.decode(), shown()
    assert kwargs == {"sampling_rate": 16_000} and [*found] == [*before]
    for mine, given in zip(found["image"], before["image"], strict=True):
        assert mine.mode == given.mode and np.array_equal(np.asarray(mine), np.asarray(given))
    ((frames, about),) = found["video"]
    ((right, abouts),) = before["video"]
    assert torch.equal(frames, right) and frames.dtype == right.dtype
    assert torch.equal(about.pop("frames_indices"), abouts.pop("frames_indices")) and about == abouts
    array, samples, (short, rate) = found["audio"]
    assert np.array_equal(array, before["audio"][0]) and (samples, rate) == ([0.5, -0.25], 16_000)
    assert np.array_equal(short, np.zeros(3)) and short.dtype == np.float32


class Trap:
    """Ends the test's process where it is unpickled."""

    def __reduce__(self):
        return os._exit, (66,)


def pickled():
    out = io.BytesIO()
    np.save(out, np.array([Trap()], object), allow_pickle=True)
    return out.getvalue()


def damaged(data, kind="image"):
    """Media with one part of these bytes."""
    made = Media(data, kind)
    text = json.dumps({"items": [{"type": "image", "of": [made.reference]}], "kwargs": {}})
    return PromptMedia(text, {made.digest: data})


WRONG = {
    "no image": (damaged(b"no image"), "cannot identify image file"),
    "a pickle": (damaged(pickled(), "array"), "allow_pickle=False"),
    "a part that is missing": (replace(damaged(b""), parts={}), "KeyError"),
    "another tree": (PromptMedia("[]", {}), "media that cannot be read"),
    "an unknown type": (PromptMedia('{"__typed__": [1, "os.system", "true"]}', {}), "os.system"),
}


@pytest.mark.parametrize("name", WRONG)
def test_media_that_cannot_be_read_are_refused(name):
    media, message = WRONG[name]
    engine = Scripted()

    async def go():
        _, address, end = await serving(engine)
        try:
            await with_client(teachers("a"), [[address]], lambda client: client.score(TASK, PART, media))
        finally:
            await end()

    with pytest.raises(RunError, match="refused the task with index 7") as told:
        asyncio.run(go())
    assert message in str(told.value) and engine.most == 0


@pytest.mark.parametrize(
    ("processor", "content"), [(None, [{"type": "image", "image": "a.png"}]), ("the policy's", "text alone")]
)
def test_no_media_are_read_without_a_processor_and_of_text_alone(processor, content):
    task = {"raw_prompt": [{"role": "user", "content": content}]}
    assert asyncio.run(PromptReader(OmegaConf.create({}), processor).read(task)) is None


def test_answers_to_one_prompt_are_requests_of_their_own_with_its_media():
    engine = Scripted()
    parts = [Trajectory([1, 2], [token], [1], [0.0]) for token in range(20, 28)]
    media = PromptMedia.encode(shown(), {"sampling_rate": 16_000})

    async def go():
        _, address, end = await serving(engine)

        async def ask(client):
            return await asyncio.gather(*(client.score(TASK, part, media) for part in parts))

        rows = await with_client(teachers("a"), [[address]], ask)
        await end()
        return rows

    rows = asyncio.run(go())
    assert [-each.logprobs.item() for each in rows] == [part.response_ids[0] for part in parts]
    assert len({request.request_id for request in engine.asked}) == len(parts)
    for request in engine.asked:
        assert [len(each) for each in request.media.values()] == [3, 1, 3]
        assert request.processor_kwargs == {"sampling_rate": 16_000}


def body(header, ids=()):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + np.array(ids, "<i4").tobytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (b"", "header of 0 bytes"),
        (b"\xff\xff\xff\xff{}", "header of 4294967295 bytes in a body of 6"),
        (body(b"\x80\x04K\x05."), "decode|Expecting"),
        (body([1]), "the header is"),
        (body({"tokens": 2, "rows": -1, "top": 0}, [1, 2]), "rows=-1"),
        (body({"tokens": 2, "rows": True, "top": 0}, [1, 2]), "rows=True"),
        (body({"tokens": 3, "rows": 1, "top": 0}, [1, 2]), "8 bytes of arrays instead of 12"),
        (body({"tokens": 2, "rows": 2, "top": 0}, [1, 2]), "2 rows of a sequence of 2 tokens"),
        (body({"tokens": 2, "rows": 0, "top": 0}, [1, 2]), "0 rows"),
        (body({"tokens": 1, "rows": 1, "top": 0, "parts": ["a"]}, [1, 2]), "parts="),
        (body({"tokens": 1, "rows": 1, "top": 0, "parts": {"a": -4}}, [1, 2]), "a=-4"),
        (
            body({"tokens": 1, "rows": 1, "top": 0, "parts": {"a": 8}}, [1, 2]),
            "8 bytes of arrays instead of 12",
        ),
    ],
)
def test_another_body_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ScoreRequest.decode(wrong)


def teachers(*keys, top=0, servers=1, seqs=8):
    made = tuple(Teacher(key, f"/{key}", servers, 1, {"max_num_seqs": seqs}) for key in keys)
    return Distillation(made, "data_source", top)


class Scripted:
    """An engine whose rows are the tokens' negative values; it refuses token 13 and dies of token 99."""

    def __init__(self):
        self.under_way = self.most = 0
        self.asked = []

    async def submit(self, requests):
        (request,) = requests
        self.asked.append(request)
        if 13 in request.prompt_ids:
            raise ValueError("Token id 13 is out of vocabulary")
        return [asyncio.ensure_future(self.answer(request))]

    async def answer(self, request):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.05)
        self.under_way -= 1
        if 99 in request.prompt_ids:
            raise EngineDied("vLLM: out of memory")
        own = np.array(request.prompt_ids[-request.prompt_rows :], np.int32)[:, None]
        ids = own + np.arange(max(request.sampling["prompt_logprobs"], 1), dtype=np.int32)
        return [Completion([0], [0.0], "length", prompt_top=PromptTop(ids, -ids.astype(np.float32)))]


async def serving(engine, port=0, processor=None):
    """Serve an engine; returns (its server, its address, how to end it)."""
    server = TeacherServer(engine, KEY, processor)
    runner = web.AppRunner(server.app, handler_cancellation=True)
    await runner.setup()
    port = port or free_port("127.0.0.1")
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return server, f"127.0.0.1:{port}", runner.cleanup


async def with_client(distillation, addresses, work, **options):
    client = TeacherClient(distillation, addresses.__getitem__, **{"key": KEY, **options})
    try:
        return await work(client)
    finally:
        await client.close()


@pytest.mark.parametrize("top", [0, 1, 3])
def test_an_answer_gets_a_row_for_each_response_token(top):
    async def go():
        _, address, end = await serving(Scripted())
        rows = await with_client(teachers("a", top=top), [[address]], lambda client: client.score({}, PART))
        await end()
        return rows

    rows = asyncio.run(go())
    expected = [[token + rank for rank in range(max(top, 1))] for token in PART.response_ids]
    assert (-rows.logprobs).tolist() == expected
    assert rows.ids is None if top == 0 else rows.ids.tolist() == expected


def test_a_task_goes_to_the_teacher_of_its_key_and_else_stock_s_words_are_raised():
    class Other(Scripted):
        async def answer(self, request):
            (made,) = await super().answer(request)
            top = made.prompt_top
            return [Completion([0], [0.0], "length", prompt_top=PromptTop(top.ids, top.logprobs - 100))]

    async def go():
        (_, one, end_one), (_, two, end_two) = await serving(Scripted()), await serving(Other())

        async def ask(client):
            keys = ("sort", np.array("count", object), "sing", None)
            tasks = [{**TASK, "data_source": key} for key in keys]
            return await asyncio.gather(*(client.score(task, PART) for task in tasks), return_exceptions=True)

        found = await with_client(teachers("sort", "count"), [[one], [two]], ask)
        await end_one()
        await end_two()
        return found

    sort, count, unknown, none = asyncio.run(go())
    assert sort.logprobs.tolist() == [[-4.0], [-5.0]] and count.logprobs.tolist() == [[-104.0], [-105.0]]
    assert isinstance(unknown, RunError) and isinstance(none, RunError)
    configured = r"No teacher configured for routing key 'sing'. Configured teachers: ['count', 'sort']."
    assert str(unknown) == f"the task with index 7 of data_source 'sing': {configured}"
    assert "Routing key is required for multi-teacher distillation" in str(none)


@pytest.mark.parametrize("key", ["", "another", "ключ"])
def test_a_request_without_the_key_is_refused_unread(key):
    engine = Scripted()

    async def go():
        _, address, end = await serving(engine)
        header = {} if not key else {"Authorization": f"Bearer {key}"}
        try:
            async with aiohttp.ClientSession() as session:
                posted = session.post(f"http://{address}/score", data=b"not even a body", headers=header)
                async with posted as reply:
                    assert reply.status == 401
                async with session.get(f"http://{address}/health") as reply:
                    assert reply.status == 200
            await with_client(teachers("a"), [[address]], lambda client: client.score(TASK, PART), key=key)
        finally:
            await end()

    with pytest.raises(RunError, match="the key of this server is missing") as told:
        asyncio.run(go())
    assert str(told.value).startswith("the teacher 'a' (/a) refused the task with index 7")
    assert engine.most == 0


def test_a_server_outside_of_a_start_has_no_key(monkeypatch):
    monkeypatch.delenv(address.TOKEN, raising=False)
    with pytest.raises(RunError, match=address.TOKEN):
        address.key()


def test_requests_are_spread_over_replicas_within_their_room():
    engines = [Scripted(), Scripted()]

    async def go():
        running = [await serving(engine) for engine in engines]

        async def ask(client):
            return await asyncio.gather(*(client.score(TASK, PART) for _ in range(12)))

        await with_client(teachers("a", servers=2, seqs=2), [[each for _, each, _ in running]], ask)
        for _, _, end in running:
            await end()

    asyncio.run(go())
    assert [engine.most for engine in engines] == [2, 2]


def test_a_request_without_room_has_no_copy_of_the_media_yet(monkeypatch):
    encoded, encode = [], ScoreRequest.encode
    monkeypatch.setattr(ScoreRequest, "encode", lambda self: encoded.append(self) or encode(self))

    async def go():
        _, address, end = await serving(Scripted())

        async def ask(client):
            asking = [asyncio.ensure_future(client.score(TASK, PART)) for _ in range(6)]
            for _ in range(20):
                await asyncio.sleep(0)
            early = len(encoded)
            await asyncio.gather(*asking)
            return early

        early = await with_client(teachers("a", seqs=2), [[address]], ask)
        await end()
        return early

    assert asyncio.run(go()) == 2 and len(encoded) == 6


def test_what_vllm_refuses_is_told_at_once_and_the_server_goes_on():
    async def go():
        _, address, end = await serving(Scripted())

        async def ask(client):
            with pytest.raises(RunError) as told:
                await client.score(TASK, Trajectory([1], [13], [1], [0.0]))
            await client.score(TASK, PART)
            return str(told.value)

        message = await with_client(teachers("a"), [[address]], ask)
        await end()
        return message

    refused = "the teacher 'a' (/a) refused the task with index 7 of data_source 'sort'"
    assert asyncio.run(go()) == f"{refused}: Token id 13 is out of vocabulary"


def test_a_server_that_comes_again_at_another_address_answers():
    async def go():
        server, first, end = await serving(Scripted())
        addresses = [[first]]

        async def ask(client):
            dying = asyncio.ensure_future(client.score(TASK, Trajectory([1], [99], [1], [0.0])))
            with pytest.raises(EngineDied, match="out of memory"):
                await server.ended
            await end()
            waiting = asyncio.ensure_future(client.score(TASK, PART))
            await asyncio.sleep(0.2)
            assert not waiting.done() and not dying.done()
            dying.cancel()
            _, again, end_again = await serving(Scripted())
            addresses[0] = [again]
            rows = await asyncio.wait_for(waiting, 60)
            await end_again()
            return rows

        return await with_client(teachers("a"), addresses, ask)

    assert asyncio.run(go()).logprobs.tolist() == [[-4.0], [-5.0]]


def test_a_server_that_stays_away_is_given_up():
    away = f"127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(RunError, match=rf"teacher 'a' \(/a\) did not answer at {away} for 0.1 s"):
        asyncio.run(with_client(teachers("a"), [[away]], lambda c: c.score(TASK, PART), retry_s=0.1))


def test_a_server_that_holds_a_request_is_named_by_the_watchdog():
    class Silent(Scripted):
        async def answer(self, request):
            if request.prompt_ids[0] == 50:
                await asyncio.sleep(3600)
            return await super().answer(request)

    seconds = [0.0]
    watchdog = Watchdog(30.0, clock=lambda: seconds[0])

    def passed(amount):
        for _ in range(amount):
            seconds[0] += 1.0
            watchdog.tick()
        return watchdog.look()

    async def go():
        _, address, end = await serving(Silent())

        async def ask(client):
            held = asyncio.ensure_future(client.score(TASK, Trajectory([50], [4], [1], [0.0])))
            await asyncio.sleep(0.2)
            assert passed(29) is None
            await client.score(TASK, PART)  # progress
            assert passed(29) is None
            stalled = passed(2)
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)
            assert watchdog.told() == []
            return str(stalled)

        message = await with_client(teachers("a"), [[address]], ask, watchdog=watchdog)
        await end()
        return message

    assert asyncio.run(go()).startswith("no progress for 31 s: the answers of the teacher 'a' (/a)")


def test_rows_of_other_tokens_than_the_response_s_are_an_error():
    class Shifted(Scripted):
        async def answer(self, request):
            (made,) = await super().answer(request)
            ids = np.roll(made.prompt_top.ids, 1, axis=0)
            return [Completion([0], [0.0], "length", prompt_top=PromptTop(ids, made.prompt_top.logprobs))]

    async def go():
        _, address, end = await serving(Shifted())
        try:
            await with_client(teachers("a"), [[address]], lambda client: client.score(TASK, PART))
        finally:
            await end()

    with pytest.raises(RunError, match="log-probabilities of other tokens"):
        asyncio.run(go())


SINGLE = "distillation.teacher_models.teacher_model"


def launch(toy, *words):
    loss = "distillation.distillation_loss.use_policy_gradient=True"
    return verl_config(toy, "distillation.enabled=True", "distillation.nnodes=1", loss, *words)


def named(name, key, replicas=1, tp=1):
    entry = f"+distillation.teacher_models.{name}"
    return (
        f"{entry}.key={key}",
        f"{entry}.model_path=/{name}",
        f"{entry}.num_replicas={replicas}",
        f"{entry}.inference.name=vllm",
        f"{entry}.inference.tensor_model_parallel_size={tp}",
    )


@verl
def test_a_launch_s_teacher_takes_its_pool_and_its_section(toy):
    words = ("distillation.n_gpus_per_node=4", f"{SINGLE}.model_path=/t")
    sizes = (f"{SINGLE}.inference.tensor_model_parallel_size=2", f"{SINGLE}.inference.max_model_len=3073")
    loss = ("distillation.distillation_loss.loss_mode=k1", "distillation.distillation_loss.topk=64")
    found = distillation(launch(toy, *words, *sizes, *loss))
    (teacher,) = found.teachers
    assert (found.column, found.top) == ("data_source", 0)  # k1 needs the own tokens only
    assert (teacher.path, teacher.servers, teacher.width) == ("/t", 2, 2)
    given = teacher_arguments(teacher.inference, model_path="/t", device="cuda", index=1, positions=40960)
    assert (given["tensor_parallel_size"], given["max_model_len"]) == (2, 3073)
    assert (given["load_format"], "max_logprobs" in given) == ("auto", False)
    json.dumps(given)
    assert distillation(verl_config(toy)) is None


@verl
def test_named_teachers_have_the_defaults_of_verl_s_dataclass(toy):
    section = "distillation.distillation_loss"
    loss = (f"{section}.loss_mode=forward_kl_topk", f"{section}.topk=64")
    words = (*named("one", "sort"), *named("two", "count", replicas=2), "distillation.n_gpus_per_node=3")
    found = distillation(launch(toy, *words, *loss))
    assert [(each.key, each.servers) for each in found.teachers] == [("count", 2), ("sort", 1)]
    given = teacher_arguments(
        found.teachers[1].inference, model_path="/t", device="cpu", top=64, positions=96
    )
    assert (given["max_model_len"], given["dtype"], given["max_logprobs"]) == (96, "bfloat16", 64)
    assert given["max_num_batched_tokens"] >= 96 and not given["enable_chunked_prefill"]


@verl
def test_what_stock_refuses_is_refused_in_its_words(toy):
    words = (*named("one", "sort"), *named("two", "sort"), "distillation.n_gpus_per_node=2")
    with pytest.raises(UserError, match="distillation: Duplicate teacher key sort found"):
        distillation(launch(toy, *words))


@verl
def test_an_explorer_alone_is_told_who_serves_the_teachers(toy, tmp_path, monkeypatch):
    words = (*named("one", "sort"), *named("two", "count"), "distillation.n_gpus_per_node=2")
    spec, buffer = job(tmp_path / "job", toy, "distillation.nnodes=1", "distillation.enabled=True", *words)
    monkeypatch.delenv(address.TOKEN, raising=False)

    async def connect():
        async with connected(spec.verl, buffer, lambda: None, timeout_s=60):
            pass

    with pytest.raises(UserError, match="the teachers are served by `trinity-compat run`"):
        asyncio.run(connect())
    buffer.close()


@verl
def test_a_launch_without_distillation_has_no_client(toy, tmp_path):
    spec, buffer = job(tmp_path / "job", toy)

    async def client():
        async with connected(spec.verl, buffer, lambda: None, timeout_s=60) as found:
            return found

    assert asyncio.run(client()) is None
    buffer.close()


@verl
def test_agent_loops_leave_the_teacher_to_the_explorer(toy):
    words = ("distillation.n_gpus_per_node=1", f"{SINGLE}.model_path={toy}/model")
    config = OmegaConf.create(launch(toy, *words, f"{SINGLE}.inference.tensor_model_parallel_size=1"))
    AgentLoops(config, None)
    assert config.distillation.enabled
