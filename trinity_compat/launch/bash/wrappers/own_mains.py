"""Training mains of a user's own that their arguments do not reveal.

The file of such a main is in the tree, Hydra starts it, and its configuration has veRL's sections.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import literal, text_of
from trinity_compat.launch.launchers import name_of
from trinity_compat.launch.python.hydra_main import hydra_config, package_folder

_SECTION = re.compile(r"(?m)^actor_rollout_ref:")
_ON_VERL_S = re.compile(r"(?m)^\s*-\s*[\"']?/?(ppo_trainer|ppo_megatron_trainer)\b")
_DEFAULT = re.compile(r"(?m)^\s*-\s*[\"']?/?([\w/-]+)[\"']?\s*$")
_STARTS = re.compile(r"\b(subprocess|os\.(system|popen|exec\w+|spawn\w+))\b")
_DEPTH = 4  # configurations that build on each other
_CONFIG_PATH = ("--config-path", "-cp")
_CONFIG_NAME = ("--config-name", "-cn")


def find(sh: Shell, words: Sequence[str]) -> entrypoints.FoundMain | None:
    """The main that ``words`` start, where it is such a one; its files are read as a script's are."""
    found = entrypoints.started(words, text_of(sh.cwd))
    if found is None or not entrypoints.may_stand_in(found.module):
        return None
    path = _path(sh, found)
    named = hydra_config(_text(sh, path))
    if named is None:
        return None
    package = package_folder(named[0])
    above = text_of(sh.cwd) if package else posixpath.dirname(path)
    folder = posixpath.normpath(posixpath.join(above, package or named[0]))
    name, arguments = "", words[found.arguments :]
    for at, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in _CONFIG_NAME:
            name = value if equals else "".join(arguments[at + 1 : at + 2])
            break
    name = name or named[1]
    return replace(found, main=entrypoints.PPO) if _is_verl_s(sh, folder, name, _DEPTH) else None


def code_starts_main(sh: Shell, words: Sequence[str]) -> bool:
    """Tell whether a Python command's code, of a file here or of stdin, seems to start a training main."""
    if not entrypoints.PYTHON.fullmatch(name_of(words[0])) or "-c" in words:
        return False
    found = entrypoints.started(words, text_of(sh.cwd))
    code = _text(sh, _path(sh, found)) if found else text_of(sh.stdin or ())
    return bool(_STARTS.search(code)) and entrypoints.names_training_main(f"{words[0]} {code}")


def file_of(sh: Shell, found: entrypoints.FoundMain, words: Sequence[str]) -> str:
    """The file of a main that is started by its path, empty where it is not here.

    Warns where it is another one here, and where the configuration that it names is lost.
    """
    path, here = _here(sh, found.file)
    given = {word.partition("=")[0] for word in words}
    if sh.files.kind(here) == "file":
        if here != path:
            end = posixpath.relpath(here, sh.files.roots[0])
            sh.warn("TP106", f"{path}: {end}, the end of that path below --cwd, is read in its place")
        return here
    if found.main and not all(map(given.intersection, (_CONFIG_PATH, _CONFIG_NAME))):
        also = (
            f"--also-read {shlex.quote(posixpath.dirname(path))} reads it" if posixpath.exists(path) else ""
        )
        lost = "the configuration that its @hydra.main names is not read, and veRL's own is used instead"
        way = also or "name the folder that holds it with --cwd"
        sh.warn("TP106", f"{found.file}: not under --cwd; {lost}: {way}")
    return ""


def _path(sh: Shell, found: entrypoints.FoundMain) -> str:
    return found.file or f"{text_of(sh.cwd)}/{found.module.replace('.', '/')}.py"


def _here(sh: Shell, spelled: str) -> tuple[str, str]:
    """A path from the shell's folder, and the file that stands for it here: an end of it below ``--cwd``."""
    path = sh.files_path(literal(spelled, sh.where))
    end = sh.files.end_of(path)
    return path, absolute(sh.files.roots[0], end) if end else path


def _is_verl_s(sh: Shell, folder: str, name: str, depth: int) -> bool:
    text = _text(sh, f"{folder}/{name.removesuffix('.yaml')}.yaml")
    if _SECTION.search(text) or _ON_VERL_S.search(text):
        return True
    below = _DEFAULT.findall(text) if depth and re.search(r"(?m)^defaults:", text) else ()
    return any(_is_verl_s(sh, folder, other, depth - 1) for other in below if other != "_self_")


def _text(sh: Shell, path: str) -> str:
    _, path = _here(sh, path)
    content = sh.files.read(path, as_it_is=True) if sh.files.kind(path) == "file" else None
    return text_of(content or ())
