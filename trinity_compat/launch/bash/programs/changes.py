"""Programs that change files: in memory, so that what the script reads later is what it would find."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator

from trinity_compat.common import limits
from trinity_compat.launch.bash.files import absolute, spelled
from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    TextPiece,
    Value,
    doubt_in,
    open_source,
    shown,
    text_of,
)
from trinity_compat.launch.model import UnknownPiece

MADE = 2000  # folders
COPIED = 1000  # files of one folder
READ = (".yaml", ".yml", ".py", ".sh", ".env")  # those of a folder whose content a launch may depend on


def _paths(sh: Shell, given: ParsedOptions) -> Iterator[str]:
    """The operands whose path is known."""
    for operand in given.operands:
        if text_of(operand) and not doubt_in([operand]):
            yield sh.files_path(operand)


def mkdir(sh: Shell, given: ParsedOptions) -> int:
    """The folders are there from now on, and those above them."""
    if doubt_in([sh.cwd]):
        return 0
    for path in _paths(sh, given):
        _make(path, sh.files.made_dirs)
    for operand in given.operands:
        if doubt_in([operand]):
            _make(spelled(operand).rstrip("/"), sh.files.made_open)
    return 0


def _make(path: str, folders: set[str]) -> None:
    # with or without -p: a script that goes on has the folders above it
    while path not in ("/", "") and len(folders) < MADE:
        folders.add(path)
        path = posixpath.dirname(path)


def rm(sh: Shell, given: ParsedOptions) -> int:
    """The files are gone, and the folders with all that is in them."""
    for path in _paths(sh, given):
        _remove(sh, path, UnknownPiece(f"rm {path.rpartition('/')[2]}", sh.where))
    sh.files.made_open -= {spelled(operand).rstrip("/") for operand in given.operands}
    return 0


def _remove(sh: Shell, path: str, why: UnknownPiece) -> None:
    if sh.files.kind(path) == "dir":
        sh.files.hand(f"{path}/", why)
    sh.files.remove(path, why)


def cp(sh: Shell, given: ParsedOptions) -> int:
    """``cp file file``, ``cp files folder``, and folders with all that is in them."""
    for source, path in _moves(sh, given):
        _copy(sh, source, path, UnknownPiece(f"cp {shown(source)}", sh.where))
    return 0


def mv(sh: Shell, given: ParsedOptions) -> int:
    """``mv file file``, ``mv files folder``, and folders with all that is in them."""
    for source, path in _moves(sh, given):
        at, why = sh.files_path(source), UnknownPiece(f"mv {shown(source)}", sh.where)
        _copy(sh, source, path, why)
        if not doubt_in([source]) and sh.files.kind(at):
            _remove(sh, at, why)
    return 0


def _moves(sh: Shell, given: ParsedOptions) -> Iterator[tuple[Value, str]]:
    folder = [given.value("t")] if given.has("t") else []
    *sources, target = given.operands + folder or [EMPTY]
    yield from landings(sh, sources, target)


def landings(sh: Shell, sources: list[Value], target: Value) -> Iterator[tuple[Value, str]]:
    """Each source of a copy, and its path at ``target``; with ``/`` at the end: any below that folder.

    None where it is not known where the target is.
    """
    if doubt_in([target]) or not text_of(target):
        return
    place = sh.files_path(target)
    into = len(sources) > 1 or text_of(target).endswith("/") or sh.files.kind(place) == "dir"
    for source in sources:
        last = re.split("[/:]", settled(source).rstrip("/"))[-1]
        if not into:
            yield source, place
        elif path := f"{place}/" if last in ("", ".", "..") else of_pattern(place, last):
            yield source, path


def settled(value: Value) -> str:
    """The text of a path, as a pattern where a piece of it isn't known."""
    return "".join("*" if open_source(bit) else bit.text for bit in value)


def of_pattern(folder: str, name: str) -> str:
    """The path of ``name`` in a folder; of a pattern the folder with ``/``, empty for unread kinds."""
    if not re.search(r"[*?[]", name):
        return absolute(folder, name)
    suffix = posixpath.splitext(name)[1]
    return f"{folder}/" if not suffix or suffix in READ or re.search(r"[*?[{]", suffix) else ""


def _copy(sh: Shell, source: Value, path: str, why: UnknownPiece) -> None:
    """A copy of a file, or of a folder; open where it can't be read, or is large."""
    files, at, target = sh.files, sh.files_path(source), path.rstrip("/")
    kind = None if doubt_in([source]) else files.kind(at)
    below = [at] if kind == "file" and not path.endswith("/") else []
    if kind == "dir":
        found = [*itertools.islice(files.below(at), COPIED)]
        sh.budget.step(len(found))
        below = [each for each in found if each.endswith(READ)] if len(found) < COPIED else []
        kind = None if len(found) == COPIED or sum(map(files.size, below)) > limits.SCRIPT else kind
    if kind == "dir":
        _make(target, files.made_dirs)
    elif not below and kind != "":
        files.hand(path, why)
        files.hand(f"{target}/", why)
    for each in below if kind else ():
        content = files.read(each)
        files.write(
            target + each[len(at) :],
            (TextPiece("", why.where, why),) if content is None else content,
            append=False,
        )


def touch(sh: Shell, given: ParsedOptions) -> int:
    """The files are there, and empty if they were not."""
    for path in _paths(sh, given):
        if sh.files.kind(path) in ("", None):
            sh.files.write(path, (), append=True)
    return 0


def sed(sh: Shell, given: ParsedOptions) -> int | None:
    """``sed -i``: from here on nobody knows what is in the files. What else sed prints is not computed."""
    if not given.has("i"):
        return None
    for path in list(_paths(sh, given))[0 if given.has("ef") else 1 :]:
        if sh.files.read(path):
            sh.files.write(path, (sh.unknown(f"sed -i {path}", sh.where),), append=False)
    return 0


def nothing(sh: Shell, given: ParsedOptions) -> int:
    """Succeed without any effect that a script could see here."""
    return 0
