"""Names of paths: ``basename``, ``dirname``, ``realpath``, ``readlink -f``, git's top folder."""

from __future__ import annotations

import os
import posixpath
from pathlib import PurePosixPath

from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import EMPTY, Value, doubt_in, literal, text_of
from trinity_compat.launch.bash.words.operators import cut_value


def basename(sh: Shell, given: ParsedOptions) -> int:
    """``basename path [suffix]``, ``basename -a [-s suffix] paths``."""
    suffix, paths = given.text("s"), given.operands
    if len(paths) == 2 and not given.has("as"):
        suffix, paths = text_of(paths[1]), paths[:1]
    for path in paths:
        sh.write_line(_base_of(path, suffix))
    return 0 if paths else 1


def _base_of(path: Value, suffix: str) -> Value:
    text = text_of(path)
    stripped = text.rstrip("/")
    if not stripped:
        return path if not text else literal("/", path[0].where)
    start, stop = stripped.rfind("/") + 1, len(stripped)
    if suffix and stripped.endswith(suffix) and stripped[start:] != suffix:
        stop -= len(suffix)
    where = path[0].where
    # the last slash is looked for from the end: what is unknown further left cannot move it
    head = cut_value(path, (start, len(text)), f"basename {text}", where, sure=True)
    if stop == len(text) or doubt_in([head]):
        return head
    return literal(text[start:stop], where)


def dirname(sh: Shell, given: ParsedOptions) -> int:
    """``dirname paths``."""
    for path in given.operands:
        text = text_of(path)
        folder = posixpath.dirname(text.rstrip("/")).rstrip("/") or ("/" if text.startswith("/") else ".")
        if doubt_in([path]) is None:
            sh.write_line(literal(folder, sh.where))
        else:
            sh.write_line(cut_value(path, (0, len(folder)), f"dirname {text}", sh.where, sure=True))
    return 0 if given.operands else 1


def realpath(sh: Shell, given: ParsedOptions) -> int | None:
    """``realpath [--relative-to folder] paths``; links are followed only where files may be looked at."""
    base = given.value("R")
    if doubt_in([base]):
        return None
    for path in given.operands:
        # of a path that isn't known the text is kept: where its links lead is for the run to say
        if doubt_in([path]) or doubt_in([sh.cwd]):
            if not text_of(path).startswith("/"):
                return None
            sh.write_line(path)
            continue
        found = sh.files_path(path)
        if sh.files.in_reach(found):
            found = os.path.realpath(found)
        if base:
            found = os.path.relpath(found, sh.files_path(base))
        sh.write_line(literal(found, sh.where))
    return 0 if given.operands else 1


def readlink(sh: Shell, given: ParsedOptions) -> int | None:
    """``readlink -f``, ``-e`` and ``-m``, which are ``realpath``."""
    return realpath(sh, given) if given.has("fem") else None


def git(sh: Shell, given: ParsedOptions) -> int | None:
    """``git [-C folder] rev-parse --show-toplevel``: the next folder upwards with a .git."""
    words = given.operands
    folder = words[1] if len(words) == 4 and text_of(words[0]) == "-C" else EMPTY
    if [text_of(word) for word in (words[2:] if folder else words)] != ["rev-parse", "--show-toplevel"]:
        return None
    if doubt_in([folder]) or doubt_in([sh.cwd]):
        return None
    top = repository(sh, sh.files_path(folder))
    return None if top is None else sh.write_line(literal(top, sh.where))


def repository(sh: Shell, folder: str) -> str | None:
    """The folder itself or the next one above it that has a .git."""
    below = PurePosixPath(folder)
    found = (at for at in (below, *below.parents) if sh.files.kind(str(at / ".git")) in ("dir", "file"))
    return next(map(str, found), None)
