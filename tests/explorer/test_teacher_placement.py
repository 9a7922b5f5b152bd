"""GPUs that the teachers' servers get beside the run's other models, without Ray."""

import asyncio
from types import SimpleNamespace

import pytest
from explorer_job import verl_config

from trinity_compat.explorer.teachers import serving

pytestmark = pytest.mark.verl

RM, DISTILLED = "reward.reward_model", "distillation"


class Stop(Exception):
    """All servers have been placed."""


def placed(toy, monkeypatch, *words, parts=1):
    """(servers, GPUs of each, sizes of the models placed before) of each teacher."""
    found = []

    class Servers:
        def __init__(self, spec, teacher, top, count, beside):
            found.append((count, teacher.width, list(beside)))

        async def start(self, heart, before):
            return ["host:1"]

        async def states(self):
            raise Stop

    monkeypatch.setattr(serving, "TeacherServers", Servers)
    monkeypatch.setattr(serving.address, "load_addresses", lambda *_: [])
    monkeypatch.setattr(serving.address, "store_addresses", lambda *_: None)
    on = (f"{DISTILLED}.enabled=True", f"{DISTILLED}.nnodes=1", f"{DISTILLED}.n_gpus_per_node=8")
    spec = SimpleNamespace(verl=verl_config(toy, *on, *words), device="cuda")
    with pytest.raises(Stop):
        asyncio.run(serving.serve(spec, None, SimpleNamespace(), parts=parts))
    return found


def teacher(name, replicas, width):
    entry = f"+{DISTILLED}.teacher_models.{name}"
    size = f"{entry}.inference.tensor_model_parallel_size={width}"
    given = (f"key={name}", f"model_path=/{name}", f"num_replicas={replicas}", "inference.name=vllm")
    return (*(f"{entry}.{each}" for each in given), size)


TWO = (*teacher("b", 1, 4), *teacher("a", 2, 2))
REWARD = (
    f"{RM}.enable=True",
    f"{RM}.nnodes=1",
    f"{RM}.n_gpus_per_node=4",
    f"{RM}.rollout.tensor_model_parallel_size=1",
)


@pytest.mark.parametrize(
    ("words", "parts", "places"),
    [
        (TWO, 1, [(2, 2, []), (1, 4, [(2, 2)])]),
        ((*TWO, *REWARD), 1, [(2, 2, [(4, 1)]), (1, 4, [(4, 1), (2, 2)])]),
        ((*TWO, *REWARD), 2, [(1, 2, [(2, 1)]), (1, 4, [(2, 1), (1, 2)])]),
    ],
)
def test_teachers_stand_beside_the_reward_model_and_each_other(toy, monkeypatch, words, parts, places):
    assert placed(toy, monkeypatch, *words, parts=parts) == places
