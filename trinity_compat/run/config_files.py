"""The files of a job's config folder: the request, the resulting configurations, the input of each side."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import yaml

from trinity_compat.common import optional_packages
from trinity_compat.common.redaction import hidden, shown, shown_message, without_passwords
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.job_dir import environment
from trinity_compat.run.job_dir.environment import RecordedEnvironment
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import RunOptions, Source


def write(plan: RunPlan, source: Source, options: RunOptions, report: StartReport) -> None:
    """Write the files, each atomically.

    Both sides read ``run.json``; ``engine.json`` holds vLLM's arguments; the others are for people and for
    the next start.
    """
    found = {name: optional_packages.version(name) for name in optional_packages.RECORDED}
    record = {**source.record, **as_record(plan, options), "releases": found}
    texts = {
        "launch.json": json.dumps(record, indent=1, default=str) + "\n",
        "trinity.yaml": source.yaml_text,
        environment.FILE: _environment(source).as_text(),
        "verl.yaml": yaml.safe_dump(hidden("", plan.spec.verl), sort_keys=True, allow_unicode=True),
        **start_check.texts(report),
    }
    plan.spec.save(plan.job.spec_path)
    texts |= {"audit.json": source.audit} if source.audit else {}
    plan.job.write_config({name: without_passwords(text) for name, text in texts.items()})


def as_record(plan: RunPlan, options: RunOptions) -> dict[str, object]:
    """The options and notes of a run, for ``config/launch.json``, without passwords."""
    recorded = {**asdict(options), "database": options.database and without_passwords(options.database)}
    for name in ("sets", "joined"):
        recorded[name] = [shown(text) for text in getattr(options, name)]
    return {"options": recorded, "notes": list(map(shown_message, plan.notes))}


def _environment(source: Source) -> RecordedEnvironment:
    """Return the variables that the start reads, as the script or YAML found them."""
    record = source.record
    path = Path(record.get("started_in", "")) / (record.get("script") or record.get("yaml") or "")
    try:
        text = path.read_text(errors="replace")
    except OSError:  # a launch that no file made, as in a test
        text = ""
    return RecordedEnvironment.of(os.environ if source.environ is None else source.environ, text)
