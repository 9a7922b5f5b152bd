"""The files of a job's config folder: what was asked, what it became, what each side is given."""

from __future__ import annotations

import json

import yaml

from trinity_compat.common.redaction import hidden
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan.options import RunOptions
from trinity_compat.run.plan.run_plan import RunPlan, as_record
from trinity_compat.run.plan.source import Source


def write(made: RunPlan, source: Source, options: RunOptions, report: StartReport) -> None:
    """Write them, each whole or not at all.

    ``run.json`` is the one that both sides read; ``engine.json`` holds vLLM's arguments; the others are for
    people and for the next start.
    """
    record = {**source.record, **as_record(made, options)}
    texts = {
        "launch.json": json.dumps(record, indent=1, default=str) + "\n",
        "trinity.yaml": source.yaml_text,
        "verl.yaml": yaml.safe_dump(hidden("", made.spec.verl), sort_keys=True, allow_unicode=True),
        **start_check.texts(report),
    }
    made.spec.save(made.job.spec_path)
    made.job.write_config({**texts, "audit.json": source.audit} if source.audit else texts)
