"""The tree of veRL's code from which a script starts: a fork, a copy, a clone. Read as text, never imported.

Hydra takes the configuration from the folder of the main's module. The module is found as Python would find
it, by the script's text: in its working directory (``python -m`` searches it first), PYTHONPATH, then the
repository of the script, where people install it from (``pip install -e .``, ``cd verl && …``).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trinity_compat.common.readable_files import content
from trinity_compat.launch.model import Launch
from trinity_compat.launch.python.hydra_main import hydra_config, package_folder
from trinity_compat.verl_config.config_folders import (
    ConfigFolder,
    readable_file,
    readable_folder,
    shown_below,
)

TREE = "verl/trainer/config"
_MARKS = ("setup.py", "pyproject.toml")
_LARGEST_MAIN = 1_000_000  # bytes; veRL's own have some 20,000


@dataclass(frozen=True)
class Main:
    """The config and its folder that ``@hydra.main`` names in a main's own file.

    ``path``: the folder, relative to the place from which the module is imported.
    """

    path: str
    folder: ConfigFolder
    name: str

    @property
    def base(self) -> Path:
        """Return the folder from which Python imports the config folder's package."""
        return self.folder.path.parents[len(PurePosixPath(self.path).parts) - 1]


@dataclass(frozen=True)
class Checkout:
    """``tree`` is its verl/trainer/config, ``main`` what the launch's main names; None where it has none."""

    tree: ConfigFolder | None
    main: Main | None


def find_checkout(launch: Launch, root: Path) -> Checkout | None:
    """Find the code from which ``launch`` starts.

    Files are read inside ``root`` and inside the script's own repository only. None where it has neither
    config files of veRL's nor a main that names some.
    """
    main: Main | None = None
    tree: ConfigFolder | None = None
    bases = list(_bases(launch, root))
    for base, limit in bases:
        main = main or _main(base, limit, launch, bases)
        if tree is None and is_tree(base / TREE, limit):
            tree = _folder(base, limit, TREE)
        if main and tree:
            break
    return Checkout(tree, main) if main or tree else None


def is_tree(folder: Path, root: Path) -> bool:
    """Return whether a folder inside ``root`` has the configuration of veRL's PPO mains."""
    return readable_file(folder / "ppo_trainer.yaml", root)


def _bases(launch: Launch, root: Path) -> Iterator[tuple[Path, Path]]:
    """(folder that Python may import from, folder that confines what is read), the likeliest first."""
    here = Path(launch.cwd)
    python_path = launch.start.python_path if launch.start else ""
    yield here, root
    yield from ((here / entry, root) for entry in python_path.split(":") if entry)
    repository = _repository(launch, root)
    if repository is not None:
        for folder in Path(launch.where.file).absolute().parents:
            yield from _with_inner(folder, repository)
            if folder == repository:
                break
    yield from _with_inner(root, root)
    if launch.file:
        folder = Path(launch.roots[0])
        yield folder, folder
        yield Path(launch.file).parent, folder


def _with_inner(folder: Path, limit: Path) -> Iterator[tuple[Path, Path]]:
    """A repository often holds veRL's as ``verl/``, a submodule or a copy, or its packages in ``src/``."""
    yield folder, limit
    yield folder / "verl", limit
    yield folder / "src", limit


def _repository(launch: Launch, root: Path) -> Path | None:
    """Return the repository of the script's file.

    Up to its .git, else up to ``root``, else up to the outermost folder that is a Python project; None for a
    launch without a file, or in one that the script writes out of reach.
    """
    script = Path(launch.where.file)
    if not readable_file(script, *(launch.roots or [script.absolute().parent])):
        return None
    above = script.absolute().parents
    marked = next((folder for folder in above if (folder / ".git").exists()), None)
    if marked is not None or root.absolute() in above:
        return marked or root.absolute()
    projects = [folder for folder in above if any((folder / mark).is_file() for mark in _MARKS)]
    return projects[-1] if projects else above[0]


def _main(base: Path, limit: Path, launch: Launch, bases: Sequence[tuple[Path, Path]]) -> Main | None:
    """Read the config that the main's file names, if it is below ``base`` and written as literals.

    The folder of a package is searched in all ``bases``.
    """
    file, above = PurePosixPath(launch.file), base.absolute()
    if file.is_relative_to(above):
        file = file.relative_to(above)
    else:
        file = PurePosixPath(launch.module.replace(".", "/") + ".py")
    if not readable_file(base / file, limit):
        return None
    try:
        text = content(base / file, (limit,), _LARGEST_MAIN).decode()
    except (OSError, UnicodeDecodeError):  # also for a file that is none of a main's size
        return None
    named = hydra_config(text)
    if named is None:
        return None
    if package := package_folder(named[0]):
        found = ((at, inside) for at, inside in bases if readable_folder(at / package, inside))
        return next((Main(package, _folder(at, inside, package), named[1]) for at, inside in found), None)
    folder = posixpath.normpath(file.parent / named[0])
    if folder.startswith(("..", "/")) or not readable_folder(base / folder, limit):
        return None
    return Main(folder, _folder(base, limit, folder), named[1])


def _folder(base: Path, limit: Path, path: str) -> ConfigFolder:
    return ConfigFolder(base / path, limit, defaults=True, shown=shown_below(base / path, limit))
