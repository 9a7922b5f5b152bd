"""Rollout tasks with the sampling of veRL's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.explorer.data.tasks import TaskStream, sampling_seed
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.job.run_spec import RunSpec, has_baseline, seed_of


def seeds_requests(spec: RunSpec, kind: str = "train") -> bool:
    """Return whether each answer of a kind has a seed.

    veRL 0.9.1 sets one with ``full_determinism`` only, and vLLM's V1 runner then samples row by row. On a
    CPU, where the same requests have the same logits, what does not depend on speed has one.
    """
    if spec.verl["actor_rollout_ref"]["rollout"].get("full_determinism") or spec.seeded_requests:
        return True
    return spec.device == "cpu" and (kind == "eval" or spec.sync.style == "fixed")


def make_job(
    verl: Mapping[str, Any],
    kind: str,
    number: int,
    task: Mapping[str, Any],
    *,
    taskset: int = 0,
    seeded: bool = True,
) -> RolloutTask:
    """Build a rollout task.

    ``kind`` train samples by ``rollout.*``, eval by ``rollout.val_kwargs.*``, and by the settings of a YAML's
    ``taskset`` (its place among those of the kind). If ``seeded``, its seed depends on kind, number and the
    run's seed.
    """
    rollout = verl["actor_rollout_ref"]["rollout"]
    values = rollout["val_kwargs"] if kind == "eval" else rollout
    of_taskset = (verl["data"].get("taskset_sampling") or {}).get(f"{kind}/{taskset}", {})
    sampling = {name: values[name] for name in ("temperature", "top_p", "top_k", "n")} | dict(of_taskset)
    answers = int(sampling.pop("n"))
    sampling["repetition_penalty"] = rollout.get("repetition_penalty", 1.0)
    sampling["ignore_eos"] = rollout.get("ignore_eos", False)
    if minimum := verl["data"].get("min_response_length"):  # Trinity's model.min_response_tokens
        sampling["min_tokens"] = int(minimum)
    if seeded and sampling["temperature"]:  # with temperature 0 a seed would only slow the sampler
        sampling["seed"] = sampling_seed(seed_of(verl), kind, number)
    baseline = kind != "eval" and has_baseline(verl)
    return RolloutTask(number, task, answers, sampling, validate=kind == "eval", baseline=baseline)


def eval_jobs(spec: RunSpec, rows: TaskStream | None) -> list[RolloutTask]:
    """Build the tasks of all validation rows, in order; none without validation data."""
    if not rows:
        return []
    places, seeded = range(len(rows)), seeds_requests(spec, "eval")
    return [
        make_job(spec.verl, "eval", i, rows.row(i), taskset=rows.taskset_of(i)[0], seeded=seeded)
        for i in places
    ]
