"""Launches for the tests of verl_config, and real Hydra to compare with."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import yaml
from facts import public_scripts
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.verl_config.arguments import hydra_flags
from trinity_compat.verl_config.releases import recipes, release_tree

FULL = os.environ.get("TRINITY_COMPAT_FULL") == "1"
PPO = "verl.trainer.main_ppo"
DAPO = "recipe.dapo.main_dapo"


def make_launch(*arguments: str, module: str = PPO, file: str = "run.sh", cwd: str = ".") -> Launch:
    """A launch whose n-th argument stands on line n + 1 of ``file``."""
    words = tuple(Word((WordPart(text),), Where(file, at + 2)) for at, text in enumerate(arguments))
    return Launch(module, words, Where(file, 1), cwd=cwd)


def corpus_launches(*modules: str) -> list[tuple[str, Launch]]:
    """(tag, launch) of every public launch of ``modules``."""
    out = []
    for script in public_scripts():
        for launch in script["launches"]:
            if launch["module"] in modules:
                out.append(
                    (
                        script["tag"],
                        make_launch(*launch["args"], module=launch["module"], file=script["path"]),
                    )
                )
    return out


def write_repository(version: str, root: Path) -> Path:
    """veRL's config files of a release under ``root``, laid out as in its repository."""
    folders = {"verl/trainer/config": release_tree(version).files}
    for folder, name, content in _all_files(version, folders):
        path = root / folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def _all_files(version: str, folders: dict[str, Any]) -> Any:
    for folder, files in folders.items():
        for name, file in files.items():
            yield folder, name, _as_yaml(file.package, list(file.defaults), dict(file.config))
    for folder, files in recipes(version)["dirs"].items():
        for name, stored in files.items():
            yield (
                folder,
                name,
                _as_yaml(stored.get("package"), stored.get("defaults", []), stored.get("config", {})),
            )


def _as_yaml(package: str | None, defaults: list[Any], config: dict[str, Any]) -> str:
    header = f"# @package {package}\n" if package else ""
    content = {"defaults": defaults, **config} if defaults else config
    return header + yaml.safe_dump(content, sort_keys=False)


def override_texts(launch: Launch) -> list[str]:
    """The arguments that are neither a flag of Hydra's nor the value of one."""
    texts = [word.text for word in launch.arguments]
    after_flag = {at + 1 for at, text in enumerate(texts) if text in ("--config-name", "--config-path")}
    return [text for at, text in enumerate(texts) if at not in after_flag and not text.startswith("--")]


def real_hydra(root: Path, launch: Launch) -> dict[str, Any]:
    """What Hydra itself composes for ``launch`` in the repository at ``root``. Raises what Hydra raises."""
    flags = hydra_flags(launch)
    main = {PPO: ("verl/trainer/config", "ppo_trainer"), DAPO: ("recipe/dapo/config", "dapo_trainer")}
    folder, name = main[launch.module]
    directory = root / folder
    spelled = flags.get("config_path")
    if spelled and spelled.removeprefix("./") != "config":
        directory = Path(spelled) if spelled.startswith("/") else directory.parent / spelled
    overrides = override_texts(launch)
    before = Path.cwd()
    os.chdir(root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with initialize_config_dir(str(directory), version_base=None):
                config = compose(flags.get("config_name") or name, overrides=overrides)
                return OmegaConf.to_container(config, resolve=True)
    finally:
        os.chdir(before)
        GlobalHydra.instance().clear()
