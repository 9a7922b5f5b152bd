"""A job directory for an explorer alone, and the smallest thing that can stand for its workers."""

import asyncio
import copy
import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group, WeightVersion
from trinity_compat.common import optional_packages
from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.launch import read_argv
from trinity_compat.run.plan.profiles import as_overrides, load
from trinity_compat.synchronizer.transports.nccl import TransferFailed, WeightGroup
from trinity_compat.synchronizer.versions import write_version
from trinity_compat.verl_config import as_tree, effective_config

ROOT = Path(__file__).parents[2]
BATCH, N = 4, 2
CPU = torch.device("cpu")


def tool_config(toy, tools):
    """As ``verl_config``, for an agent with the function tools of the file ``tools``."""
    return verl_config(
        toy,
        "data.max_prompt_length=512",
        "data.max_response_length=512",
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={tools}",
    )


def verl_config(toy, *overrides):
    return copy.deepcopy(_composed(toy, overrides))


@functools.cache
def _composed(toy, overrides):
    words = [
        *as_overrides(load("cpu"), "decoupled"),
        f"data.train_files={toy}/data/train.parquet",
        f"data.val_files={toy}/data/val.parquet",
        f"actor_rollout_ref.model.path={toy}/model",
        f"critic.model.path={toy}/model",
        "data.max_prompt_length=48",
        "data.max_response_length=8",
        f"data.train_batch_size={BATCH}",
        "data.seed=1",
        "trainer.logger=console",  # veRL's default adds wandb, which wants a key
        f"actor_rollout_ref.rollout.n={N}",
        "actor_rollout_ref.rollout.name=vllm",
        f"reward.custom_reward_function.path={ROOT}/examples/verl_scripts/toy_reward.py",
        *overrides,
    ]
    words = [word for word in words if "ray_init" not in word]
    launch = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words]).launches[0]
    # Hydra gives the same (tests/verl_config/test_verl_hydra.py) and takes a hundred times as long.
    config = effective_config(launch, version=optional_packages.version("verl"), fork_config=False)
    assert not [found for found in config.diagnostics if found.severity == "error"], config.diagnostics
    return as_tree(config)


def job(directory, toy, *overrides, steps=3, sync=None, **fields):
    """Write ``config/run.json`` and make the buffer; returns (spec, buffer)."""
    (directory / "config").mkdir(parents=True)
    spec = RunSpec(
        job_dir=str(directory),
        database_url=f"sqlite:///{directory}/experiences.db",
        verl=verl_config(toy, *overrides),
        updates_per_step=2,
        total_steps=steps,
        sync=sync or SyncSpec(directory=str(directory / "weights"), timeout_s=600),
        **fields,
    )
    spec.save(directory / "config" / "run.json")
    return spec, open_buffer(spec.database_url)


def publish(spec, buffer, toy, *versions):
    """Publish the toy model's own weights as each of ``versions``."""
    tensors = load_file(toy / "model" / "model.safetensors")
    for version in versions:
        buffer.publish_version(write_version(spec.sync.directory, version, tensors.items()))


def start(spec, *arguments):
    """The explorer's process, in a session of its own; output in the job directory."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with Path(spec.job_dir, "explorer.log").open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "trinity_compat.explorer", spec.job_dir, *arguments],
            stdout=out,
            stderr=out,
            env=environment,
            cwd=spec.job_dir,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def says_once_that_it_lives(buffer):
    """For an explorer without a heartbeat: one that would be started again may be silent for two minutes."""
    buffer.beat("explorer", "e", state="running", detail={"restarts": 1})


class FakeMaker:
    """Groups without an engine; remembers which version was loaded when."""

    def __init__(self, before=None):
        self.loaded, self.before = [], before

    async def load(self, version):
        self.loaded.append(version.version)

    def room(self):
        return 1

    async def groups(self, work, version, history):
        if self.before:
            self.before(work)
        for job_ in reversed(work.jobs):
            parts = tuple(experience(run, version) for run in range(job_.n))
            yield Group(
                f"h{history}/{work.kind}/{job_.task_no}",
                job_.task_no,
                job_.task,
                work.step_of(job_.task_no),
                parts,
                work.kind,
            )


def experience(run, version, last=None):
    ones = np.ones(3)
    return Experience(
        run=run,
        prompt_ids=ones.astype(np.int32),
        response_ids=ones.astype(np.int32),
        response_mask=ones.astype(np.uint8),
        logprobs=-ones.astype(np.float32),
        reward=float(run),
        min_model_version=version,
        max_model_version=version if last is None else last,
    )


class OneRank:
    """Stands for an explorer's engines: one worker, in a thread."""

    restarts_an_engine = False

    def __init__(self):
        self.group, self.got, self.dies = None, {}, False

    def late(self):
        return []

    async def receive(self, meeting, first_rank):
        return await asyncio.to_thread(self._receive, meeting, first_rank)

    def _receive(self, meeting, first_rank):
        if self.dies:
            raise TransferFailed("killed")
        if self.group is None or self.group.name != meeting.group:
            self.group = WeightGroup(meeting, first_rank, CPU)
        file = self.group.receive(meeting, lambda named: self.got.update((n, t.clone()) for n, t in named))
        return WeightVersion(meeting.version, "", file.digest, file.nbytes, "nccl")
