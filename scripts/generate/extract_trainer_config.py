"""Write which keys the installed trinity-rft takes under trainer.trainer_config, as JSON.

    .venv-upstream-0.6.0/bin/python scripts/generate/extract_trainer_config.py OUT.json

0.6.0 merges them into what its veRL config builder made, and verl's dataclasses refuse an unknown key
when the workers start; keys that it calls frozen are dropped with a warning. 0.4.1 merges them into its
own structured veRLConfig. Each path carries the value that upstream has there without us.

Not extracted, but added by hand to 0.6.0's file: paths of fields that the file has under another name too
(``algorithm.optimizer.lr``), with null.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import trinity
from data_files import dump
from omegaconf import DictConfig, OmegaConf

STRATEGIES = ("fsdp", "megatron")  # fsdp2 has the keys of fsdp
ACTOR_SIDE = ("model", "actor", "ref", "rollout")
SOURCES = {
    "0.4.1": "trinity-rft 0.4.1 trinity/common/verl_config.py (veRLConfig)",
    "0.6.0": "trinity-rft 0.6.0 trinity/trainer/verl/config.py (build_verl_config, FROZEN_KEYS); verl 0.8.0 "
    "verl/workers/config",
}


def built_by_0_6_0(strategy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path under trainer_config, row) for one strategy."""
    from trinity.common.config import Config
    from trinity.trainer.verl.config import FROZEN_KEYS, build_verl_config

    config = Config()
    config.trainer.trainer_strategy = strategy
    config.algorithm.kl_loss_fn = "none"
    built = build_verl_config(config)
    for section in (*ACTOR_SIDE, "critic"):
        prefix = f"actor_rollout_ref.{section}" if section in ACTOR_SIDE else section
        for path, row in walk(built[section], section):
            if path in FROZEN_KEYS:
                row["frozen"] = True
            yield prefix + path[len(section) :], row


def walk(node: DictConfig, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a row per key that the node's ``_target_`` class (or the builder itself) knows."""
    allowed: dict[str, Any] = {}
    if target := node.get("_target_"):
        module, _, name = target.rpartition(".")
        allowed = {
            f.name: default_of(f) for f in dataclasses.fields(getattr(import_module(module), name)) if f.init
        }
    for key in dict.fromkeys((*allowed, *node)):
        if key == "_target_":
            continue
        value = node.get(key, allowed.get(key))
        if isinstance(value, DictConfig) and value.get("_target_"):
            yield from walk(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", row_of(value)


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return {} if field.default_factory is not dataclasses.MISSING else None


def row_of(value: Any) -> dict[str, Any]:
    """Return {"default": …}, with "free": true where any keys may follow below."""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    if dataclasses.is_dataclass(plain):
        return {"default": None, "free": True}
    try:
        json.dumps(plain)
    except TypeError:
        plain = str(plain)
    return (
        {"default": plain, "free": True}
        if isinstance(plain, Mapping) or plain is None
        else {"default": plain}
    )


def structured_in_0_4_1() -> Iterator[tuple[str, dict[str, Any]]]:
    from trinity.common.verl_config import veRLConfig

    yield from leaves(OmegaConf.structured(veRLConfig), "")


def leaves(node: DictConfig, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in node:
        value = node._get_node(key)
        inner = f"{path}.{key}" if path else str(key)
        if (
            isinstance(value, DictConfig)
            and not value._is_none()
            and dataclasses.is_dataclass(value._metadata.object_type)
        ):
            yield from leaves(value, inner)
        elif isinstance(value, DictConfig):
            yield inner, {"default": None, "free": True}
        else:
            plain = node.get(key) if not OmegaConf.is_missing(node, key) else None
            yield inner, {"default": OmegaConf.to_container(plain) if OmegaConf.is_config(plain) else plain}


def extract() -> dict[str, dict[str, Any]]:
    """Return strategy → path → row; a strategy named "any" holds for all."""
    if trinity.__version__ == "0.4.1":
        return {"any": dict(structured_in_0_4_1())}
    return {strategy: dict(built_by_0_6_0(strategy)) for strategy in STRATEGIES}


def content(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a file of translators/generated/trainer_config: defaults per strategy, ignored keys.

    A section that takes any key has the name ``PATH.*``.
    """
    tables = {strategy: tables[strategy if strategy in tables else "any"] for strategy in STRATEGIES}
    found: dict[str, Any] = {"target": trinity.__version__, "source": SOURCES[trinity.__version__]}
    for strategy, rows in tables.items():
        defaults: dict[str, Any] = {}
        for path, row in rows.items():
            if row.get("frozen"):
                continue
            inner = row["default"] if isinstance(row["default"], dict) else None
            if row.get("free"):
                defaults[f"{path}.*"] = None
            if inner is None:
                defaults[path] = row["default"]
            else:
                defaults |= {f"{path}.{key}": value for key, value in inner.items()}
        found[strategy] = dict(sorted(defaults.items()))
    ignored = {path for rows in tables.values() for path, row in rows.items() if row.get("frozen")}
    return found | {"ignored": sorted(ignored)}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(dump(content(extract())), encoding="utf-8")
