"""Algorithm, model, data, GPUs, mode and releases of a run, as its last start recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.nested import section_at, value_at
from trinity_compat.common.optional_packages import RECORDED
from trinity_compat.common.redaction import hidden
from trinity_compat.job.gpus import shares
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.report.model import Section

_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
# Field of the report → veRL key.
_KEYS = {
    "algorithm": "algorithm.adv_estimator",
    "policy_loss": "actor_rollout_ref.actor.policy_loss.loss_mode",
    "model": f"{_MODEL}.path",
    "lora_rank": f"{_MODEL}.lora_rank",
    "quantization": f"{_ROLLOUT}.quantization",
    "data": "data.train_files",
    "prompts_per_step": "data.train_batch_size",
    "answers_per_prompt": f"{_ROLLOUT}.n",
    "strategy": "actor_rollout_ref.actor.strategy",
    "engine": f"{_ROLLOUT}.name",
    "dtype": f"{_ROLLOUT}.dtype",
}


def ran(spec: RunSpec, record: Mapping[str, Any], start: Mapping[str, Any]) -> Section:
    """Return the section. ``record``: of config/launch.json, ``start``: of config/start.json.

    What an earlier release did not record is said to be unknown.
    """
    installed = {name: of for name, of in section_at(record, "releases").items() if of}
    releases = {**section_at(start, "versions"), **installed}
    has_gpus = value_at(spec.verl, "trainer.n_gpus_per_node") and value_at(spec.verl, _ROLLOUT)
    found = (
        shares(spec.verl, device=spec.device, mode=spec.mode, explorers=spec.explorers) if has_gpus else {}
    )
    verl = of_verl(spec.verl)
    if spec.rows:
        verl["algorithm"] = spec.rows.schema
    data = {
        "launch": record.get("script") or record.get("yaml"),
        **verl,
        "mode": spec.mode,
        "trainer": f"verl {spec.trainer}",
        "device": spec.device,
        "gpus": dict(found),  # processes on a CPU
        "sync": {name: getattr(spec.sync, name) for name in ("style", "interval", "offset", "method")},
        "updates_per_step": spec.updates_per_step,
        "total_steps": spec.total_steps,
        "releases": {name: releases[name] for name in RECORDED if name in releases},
    }
    missing = ", ".join(name for name in RECORDED if name not in releases)
    return Section(
        "Ran",
        "open" if missing else "proven",
        f"{data['algorithm']} on {data['model']}, mode {spec.mode}, sync {spec.sync.style}"
        f" (interval {spec.sync.interval}, offset {spec.sync.offset})",
        data,
        [f"the release of {missing}: the start did not record it"] if missing else [],
    )


def of_verl(verl: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a veRL configuration has of the report."""
    return {name: hidden(key, value_at(verl, key)) for name, key in _KEYS.items()}
