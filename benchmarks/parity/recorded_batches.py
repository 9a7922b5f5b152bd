"""Rollouts that ``recording`` or ``recording_v1`` kept of a stock run, as groups for our buffer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from trinity_compat.buffer.model import Experience, Group

# Words for a stock run of either trainer, with this folder on PYTHONPATH and the rows' in RECORD_DIR.
_SAMPLER = "trainer.v1.sampler.custom_sampler"
RECORDING = {
    "v0": (
        "trainer.use_v1=False",
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=recording.Recording",
    ),
    "v1": (
        "trainer.use_v1=True",
        f"{_SAMPLER}.path=pkg://recording_v1",
        f"{_SAMPLER}.name=RecordingBuffer",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ),
}


def recorded(path: Path, step: int, *, runs: int) -> list[Group]:
    """The train batch of one step, as ``recording.keep`` wrote it: ``runs`` answers to each prompt."""
    rows = torch.load(path, weights_only=True)
    before = (step - 1) * len(rows) // runs
    return [
        Group(
            f"{step}-{row}",
            before + row // runs,
            {"data_source": "toy"},
            step,
            tuple(_experience(rows[row + run], run, step) for run in range(runs)),
        )
        for row in range(0, len(rows), runs)
    ]


def _experience(row: Mapping[str, torch.Tensor], run: int, step: int) -> Experience:
    reward = float(row["rm_scores"].sum())
    teacher = {name: row[name].numpy() for name in ("teacher_ids", "teacher_logprobs") if name in row}
    # Of an estimator's ids the buffer keeps none.
    if teacher and teacher["teacher_ids"].shape[1] == 1:
        del teacher["teacher_ids"]
    return Experience(
        run=run,
        prompt_ids=row["prompts"].numpy().astype(np.int32),
        response_ids=row["responses"].numpy().astype(np.int32),
        response_mask=row["response_mask"].numpy().astype(np.uint8),
        logprobs=row["rollout_log_probs"].float().numpy(),
        reward=reward,
        min_model_version=step - 1,
        max_model_version=step - 1,
        info={"acc": reward},
        **teacher,
    )
