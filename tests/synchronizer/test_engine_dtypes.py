"""Dtypes in which weights are sent: what engines have answered, and what of it the trainer does."""

import asyncio
from contextlib import closing

import pytest
import torch

from trinity_compat.buffer import open_buffer
from trinity_compat.synchronizer.engine_dtypes import REPORTED, agreed, merged, pattern, rounded


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/b.db"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("model.layers.12.mlp.experts.7.up_proj.weight", "model.layers.*.mlp.experts.*.up_proj.weight"),
        ("h.3", "h.*"),
        ("layer2.w13_weight", "layer2.w13_weight"),
    ],
)
def test_layers_and_experts_count_as_one(name, found):
    assert pattern(name) == found


def test_workers_that_disagree_leave_a_tensor_as_it_is():
    first, second = {"a": "bfloat16", "b": "bfloat16"}, {"b": "float32", "c": "bfloat16"}
    assert merged([first, second, {}]) == {"a": "bfloat16", "b": "", "c": "bfloat16"}


TOLD = {"w": "bfloat16", "l.*.bias": "float32", "odd": "", "half": "float16"}


@pytest.mark.parametrize(
    ("name", "dtype", "sent"),
    [
        ("w", torch.float32, torch.bfloat16),
        ("l.3.bias", torch.float32, torch.float32),
        ("l.3.bias", torch.bfloat16, torch.bfloat16),  # the engine widens it itself
        ("odd", torch.float32, torch.float32),
        ("never seen", torch.float32, torch.float32),
        ("half", torch.bfloat16, torch.bfloat16),
        ("w", torch.int64, torch.int64),
    ],
)
def test_a_tensor_is_rounded_only_to_what_every_engine_holds(name, dtype, sent):
    given = torch.ones(2, dtype=dtype)
    if dtype.is_floating_point:
        given.requires_grad_()
    found, tensor = rounded((name, given), TOLD)
    assert (found, tensor.dtype, tensor.requires_grad) == (name, sent, False)


def test_nothing_is_rounded_before_every_explorer_has_answered(url):
    with closing(open_buffer(url)) as buffer:
        REPORTED.at(0).set(buffer, {"w": "bfloat16", "b": "bfloat16"})
        assert agreed(buffer, 2) == {}
        REPORTED.at(1).set(buffer, {"w": "bfloat16", "b": "float32"})
        assert agreed(buffer, 2) == {"w": "bfloat16", "b": ""}
        REPORTED.at(0).set(buffer, None)
        assert agreed(buffer, 2) == {}


def test_an_explorer_answers_when_it_has_started_and_after_its_first_version(url):
    from trinity_compat.explorer.engine.weights import DtypesReport

    answers = [{"file": "bfloat16"}, {"file": "bfloat16", "version": "float32"}]

    class Engines:
        async def dtypes(self):
            return answers.pop(0)

    async def run(buffer):
        REPORTED.at(0).set(buffer, {"of an earlier process": "bfloat16"})
        report = DtypesReport(buffer, 0, Engines())
        yield agreed(buffer, 1)
        await report.started()
        yield agreed(buffer, 1)
        for _ in range(2):
            await report.loaded()
            yield agreed(buffer, 1)

    async def seen():
        with closing(open_buffer(url)) as buffer:
            return [each async for each in run(buffer)]

    first, second = {"file": "bfloat16"}, {"file": "bfloat16", "version": "float32"}
    assert asyncio.run(seen()) == [{}, first, second, second]


@pytest.mark.verl
def test_the_trainer_sends_by_what_the_explorers_answered(tmp_path):
    from trinity_compat.plugins.verl_checkpoint_engine import FileCheckpointEngine
    from trinity_compat.synchronizer.transports.files import assemble, read_file

    engine = FileCheckpointEngine(1, True, directory=str(tmp_path / "w"))
    held = {"w": torch.full((2,), 1 / 3), "l.0.bias": torch.full((2,), 1 / 3)}

    def sent(version):
        share = asyncio.run(engine.send_weights(iter(held.items()), global_steps=version))["share"]
        return dict(read_file(assemble(tmp_path / "w", version, [share])))

    assert all(torch.equal(tensor, held[name]) for name, tensor in sent(1).items())
    engine.expect(TOLD)
    found = sent(2)
    assert torch.equal(found["l.0.bias"], held["l.0.bias"])
    assert torch.equal(found["w"], held["w"].bfloat16())
