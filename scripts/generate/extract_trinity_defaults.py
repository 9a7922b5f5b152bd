"""Write what the installed trinity-rft makes of an ``algorithm`` section that says its type alone, as JSON.

    .venv-upstream-0.6.0/bin/python scripts/generate/extract_trinity_defaults.py OUT.json

``algorithms``: each ``algorithm_type`` → the functions that stand for what is not named, and whether there
is a critic. ``functions``: each function → the arguments that stand for an ``_args`` that is not there at
all. Defaults of single fields are in the schema (``extract_trinity_schema.py``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trinity
from trinity import algorithm as upstream

# Where upstream's registries are called otherwise than the fields that name their functions.
KINDS = {
    "sample_strategy": "SAMPLE_STRATEGY",
    "policy_loss_fn": "POLICY_LOSS_FN",
    "advantage_fn": "ADVANTAGE_FN",
    "kl_penalty_fn": "KL_FN",
    "kl_loss_fn": "KL_FN",
    "entropy_loss_fn": "ENTROPY_LOSS_FN",
}
# AlgorithmConfigValidator.validate of 0.6.0, Config._check_algorithm of 0.4.1: local to both.
COMMON = {
    "sample_strategy": "warmup",
    "policy_loss_fn": "ppo",
    "advantage_fn": "ppo",
    "kl_penalty_fn": "none",
    "kl_loss_fn": "k2",
    "entropy_loss_fn": "default",
    "loss_agg_mode": "token-mean",
}


def names(registry: Any) -> list[str]:
    """Names in a registry of upstream's, lazily imported ones included."""
    known: dict[str, Any] = {**getattr(registry, "_default_mapping", {}), **registry.modules}
    return sorted(known)


def algorithms() -> dict[str, dict[str, Any]]:
    """algorithm_type → field → the value that stands where the file has none."""
    found = {}
    for name in names(upstream.ALGORITHM_TYPE):
        kind = upstream.ALGORITHM_TYPE.get(name)
        found[name] = {**COMMON, **kind.default_config(), "use_critic": kind.use_critic}
    return found


def functions() -> dict[str, dict[str, Any]]:
    """Field → function → the arguments that stand where the file has none."""
    found: dict[str, dict[str, Any]] = {}
    for field, registry in KINDS.items():
        held = getattr(upstream, registry)
        found[field] = {name: held.get(name).default_args() for name in names(held)}
    return found


def render(data: Mapping[str, Any]) -> str:
    """One row a line, so that two releases can be diffed."""
    lines = [f'{{"package": "trinity-rft", "version": "{trinity.__version__}",']
    lines += ['"algorithms": {', _rows(data["algorithms"]), "},", '"functions": {']
    kinds = [f'"{kind}": {{\n{_rows(rows)}\n}}' for kind, rows in data["functions"].items()]
    return "\n".join([*lines, ",\n".join(kinds), "}}", ""])


def _rows(rows: Mapping[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())


if __name__ == "__main__":
    found = {"algorithms": algorithms(), "functions": functions()}
    Path(sys.argv[1]).write_text(render(found), encoding="utf-8")
