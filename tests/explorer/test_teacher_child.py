"""Two teachers' real servers on a CPU: rows equal to transformers', by data source; refusals, and a death."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from explorer_job import verl_config
from safetensors.torch import save_file
from test_engine import changed, reference

from trinity_compat.common import python_command
from trinity_compat.common.error_text import last_error
from trinity_compat.common.errors import RunError
from trinity_compat.common.parent_watch import SUPERVISOR, die_with_parent
from trinity_compat.explorer.engine.arguments import worker_env
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.served.server import free_port
from trinity_compat.explorer.teachers import address
from trinity_compat.explorer.teachers.arguments import distillation
from trinity_compat.explorer.teachers.client import TeacherClient

pytestmark = pytest.mark.runtime

KEY = "the key of this start"
KNOWN = 259  # bytes and ChatML's marks
MODULE = "trinity_compat.explorer.teachers.child"
KEYS = ("sort", "count")  # the run's file has them in another order


class Child:
    """A server's process; ``output`` is complete once it has ended."""

    def __init__(self, teacher, top):
        self.teacher, self.top = teacher, top
        self.start()

    def start(self):
        teacher, top = self.teacher, self.top
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        given = {"path": teacher.path, "inference": teacher.inference, "index": 0, "top": top}
        words = (json.dumps(given), "cpu", *self.address.split(":"))
        env = {**os.environ, **worker_env("cpu", {}), SUPERVISOR: str(os.getpid()), address.TOKEN: KEY}
        self.process = subprocess.Popen(
            python_command.of_module(MODULE, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            preexec_fn=die_with_parent,
        )
        self.output = ""
        self.reading = threading.Thread(target=self.read, daemon=True)
        self.reading.start()

    def read(self):
        self.output = self.process.stdout.read()

    def wait(self):
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(0.2)
        self.reading.join()
        if "address already in use" in self.output:  # by another program, while the model was loaded
            self.start()
            return self.wait()
        raise AssertionError(self.output)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.reading.join()
        return self.process.wait()


def words(folders, *others):
    """Overrides of a launch with a teacher in each of ``folders``, by the key of ``KEYS``."""
    entries = []
    for key, folder in zip(KEYS, folders, strict=True):
        entry = f"+distillation.teacher_models.{key}"
        entries += [
            f"{entry}.key={key}",
            f"{entry}.model_path={folder}",
            f"{entry}.num_replicas=1",
            f"{entry}.inference.name=vllm",
            f"{entry}.inference.dtype=float32",
            f"{entry}.inference.max_model_len=64",
            # veRL's dataclass has prompts and answers of 512 each for a teacher of this kind
            f"{entry}.inference.prompt_length=48",
            f"{entry}.inference.response_length=8",
            f"{entry}.inference.max_num_seqs=8",
            f"{entry}.inference.tensor_model_parallel_size=1",
        ]
    on = ("distillation.enabled=True", "distillation.nnodes=1", "distillation.n_gpus_per_node=2")
    return (*on, *entries, *others)


LOSS = "distillation.distillation_loss"


@pytest.fixture(scope="module")
def folders(toy, tmp_path_factory):
    return model_folders(toy, tmp_path_factory)


def model_folders(toy, tmp_path_factory):
    """The toy's model, and one of other weights."""
    other = tmp_path_factory.mktemp("teacher")
    for file in (toy / "model").iterdir():
        (other / file.name).symlink_to(file)
    (other / "model.safetensors").unlink()
    save_file(changed(toy, 0.05), other / "model.safetensors", {"format": "pt"})
    return [toy / "model", other]


@pytest.fixture(scope="module")
def topk(toy, folders):
    loss = (f"{LOSS}.loss_mode=forward_kl_topk", f"{LOSS}.topk={KNOWN}", f"{LOSS}.use_policy_gradient=False")
    return distillation(verl_config(toy, *words(folders, *loss)))


@pytest.fixture(scope="module")
def children(topk):
    made = [Child(teacher, topk.top) for teacher in topk.teachers]
    try:
        yield [child.wait() for child in made]
    finally:
        for child in made:
            child.end()


def answers():
    """Prompts and responses of different lengths, from two tokens in all."""
    for seed, (prompt, response) in enumerate([(1, 1), (3, 5), (7, 1), (1, 9), (20, 12), (40, 8)]):
        draw = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, KNOWN, (prompt + response,), generator=draw).tolist()
        yield Trajectory(ids[:prompt], ids[prompt:], [1] * response, [0.0] * response)


def expected(toy, weights, part):
    """transformers' log-probabilities [R, known tokens] in place of the response's tokens."""
    model = reference(toy, weights)
    with torch.no_grad():
        logits = model(torch.tensor([[*part.prompt_ids, *part.response_ids]])).logits[0]
    return logits[len(part.prompt_ids) - 1 : -1, :KNOWN].log_softmax(-1).numpy()


def ask(found, children, *requests, **options):
    async def go():
        client = TeacherClient(found, lambda place: [children[place].address], key=KEY, **options)
        try:
            return await asyncio.gather(
                *(client.score({"data_source": key}, part) for key, part in requests), return_exceptions=True
            )
        finally:
            await client.close()

    return asyncio.run(go())


@pytest.mark.parametrize("top", [0, 1, 5, KNOWN])
def test_rows_are_each_teacher_s_own_by_transformers(toy, folders, topk, children, top):
    parts = [*answers()]
    requests = [(key, part) for key in KEYS for part in parts]
    rows = ask(replace(topk, top=top), children, *requests)
    weights = [changed(toy, scale) for scale in (0.0, 0.05)]
    for (key, part), found in zip(requests, rows, strict=True):
        right = expected(toy, weights[KEYS.index(key)], part)
        if top == 0:
            assert found.ids is None
            ids = np.array(part.response_ids)[:, None]
        else:
            ids = found.ids
            highest = -np.sort(-right, axis=1)[:, :top]
            np.testing.assert_allclose(found.logprobs, highest, rtol=0, atol=1e-5)
        assert found.logprobs.shape == (len(part.response_ids), max(top, 1))
        np.testing.assert_allclose(found.logprobs, np.take_along_axis(right, ids, 1), rtol=0, atol=1e-5)


def test_what_vllm_refuses_is_told_in_its_words(topk, children):
    long = Trajectory([1] * 60, [2] * 60, [1] * 60, [0.0] * 60)
    other = Trajectory([1], [100_000], [1], [0.0])
    short = Trajectory([1], [2], [1], [0.0])
    too_long, unknown, good = ask(topk, children, *(("sort", part) for part in (long, other, short)))
    assert isinstance(too_long, RunError) and "maximum" in str(too_long)
    assert isinstance(unknown, RunError) and "out of vocabulary" in str(unknown)
    assert good.logprobs.shape == (1, KNOWN)


def test_a_model_that_cannot_be_loaded_ends_the_process_with_the_reason(toy, folders, topk, tmp_path):
    child = Child(replace(topk.teachers[0], path=str(tmp_path / "none")), 0)
    with pytest.raises(AssertionError):
        child.wait()
    assert child.process.returncode == 1
    assert str(tmp_path / "none") in last_error(child.output)
