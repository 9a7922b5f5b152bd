"""Training mains of a user's own that their arguments do not reveal.

The file of such a main is in the tree, Hydra starts it, and its configuration has veRL's sections.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace

from trinity_compat.launch import entrypoints
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import literal, text_of
from trinity_compat.launch.python.hydra_main import hydra_config, package_folder

_SECTION = re.compile(r"(?m)^actor_rollout_ref:")
_ON_VERL_S = re.compile(r"(?m)^\s*-\s*[\"']?/?(ppo_trainer|ppo_megatron_trainer)\b")
_DEFAULT = re.compile(r"(?m)^\s*-\s*[\"']?/?([\w/-]+)[\"']?\s*$")
_DEPTH = 4  # configurations that build on each other
_CONFIG_NAME = ("--config-name", "-cn")


def find(sh: Shell, words: Sequence[str]) -> entrypoints.FoundMain | None:
    """The main that ``words`` start, where it is such a one; its files are read as a script's are."""
    found = entrypoints.started(words, text_of(sh.cwd))
    if found is None or not entrypoints.may_stand_in(found.module):
        return None
    path = f"{text_of(sh.cwd)}/{found.module.replace('.', '/')}.py"
    named = hydra_config(_text(sh, path))
    if named is None:
        return None
    package = package_folder(named[0])
    above = text_of(sh.cwd) if package else posixpath.dirname(path)
    folder = posixpath.normpath(posixpath.join(above, package or named[0]))
    name = _given_name(words[found.arguments :]) or named[1]
    return replace(found, main=entrypoints.PPO) if _is_verl_s(sh, folder, name, _DEPTH) else None


def _given_name(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in _CONFIG_NAME:
            return value if equals else "".join(words[at + 1 : at + 2])
    return ""


def _is_verl_s(sh: Shell, folder: str, name: str, depth: int) -> bool:
    text = _text(sh, f"{folder}/{name.removesuffix('.yaml')}.yaml")
    if _SECTION.search(text) or _ON_VERL_S.search(text):
        return True
    below = _DEFAULT.findall(text) if depth and re.search(r"(?m)^defaults:", text) else ()
    return any(_is_verl_s(sh, folder, other, depth - 1) for other in below if other != "_self_")


def _text(sh: Shell, path: str) -> str:
    path = sh.files_path(literal(path, sh.where))
    content = sh.files.read(path, as_it_is=True) if sh.files.kind(path) == "file" else None
    return text_of(content or ())
