"""A checkpoint as a Hugging Face model, by veRL's own merger."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from trinity_compat.common import optional_packages, python_command
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.path_ownership import check_checkpoint
from trinity_compat.common.training_engines import engine_of
from trinity_compat.run.job_dir.job_dir import JobDir


def to_hf(root: Path, *, step: int | None, out: Path | None, critic: bool = False) -> Path:
    """Merge the shards of ``global_step_<step>`` (default: the latest) below ``root``; returns the folder.

    Raises UserError for a job or a step without a checkpoint, RunError with the merger's reason.
    """
    job = JobDir.at(root)
    spec = job.load_spec()
    step = step if step is not None else job.latest_checkpoint
    if step is None:
        raise UserError(f"{job.root} has no checkpoint", hint="trainer.save_freq decides when one is written")
    shards = job.root / f"global_step_{step}" / ("critic" if critic else "actor")
    if not shards.is_dir():
        have = sorted(path.name for path in job.root.glob("global_step_*"))
        raise UserError(f"{shards} does not exist", hint=f"this job has {', '.join(have) or 'no checkpoint'}")
    check_checkpoint(shards)  # the merger opens pickles
    engine = engine_of(spec.verl["actor_rollout_ref"]["actor"]["strategy"])
    if not engine.merger:
        raise UserError(
            f"{shards}: veRL's model_merger does not read checkpoints of strategy={engine.strategy}",
            hint="it reads those of fsdp, fsdp2, fsdp_turbo, veomni and megatron; convert this one with the"
            f" tools of {engine.strategy}",
        )
    optional_packages.need_for_a_run()
    target = (out or job.root / f"global_step_{step}" / "hf").absolute()
    backend = engine.merger
    words = ["merge", "--backend", backend, "--local_dir", str(shards), "--target_dir", str(target)]
    command = python_command.of_module("verl.model_merger", *words)
    # A process of its own: torch and transformers are not loaded into the command line.
    env = dict(os.environ)
    python_command.share_cores(env)
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RunError(f"veRL's model_merger ended with {done.returncode}: {lines[-1] if lines else ''}")
    return target
