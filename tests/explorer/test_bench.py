"""Bench: which rows it makes, when it makes them again, and that its figures are veRL's."""

import asyncio
import os

import numpy as np
import pytest
import torch
from explorer_job import FakeMaker, job
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.explorer.data.tasks import eval_stream
from trinity_compat.explorer.engine.sampling import eval_jobs
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.modes.bench import Bench, fingerprint, settings_of
from trinity_compat.explorer.trackers import Trackers, backends_of
from trinity_compat.run.supervise.bench import core
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.synchronizer.shards import load_fsdp_state_dict_from_verl_checkpoint, merge_lora

ROWS = 6


class Made(FakeMaker):
    """Counts the rows it answers; ``limit`` of them, then it fails."""

    def __init__(self, limit=10**6):
        super().__init__()
        self.rows, self.limit = [], limit

    async def groups(self, work, version, history):
        async for group in super().groups(work, version, history):
            if len(self.rows) == self.limit:
                raise RuntimeError("stopped")
            self.rows.append(group.task_no)
            yield group


@pytest.fixture
def bench(tmp_path, toy):
    spec, buffer = job(tmp_path / "job", toy, checkpoints=(0, 2), mode="bench")
    actor = tmp_path / "job" / "global_step_2" / "actor"
    actor.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, actor / "model_world_size_1_rank_0.pt")
    rows = eval_stream(OmegaConf.create(spec.verl), make_tokenizer(), None)
    heart = Heartbeat(lambda: open_buffer(spec.database_url), "bench", role="bench")

    def run(maker):
        jobs = eval_jobs(spec, rows)
        asyncio.run(Bench(spec, buffer, maker, jobs, Trackers({"trainer": {}}, "bench"), heart).run())
        return maker

    run.buffer, run.actor, run.verl = buffer, actor, spec.verl
    return run


def test_every_checkpoint_is_evaluated_once(bench):
    first = bench(Made())
    assert sorted(first.rows) == sorted([*range(ROWS)] * 2)
    assert first.loaded == [2]  # step 0 is in the engine already
    metrics = dict(bench.buffer.read_metrics("bench"))
    assert sorted(metrics) == [0, 2]
    assert set(core(metrics[2])) == {"val-core/toy/sort/reward/mean@1"}
    assert "val-aux/num_turns/mean" in metrics[2]
    assert bench(Made()).rows == []


def test_a_stopped_bench_goes_on_with_the_rows_that_lack_an_answer(bench):
    with pytest.raises(RuntimeError, match="stopped"):
        bench(Made(limit=ROWS + 2))
    again = bench(Made())
    assert len(again.rows) == ROWS - 2
    assert again.loaded == [2]


def test_a_checkpoint_that_was_written_anew_is_evaluated_anew(bench):
    bench(Made())
    os.utime(bench.actor / "model_world_size_1_rank_0.pt", ns=(1, 1))
    assert sorted(bench(Made()).rows) == list(range(ROWS))


def test_other_sampling_is_another_evaluation(bench):
    before = fingerprint(bench.actor, settings_of(bench.verl))
    bench.verl["data"]["taskset_sampling"] = {"train/1": {"n": 3}}
    assert fingerprint(bench.actor, settings_of(bench.verl)) == before
    bench.verl["data"]["taskset_sampling"] = {"eval/1": {"n": 3}}
    assert (own := fingerprint(bench.actor, settings_of(bench.verl))) != before
    bench.verl["actor_rollout_ref"]["rollout"]["val_kwargs"]["temperature"] = 0.7
    assert fingerprint(bench.actor, settings_of(bench.verl)) not in (before, own)


@pytest.mark.parametrize(
    ("logger", "place", "expected"),
    [
        ("console", False, []),
        (["console", "wandb", "mlflow"], False, ["wandb", "mlflow"]),
        (["console", "tensorboard"], True, ["tensorboard"]),
        (["wandb"], True, ["wandb", "tensorboard"]),
    ],
)
def test_the_launch_s_loggers_but_the_console(monkeypatch, logger, place, expected):
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    if place:
        monkeypatch.setenv("TENSORBOARD_DIR", "/tmp/x")
    assert backends_of(logger) == expected


# -- reading checkpoints ------------------------------------------------------------------------


def write_shards(rank, world, folder, store):
    """What FSDP2 leaves behind: DTensors, the first dimension dealt out; a buffer on every rank."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    state = {
        "even": distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)]),
        "odd": distribute_tensor(torch.arange(5, dtype=torch.bfloat16), mesh, [Shard(0)]),
        "buffer": torch.tensor([7.0]),
    }
    torch.save(state, f"{folder}/model_world_size_{world}_rank_{rank}.pt")
    dist.destroy_process_group()


def test_shards_of_two_processes_give_the_whole_model_in_its_own_dtype(tmp_path):
    torch.multiprocessing.spawn(write_shards, (2, str(tmp_path), str(tmp_path / "store")), nprocs=2)
    whole = load_fsdp_state_dict_from_verl_checkpoint(tmp_path)
    assert torch.equal(whole["even"], torch.arange(8.0).reshape(4, 2))
    assert torch.equal(whole["odd"], torch.arange(5, dtype=torch.bfloat16))
    assert torch.equal(whole["buffer"], torch.tensor([7.0]))

    from trinity_compat.common.errors import UserError

    (tmp_path / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(UserError, match=r"model_world_size_2_rank_1\.pt is missing"):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no shards"),
        (b"cut short", "can't be read as tensors"),
        (Evil(), "can't be read as tensors: Weights only load failed"),
    ],
)
def test_what_is_no_checkpoint_is_one_clear_error(tmp_path, content, said):
    from trinity_compat.common.errors import UserError

    shard = tmp_path / "model_world_size_1_rank_0.pt"
    if isinstance(content, bytes):
        shard.write_bytes(content)
    elif content:
        torch.save({"w": content}, shard)
    with pytest.raises(UserError, match=said):
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)


def test_merged_adapters_are_peft_s_own_merge(toy):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(toy / "model", dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(base, config)
    merged = merge_lora({name: value.clone() for name, value in model.state_dict().items()}, 8 / 4)
    expected = model.merge_and_unload().state_dict()
    assert set(merged) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(merged[name], value, atol=1e-6, err_msg=name)
