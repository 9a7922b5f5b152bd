"""Jobs for reports, made by the store's own interface."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group, LoadedVersion, WeightVersion
from trinity_compat.job.run_spec import RunSpec, SyncSpec

BATCH, ANSWERS = 4, 2
VERL = {
    "algorithm": {"adv_estimator": "grpo", "filter_groups": {"enable": False}},
    "data": {"train_batch_size": BATCH, "train_files": "train.parquet", "filter_overlong_prompts": True},
    "trainer": {"nnodes": 1, "n_gpus_per_node": 2},
    "actor_rollout_ref": {
        "model": {"path": "toy", "lora_rank": 0},
        "actor": {"strategy": "fsdp2", "policy_loss": {"loss_mode": "vanilla"}},
        "rollout": {
            "name": "vllm",
            "n": ANSWERS,
            "nnodes": 1,
            "n_gpus_per_node": 2,
            "tensor_model_parallel_size": 1,
        },
    },
}


class Job:
    """A job of which a test trains steps, kills the trainer and asks for the report."""

    def __init__(self, root: Path, **fields: object) -> None:
        self.root = root
        (root / "config").mkdir(parents=True)
        (root / "config" / "launch.json").write_text(
            json.dumps({"script": "run.sh", "releases": {"verl": "0.9.1", "vllm": "0.28.0", "torch": "2.9"}})
        )
        self.now = 1000.0
        url = f"sqlite:///{root}/experiences.db"
        self.spec = RunSpec(str(root), url, VERL, 2, 10, SyncSpec(), **fields)
        self.spec.save(root / "config" / "run.json")
        self.buffer = open_buffer(url, clock=lambda: self.now)
        self.buffer.publish_version(WeightVersion(0, "/dev/shm/x", "0" * 32, 10))

    def explore(self, step: int, *, version: int | None = None, tokens: int = 4) -> None:
        """Store the missing groups of a step, with answers of ``tokens`` and twice as many tokens."""
        made_with, history = step - 1 if version is None else version, self.buffer.history()
        missing = self.buffer.missing_tasks(upto=step * BATCH, limit=1000)
        numbers = [number for number in missing if number >= (step - 1) * BATCH]
        self.buffer.put_groups([_group(number, step, made_with, tokens, history) for number in numbers])

    def train(self, *steps: int, kl: float = 0.01, **explored: int) -> None:
        """Train whole steps, ten seconds each."""
        for step in steps:
            self.explore(step, **explored)
            self.now += 10
            claim = self.buffer.claim_groups(BATCH, owner="test", step=step)
            assert claim is not None
            self.buffer.mark_trained(claim, step=step)
            figures = {"rollout_corr/kl": kl, "training/rollout_probs_diff_mean": kl / 2}
            self.buffer.log_metrics("trainer", step, figures)
            self.publish(step)

    def publish(self, step: int) -> str:
        digest = f"{step:032x}"
        self.buffer.publish_version(WeightVersion(step, "/dev/shm/x", digest, 10))
        return digest

    def loaded(self, version: int, engine: int, *, received: str = "", held: str = "a" * 48) -> None:
        """Note that an engine has loaded a version."""
        worker = f"explorer 0 engine {engine} rank 0"
        digest = received or f"{version:032x}"
        self.buffer.note_loaded(LoadedVersion(version, worker, digest, held, "same in all engines"))

    def killed(self, *, checkpoint: int) -> None:
        """The trainer is killed, and continues from a checkpoint half a minute later."""
        self.now += 30
        self.buffer.reconcile(step=checkpoint)

    def finish(self) -> None:
        self.buffer.set_state("finished", True)

    def sql(self, statement: str) -> None:
        """Change the database as nothing of ours would."""
        engine = sa.create_engine(self.spec.database_url)
        with engine.begin() as conn:
            conn.execute(sa.text(statement))
        engine.dispose()


def _group(number: int, step: int, version: int, tokens: int, history: int) -> Group:
    answers = tuple(
        Experience(
            run=run,
            prompt_ids=np.arange(3, dtype=np.int32),
            response_ids=np.arange(tokens * (run + 1), dtype=np.int32),
            response_mask=np.ones(tokens * (run + 1), np.uint8),
            logprobs=np.full(tokens * (run + 1), -1.0, np.float32),
            reward=float(run),
            min_model_version=version,
            max_model_version=version,
        )
        for run in range(ANSWERS)
    )
    return Group(f"h{history}/train/{number}", number, {"index": number % 12}, step, answers)
