"""Where a configuration starts: the main's config file, --config-path/-name/-dir, the search path."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.errors import UserError, Where
from trinity_compat.launch.model import Diagnostic, Launch
from trinity_compat.releases import VERL_RELEASES
from trinity_compat.verl_config.arguments import Flags
from trinity_compat.verl_config.merge import merge
from trinity_compat.verl_config.releases import (
    FLAVOURS,
    ConfigFile,
    Find,
    Tree,
    recipes,
    release_tree,
)
from trinity_compat.verl_config.yaml_files import parse_config_file

_TREE = "verl/trainer/config"
# @hydra.main of the mains in verl/trainer; those of recipes come with each release's data.
_MAINS = {
    "verl.trainer.main_ppo": "ppo_trainer",
    "verl.trainer.main_ppo_sync": "ppo_trainer",
    "verl.trainer.fsdp_sft_trainer": "sft_trainer",
    "verl.trainer.sft_trainer": "sft_trainer_engine",
    "verl.trainer.main_generation": "generation",
    "verl.trainer.main_eval": "evaluation",
}


@dataclass
class SearchPath:
    """Hydra's search path of one launch under one release, and what was noted while building it."""

    primary: str
    places: list[Find]
    tree: Tree
    declares_tree: bool
    where: Where
    notes: list[Diagnostic] = field(default_factory=list)
    from_tree_unasked: bool = False

    def find(self, name: str) -> ConfigFile | None:
        """The first config file of that name; veRL's own tree comes last, declared or not."""
        for place in self.places:
            file = place(name)
            if file is not None:
                return file
        file = self.tree.find(name)
        self.from_tree_unasked |= file is not None and not self.declares_tree
        return file

    def has_group(self, group: str) -> bool:
        return self.tree.has_group(group)


def known_main(module: str) -> bool:
    """Whether we know the config file that ``module`` starts from."""
    return module in _MAINS or any(module in recipes(version)["mains"] for version in VERL_RELEASES)


def releases_of(module: str) -> tuple[str, ...]:
    """The releases that have ``module`` as a main, newest last; all when none is known to."""
    if module in _MAINS:
        name = _MAINS[module]
        found = VERL_RELEASES if name in FLAVOURS else _having(name)
    else:
        found = tuple(version for version in VERL_RELEASES if module in recipes(version)["mains"])
    return found or VERL_RELEASES


def _having(name: str) -> tuple[str, ...]:
    return tuple(version for version in VERL_RELEASES if release_tree(version).find(name))


def search_path(launch: Launch, version: str, flags: Flags, root: Path) -> SearchPath:
    """The search path that Hydra would build. Files are read only inside ``root``.

    Raises UserError when --config-path or --config-dir names a folder that cannot be read.
    """
    tree, module = release_tree(version), launch.module
    folder, primary = _main_config(launch.taken_for, version)
    name = flags.get("config_name")
    where = flags.words["config_name"].where if name else launch.where
    path = SearchPath((name or primary).removesuffix(".yaml"), [], tree, folder == _TREE, where)
    if flags.get("config_dir") is not None:
        path.places.append(_folder(flags, "config_dir", path, version, root, module))
    if flags.get("config_path") is not None and not _is_own(flags.values["config_path"], folder):
        place = _folder(flags, "config_path", path, version, root, module)
        path.declares_tree = place == tree.find
        path.places.append(place)
    elif folder != _TREE:
        path.places.append(_recipe(folder, version).find)
    _add_declared(path, root)
    return path


def _main_config(module: str, version: str) -> tuple[str, str]:
    """(folder, config name) of a main; a recipe that the release lacks is taken from the nearest older."""
    if module in _MAINS:
        return _TREE, _MAINS[module]
    for candidate in _nearest(version):
        found = recipes(candidate)["mains"].get(module)
        if found:
            return found[0], found[1]
    return _TREE, "ppo_trainer"


def _recipe(folder: str, version: str) -> Tree:
    for candidate in _nearest(version):
        if folder in recipes(candidate)["dirs"]:
            return Tree.from_json(recipes(candidate)["dirs"][folder])
    return Tree()


def _is_own(spelled: str, folder: str) -> bool:
    """``--config-path=config`` is relative to the main's file, so it names the main's own folder."""
    return posixpath.normpath(spelled) == posixpath.basename(folder)


def _folder(flags: Flags, flag: str, path: SearchPath, version: str, root: Path, module: str) -> Find:
    """The folder that --config-path or --config-dir names; notes where Hydra would look elsewhere."""
    spelled = flags.values[flag].removeprefix("file://")
    where = flags.words[flag].where
    if posixpath.normpath(spelled).endswith(_TREE):
        return path.tree.find
    if flag == "config_path":
        beside_main = root.joinpath(*module.split(".")[:-1], spelled)
        if _readable(beside_main, root):
            return _reader(beside_main, root)
    if _readable(root / spelled, root):
        if flag == "config_path" and not spelled.startswith("/"):
            path.notes.append(_relative_note(spelled, module, where))
        return _reader(root / spelled, root)
    known = _of_repository(spelled, version)
    if known is None:
        raise UserError(
            f"--{flag.replace('_', '-')} {spelled}: there is no such folder below {root}",
            where=where,
            hint="name the folder that holds it with --cwd",
        )
    message = f"{spelled} is not below {root}: the file of that name in veRL's own repository is taken"
    path.notes.append(Diagnostic("TP213", message, where))
    return known.find


def _relative_note(spelled: str, module: str, where: Where) -> Diagnostic:
    folder = "/".join(module.split(".")[:-1])
    message = (
        f"Hydra takes --config-path {spelled} relative to {folder}, where the main's file is, and would "
        f'not find it; write --config-path="$PWD/{spelled}"'
    )
    return Diagnostic("TP208", message, where, "error")


def _of_repository(spelled: str, version: str) -> Tree | None:
    """The folder of veRL's own repository that ``spelled`` ends with, nearest release first."""
    for candidate in _nearest(version):
        for known, files in recipes(candidate)["dirs"].items():
            if posixpath.normpath("/" + spelled).endswith("/" + known):
                return Tree.from_json(files)
    return None


def _nearest(version: str) -> tuple[str, ...]:
    """All releases, ``version`` first, then the older ones, then the newer ones."""
    at = VERL_RELEASES.index(version)
    return (*reversed(VERL_RELEASES[: at + 1]), *VERL_RELEASES[at + 1 :])


def _readable(path: Path, root: Path, *, folder: bool = True) -> bool:
    """Whether ``path`` is a folder (or file) inside ``root``; a name that cannot be one is neither."""
    try:
        return _inside(path, root) and (path.is_dir() if folder else path.is_file())
    except (OSError, ValueError):
        return False


def _inside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _reader(folder: Path, root: Path) -> Find:
    """Reads config files of a user's folder, each once. Its find raises UserError on broken YAML."""
    cache: dict[str, ConfigFile | None] = {}

    def find(name: str) -> ConfigFile | None:
        if name not in cache:
            path = folder / f"{name}.yaml"
            cache[name] = read_config(path) if _readable(path, root, folder=False) else None
        return cache[name]

    return find


def read_config(path: Path) -> ConfigFile:
    """A user's config file. Raises UserError with the place when it isn't a mapping in YAML."""
    import yaml

    try:
        return parse_config_file(path.read_text(encoding="utf-8"), str(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Where(str(path), mark.line + 1 if mark else 0)
        what = "configuration" if isinstance(error, yaml.composer.ComposerError) else "YAML file"
        raise UserError(f"not a {what}: {getattr(error, 'problem', error)}", where=where) from None
    except (TypeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise UserError(f"not a Hydra config file: {error}", where=Where(str(path))) from None


def _add_declared(path: SearchPath, root: Path) -> None:
    """``hydra.searchpath`` of the primary config."""
    file = path.find(path.primary) if path.places else None
    hydra = file.config.get("hydra") if file else None
    declared = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    for entry in declared if isinstance(declared, list) else ():
        spelled = str(entry).removeprefix("file://").removeprefix("pkg://")
        if posixpath.normpath(spelled.replace("verl.trainer.config", _TREE)).endswith(_TREE):
            path.declares_tree = True
        elif _readable(root / spelled, root):
            path.places.append(_reader(root / spelled, root))


def user_keys(path: SearchPath) -> tuple[str | None, dict[str, object]]:
    """(flavour that the primary config builds on or None, merged content of the files above it)."""
    content: dict[str, object] = {}
    name, seen = path.primary, set()
    while name not in FLAVOURS:
        file = path.find(name)
        if file is None or name in seen:
            return None, content
        seen.add(name)
        content = merge(merge({}, file.config), content)
        below = [str(line) for line in file.defaults if isinstance(line, str) and line != "_self_"]
        if not below:
            return None, content
        name = below[0]
    return name, content
