"""Start of a configuration: the main's config file, --config-path/-name/-dir, the search path."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.entrypoints import canonical
from trinity_compat.launch.model import Diagnostic, Launch
from trinity_compat.launch.python.hydra_main import package_folder
from trinity_compat.verl_config.arguments import GivenOverride, HydraFlags, LaunchArguments
from trinity_compat.verl_config.compose import Choices, CompositionError, defaults_list, merge_parts
from trinity_compat.verl_config.config_folders import (
    ConfigFolder,
    is_changed,
    is_written,
    readable_file,
    readable_folder,
    shown_below,
    starts_out_of_reach,
)
from trinity_compat.verl_config.releases import (
    FLAVOURS,
    ConfigFile,
    Tree,
    recipes,
    release_tree,
)
from trinity_compat.verl_config.source_tree import TREE as _TREE
from trinity_compat.verl_config.source_tree import Checkout, Main, is_tree
from trinity_compat.verl_config.yaml_files import merge

# @hydra.main of the mains in verl/trainer; those of recipes come with each release's data.
_MAINS = {
    "verl.trainer.main_ppo": "ppo_trainer",
    "verl.trainer.main_ppo_sync": "ppo_trainer",
    "verl.trainer.fsdp_sft_trainer": "sft_trainer",
    "verl.trainer.sft_trainer": "sft_trainer_engine",
    "verl.trainer.sft_trainer_ray": "sft_trainer_engine",
    "verl.trainer.main_generation": "generation",
    "verl.trainer.main_eval": "evaluation",
}


# Of them those without a rollout, whose keys are others.
SUPERVISED = ("sft_trainer", "sft_trainer_engine")


def searches(given: GivenOverride) -> bool:
    """Return True for an override of Hydra's search path.

    With a + before it Hydra sets the key and searches no further folder.
    """
    return given.override.key == "hydra.searchpath" and not given.override.op


@dataclass
class SearchPath:
    """Hydra's search path of one launch under one release, and what was noted while building it.

    ``tree`` is the release's verl/trainer/config, or the one in the tree that the script starts from.
    """

    primary: str
    places: list[Tree | ConfigFolder]
    tree: Tree | ConfigFolder
    declares_tree: bool
    where: Where
    notes: list[Diagnostic] = field(default_factory=list)
    from_tree_unasked: bool = False
    own_primary: bool = False  # the user's file, by its name none of veRL's, though it lies in veRL's folder

    def find(self, name: str) -> ConfigFile | None:
        """The first config file of that name; veRL's own tree comes last, declared or not."""
        for place in self.places:
            file = place.find(name)
            if file is not None:
                return file
        file = self.tree.find(name)
        self.from_tree_unasked |= file is not None and not self.declares_tree
        return file

    def has_group(self, group: str) -> bool:
        """Return True where a folder of the path has the config group."""
        return any(place.has_group(group) for place in (*self.places, self.tree))

    @property
    def instead(self) -> str:
        """Return a hint for a primary config that is in none of the folders."""
        near = get_close_matches(self.primary, self.tree.files, n=1) if isinstance(self.tree, Tree) else []
        if near:
            return f"did you mean {near[0]}?"
        own = next((place for place in self.places if isinstance(place, ConfigFolder)), None)
        if own:
            file = f"{self.primary}.yaml"
            return f"put {file} into {own.path}: a script is only read, nothing in it runs"
        return 'name the folder that has it: --config-path="$PWD/FOLDER"'

    def sets(self, file: ConfigFile) -> bool:
        """Return whether the keys of ``file`` count as set by the user.

        Others are defaults of veRL's or a fork's.
        """
        own = self.own_primary and file is self.find(self.primary)
        return bool(file.source) and (own or not file.default)


def known_main(module: str) -> bool:
    """Return whether we know the config file that ``module`` starts from."""
    return module in _MAINS or bool(every_release_of(module))


def releases_of(module: str) -> tuple[str, ...]:
    """The releases that have ``module`` as a main, newest last; all when none is known to."""
    if module in _MAINS:
        name = _MAINS[module]
        found = (
            VERL_RELEASES
            if name in FLAVOURS
            else tuple(version for version in VERL_RELEASES if release_tree(version).find(name))
        )
    else:
        package = module.partition(".")[0]
        named = tuple(version for version in VERL_RELEASES if module in recipes(version)["mains"])
        found = named or tuple(
            version
            for version in every_release_of(module)
            if any(name.startswith(f"{package}.") for name in _same(module, version))
        )
    return found or VERL_RELEASES


def every_release_of(module: str) -> tuple[str, ...]:
    """Return the releases that have ``module`` as a main under any name.

    Scripts written between two releases use the main of one and the keys of the other.
    """
    return tuple(version for version in VERL_RELEASES if _of_recipe(module, version))


def search_path(
    launch: Launch, version: str, arguments: LaunchArguments, root: Path, checkout: Checkout | None = None
) -> SearchPath:
    """The search path that Hydra would build. Files are read only inside ``root``, and of ``checkout``.

    Raises UserError when --config-path or --config-dir names a folder that cannot be read.
    """
    flags = arguments.flags
    tree = (checkout and checkout.tree) or release_tree(version)
    folder, primary = _main_config(launch.taken_for, version)
    main = checkout.main if checkout else None
    if main:
        folder, primary = main.path, main.name
        if is_tree(main.folder.path, main.folder.root):
            tree, folder = main.folder, _TREE
    name = flags.get("config_name")
    where = flags.words["config_name"].where if name else launch.where
    path = SearchPath((name or primary).removesuffix(".yaml"), [], tree, folder == _TREE, where)
    path.own_primary = path.primary != primary and not any(
        release_tree(version).find(path.primary) for version in VERL_RELEASES
    )
    if starts_out_of_reach(launch):
        reads = f"--also-read {shlex.quote(launch.cwd)} allows to read Hydra's configuration there"
        message = f"the launch starts in {launch.cwd}, where no file is read: {reads}"
        path.notes.append(Diagnostic("TP213", message, launch.where))
    if flags.get("config_dir") is not None:
        path.places.append(_folder(flags, "config_dir", path, version, root, launch))
    named = flags.get("config_path")
    # ``--config-path=config`` is relative to the main's file, so it names the main's own folder.
    if named is not None and posixpath.normpath(named) != posixpath.basename(folder):
        place = _folder(flags, "config_path", path, version, root, launch)
        path.declares_tree = place is path.tree
        if not path.declares_tree:
            path.places.append(place)
    elif folder != _TREE:
        path.places.append(main.folder if main else _recipe(folder, version))
    top = Path(launch.roots[0]) if launch.roots else root  # of the script; root may be where it went by cd
    _add_declared(path, arguments, (root, Path(launch.cwd), top), main)
    return path


def _main_config(module: str, version: str) -> tuple[str, str]:
    """(folder, config name) of a main; a recipe that the release lacks is taken from the nearest older."""
    if module in _MAINS:
        return _TREE, _MAINS[module]
    for candidate in _nearest(version):
        if found := _of_recipe(module, candidate):
            return found
    return _TREE, "ppo_trainer"


def _of_recipe(module: str, version: str) -> tuple[str, str] | None:
    """(folder, config name) of a recipe's main in a release, whatever the release calls it."""
    same = _same(module, version)
    if not same:
        return None
    folder, name = recipes(version)["mains"][same[0]]
    return folder, name


def _same(module: str, version: str) -> list[str]:
    """The names of a release's mains that are ``module``, its own name first."""
    mains = [name for name in recipes(version)["mains"] if canonical(name) == canonical(module)]
    return sorted(mains, key=lambda name: name != module)


def _recipe(folder: str, version: str) -> Tree:
    for candidate in _nearest(version):
        if folder in recipes(candidate)["dirs"]:
            return Tree.from_json(recipes(candidate)["dirs"][folder])
    return Tree()


def _folder(
    flags: HydraFlags, flag: str, path: SearchPath, version: str, root: Path, launch: Launch
) -> Tree | ConfigFolder:
    """The folder that --config-path or --config-dir names; notes where Hydra would look elsewhere."""
    spelled = flags.values[flag].removeprefix("file://")
    where = flags.words[flag].where
    # The user's folder of that name; --config-path is relative to where the main's file is.
    beside_main = [_folder_of_main(launch, root) / spelled] if flag == "config_path" else []
    there = (path for path in (*beside_main, root / spelled) if readable_folder(path, root, *launch.roots))
    unread = [path for path in launch.unread if not path.endswith(".py")]
    made = is_written(root / spelled, [*launch.wrote, *unread]) or is_changed(
        root / spelled / "_", launch.unread
    )
    found = next(there, root / spelled if made else None)
    if _is_tree(spelled) and (found is None or is_tree(found, root)):
        if found is not None:
            path.tree = ConfigFolder(found, root, defaults=True, shown=shown_below(found, root))
        return path.tree
    if found is not None:
        if flag == "config_path" and found == root / spelled and not spelled.startswith("/"):
            message = (
                f"Hydra takes --config-path {spelled} relative to"
                f" {shown_below(_folder_of_main(launch, root), root)}, where the main's file is, and would"
                f' not find it; write --config-path="$PWD/{spelled}"'
            )
            path.notes.append(Diagnostic("TP208", message, where, "error"))
        limit = Path(launch.roots[0]) if launch.roots and not found.is_relative_to(root) else root
        return ConfigFolder(found, limit, written=launch.wrote, unread=launch.unread)
    if (tail := _in_this_copy(spelled, path.primary, root)) is not None:
        message = f"{spelled} is not below {root}: its {tail} is taken, which has {path.primary}.yaml"
        path.notes.append(Diagnostic("TP213", message, where))
        return ConfigFolder(root / tail, root, written=launch.wrote, unread=launch.unread)
    known = _of_repository(spelled, version)
    if known is None:
        raise UserError(
            f"--{flag.replace('_', '-')} {spelled}: there is no such folder below {root}",
            where=where,
            hint="name the folder that holds it with --cwd",
        )
    message = f"{spelled} is not below {root}: the file of that name in veRL's own repository is taken"
    path.notes.append(Diagnostic("TP213", message, where))
    return known


def _is_tree(spelled: str) -> bool:
    return f"/{posixpath.normpath(spelled)}".endswith(f"/{_TREE}")


def _folder_of_main(launch: Launch, root: Path) -> Path:
    if launch.file:
        return Path(launch.file).parent
    return root.joinpath(*launch.module.split(".")[:-1])


def _in_this_copy(spelled: str, primary: str, root: Path) -> PurePosixPath | None:
    """Return the longest end of an absolute path that is a folder below ``root`` with the primary config.

    A script names the path in its author's copy of the repository.
    """
    if not spelled.startswith("/") or "\0" in spelled:
        return None
    parts = PurePosixPath(posixpath.normpath(spelled)).parts[1:]
    ends = (PurePosixPath(*parts[at:]) for at in range(len(parts)))
    return next((end for end in ends if readable_file(root / end / f"{primary}.yaml", root)), None)


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


def _add_declared(
    path: SearchPath, arguments: LaunchArguments, roots: tuple[Path, Path, Path], main: Main | None
) -> None:
    """Add the folders of ``hydra.searchpath``: the command line's first one, else the primary config's.

    The primary config itself is found without it. Packages are in the main's own folder.
    """
    file = path.find(path.primary) if path.places else None
    given = next((one for one in arguments.hydra if searches(one)), None)
    if given is None or (given.override.value is None and not given.word.open):
        hydra = file.config.get("hydra") if file else None
        declared = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
        _add_places(path, declared, roots, main)
    elif file is not None or path.tree.find(path.primary) is not None:
        path.notes += _add_given(path, given, roots, main)


def _add_given(
    path: SearchPath, given: GivenOverride, roots: tuple[Path, Path, Path], main: Main | None
) -> list[Diagnostic]:
    """Add the folders that the command line gives; return notes on them."""
    declared = given.override.value
    if given.word.open:
        unknown = f"depends on {given.word.open[0].expression}, which is known only at run time"
        return [Diagnostic("TP213", f"{given.spelling} {unknown}: no folder of it is read", given.where)]
    if not isinstance(declared, list) or not all(isinstance(entry, str) for entry in declared):
        message = f"{given.spelling}: Hydra demands a list of texts; write hydra.searchpath='[file://FOLDER]'"
        return [Diagnostic("TP208", message, given.where, "error")]
    return [
        Diagnostic(
            "TP213", f"{given.spelling}: {entry} is not a folder below {roots[0]}: not read", given.where
        )
        for entry in _add_places(path, declared, roots, main)
    ]


def _add_places(
    path: SearchPath, declared: object, roots: tuple[Path, Path, Path], main: Main | None
) -> list[str]:
    """Adds the folders of a ``hydra.searchpath``; returns those that cannot be read."""
    missing = []
    for entry in declared if isinstance(declared, list) else ():
        package = package_folder(str(entry))
        spelled = package or str(entry).removeprefix("file://")
        base, limit = (main.base, main.folder.root) if package and main else (roots[0], roots[0])
        if not package and readable_folder(roots[1] / spelled, limit):
            base = roots[1]  # the launch's own working directory, where Hydra looks
        if _is_tree(spelled):
            path.declares_tree = True
            if not package and _lacks(roots[1], spelled, roots[2]):
                message = (
                    f"hydra.searchpath: {entry} is not below {roots[1]}, where the launch starts, so that"
                )
                path.notes.append(
                    Diagnostic("TP213", f"{message} Hydra finds none; veRL's own folder is taken", path.where)
                )
        elif readable_folder(base / spelled, limit):
            own = bool(package and main)
            shown = shown_below(base / spelled, limit) if own else ""
            path.places.append(ConfigFolder(base / spelled, limit, defaults=own, shown=shown))
        else:
            missing.append(str(entry))
    return missing


def _lacks(start: Path, spelled: str, root: Path) -> bool:
    """Return True for a relative folder that is missing where the launch starts, if that is below ``root``.

    At the root itself the script may be all that was copied from its repository.
    """
    inside = start != root and readable_folder(start, root)
    return inside and not spelled.startswith("/") and not readable_folder(start / spelled, root)


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
            return _through_groups(path) or (None, content)
        name = below[0]
    return name, content


def _through_groups(path: SearchPath) -> tuple[str, dict[str, object]] | None:
    """Return user_keys where a config group of the user leads to veRL's by its default choice."""
    try:
        parts = defaults_list(path.find, path.primary, Choices())
    except CompositionError:
        return None
    files = [file for _, file in parts]
    flavour = next((name for name in FLAVOURS if path.tree.find(name) in files), None)
    return (flavour, merge_parts([part for part in parts if part[1].source])) if flavour else None
