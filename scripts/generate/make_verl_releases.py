"""Write translators/generated/verl/releases/: the config trees of veRL's releases as JSON, one key a line.

    python scripts/generate/make_verl_releases.py --tree 0.7.0=DIR:"git tag v0.7.0" [--tree …] [--fields]

DIR holds a checkout of a release, or its unpacked wheel (a folder with ``verl/trainer/config``).
Written per release: ``<version>.json`` (verl/trainer/config) and ``<version>.recipes.json`` (config
files elsewhere in the repository that build on ppo_trainer or ppo_megatron_trainer, and the
``@hydra.main`` of each recipe); then ``keys.json`` over all releases, the fingerprints that the
version is inferred from. With ``--fields`` (the pinned release must be installed) also ``fields.json``:
the fields of each dataclass that a section's ``_target_`` names, which is what verl builds it from.
To read one more release: name it in ``VERL_RELEASES`` (trinity_compat/common/releases.py) and run this with
its tree; those of the others are read from what is stored. ``VERL`` there, the release that runs, is not
affected.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import yaml
from data_files import dump

from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.verl_config.compose import Choices, compose, composed_as
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, Tree, release_tree
from trinity_compat.verl_config.yaml_files import ConfigFile, parse_config_file

OUT = Path(__file__).resolve().parents[2] / "translators" / "generated" / "verl" / "releases"
CONFIG = "verl/trainer/config"
FLAVOURS = ("ppo_trainer", "ppo_megatron_trainer")
HYDRA_MAIN = re.compile(r"@hydra\.main\(\s*config_path=['\"](\w+)['\"],\s*config_name=['\"](\w+)['\"]")


def as_json(file: ConfigFile) -> dict[str, Any]:
    """A config file as it is stored; empty fields left out."""
    stored = {"defaults": list(file.defaults), "config": file.config, "package": file.package}
    return {key: value for key, value in stored.items() if value}


def read_tree(folder: Path) -> dict[str, dict[str, Any]]:
    """Every config file under ``folder``, by its path without the suffix."""
    files = (path for path in sorted(folder.rglob("*.yaml")) if not path.name.startswith("_generated"))
    tree = {str(p.relative_to(folder))[:-5]: as_json(parse_config_file(p.read_text())) for p in files}
    return dict(sorted(tree.items()))


def builds_on_ppo(path: Path) -> bool:
    try:
        defaults = parse_config_file(path.read_text()).defaults
    except (yaml.YAMLError, TypeError):
        return False
    return any(name in FLAVOURS for name in defaults)


def read_recipes(repo: Path) -> dict[str, Any]:
    """Config folders outside verl/trainer that hold a PPO config, and the recipes' entry points."""
    roots = [repo / name for name in ("recipe", "examples", "verl/experimental") if (repo / name).is_dir()]
    found = [path for root in roots for path in sorted(root.rglob("*.yaml")) if builds_on_ppo(path)]
    dirs: dict[str, dict[str, Any]] = {}
    for path in found:
        here = dirs.setdefault(str(path.parent.relative_to(repo)), {})
        here[path.stem] = as_json(parse_config_file(path.read_text()))
    mains = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            match = HYDRA_MAIN.search(path.read_text())
            config_dir = str((path.parent / match.group(1)).relative_to(repo)) if match else ""
            if match and match.group(2) in dirs.get(config_dir, {}):
                module = ".".join(path.relative_to(repo).with_suffix("").parts)
                mains[module] = [config_dir, match.group(2)]
    return {"dirs": dict(sorted(dirs.items())), "mains": dict(sorted(mains.items()))}


def nodes(tree: Any, prefix: str = "") -> dict[str, bool]:
    """Every key of a nested dict, inner ones too: True when its value isn't null."""
    out: dict[str, bool] = {}
    for key, value in tree.items():
        out[prefix + key] = value is not None
        if isinstance(value, dict):
            out |= nodes(value, f"{prefix}{key}.")
    return out


def fingerprints(trees: dict[str, Tree]) -> dict[str, Any]:
    """Per flavour and key, two bit masks over the releases: has the key; has it and it isn't null."""
    versions = list(trees)
    out: dict[str, Any] = {"versions": versions, "groups": {}}
    for flavour in FLAVOURS:
        masks: dict[str, list[int]] = {}
        for bit, tree in enumerate(trees.values()):
            for key, filled in nodes(compose(tree.find, flavour, Choices())).items():
                mask = masks.setdefault(key, [0, 0])
                mask[0] |= 1 << bit
                mask[1] |= filled << bit
        out[flavour] = dict(sorted(masks.items()))
    for bit, tree in enumerate(trees.values()):
        for group in sorted({name.rsplit("/", 1)[0] for name in tree.files if "/" in name}):
            out["groups"][group] = out["groups"].get(group, 0) | 1 << bit
    out["groups"] = dict(sorted(out["groups"].items()))
    return out


def targets(tree: Any) -> set[str]:
    """Every ``_target_`` of a nested dict."""
    found = {tree["_target_"]} if isinstance(tree.get("_target_"), str) else set()
    return found.union(*(targets(value) for value in tree.values() if isinstance(value, dict)))


def dataclass_fields(names: set[str]) -> dict[str, list[str]]:
    """Target → the names that its constructor takes."""
    out = {}
    for name in sorted(names):
        module, _, symbol = name.rpartition(".")
        found = getattr(importlib.import_module(module), symbol, None)
        if dataclasses.is_dataclass(found):
            out[name] = [field.name for field in dataclasses.fields(found) if field.init]
    return out


def write(name: str, content: Any) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(dump(content), encoding="utf-8")


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--tree", action="append", default=[], metavar="VERSION=DIR:SOURCE")
    cli.add_argument("--fields", action="store_true")
    options = cli.parse_args()
    for spec in options.tree:
        version, _, rest = spec.partition("=")
        folder, _, source = rest.partition(":")
        if version not in VERL_RELEASES:
            cli.error(f"{version} is not in VERL_RELEASES (trinity_compat/common/releases.py)")
        files = read_tree(Path(folder) / CONFIG)
        write(f"{version}.json", {"version": version, "source": source, "files": files})
        write(f"{version}.recipes.json", read_recipes(Path(folder)))
    trees = {version: release_tree(version) for version in VERL_RELEASES}
    write("keys.json", fingerprints(trees))
    if options.fields:
        flavours = (*FLAVOURS, *ENGINE_FLAVOURS)
        named = [targets(composed_as(trees[VERL], flavour)) for flavour in flavours]
        of_rows = ("engine/", "optim/")  # the sections of the supervised trainers
        named += [targets(f.config) for name, f in trees[VERL].files.items() if name.startswith(of_rows)]
        write("fields.json", dataclass_fields(set().union(*named)))


if __name__ == "__main__":
    main()
