"""Programs that change files: in memory, so that what the script reads later is what it would find."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from trinity_compat.launch.bash.files import spelled
from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import Value, doubt_in, text_of
from trinity_compat.launch.model import UnknownPiece

MADE = 2000  # folders


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
    """The files are gone."""
    for path in _paths(sh, given):
        sh.files.remove(path, UnknownPiece(f"rm {path.rpartition('/')[2]}", sh.where))
    sh.files.made_open -= {spelled(operand).rstrip("/") for operand in given.operands}
    return 0


def cp(sh: Shell, given: ParsedOptions) -> int:
    """``cp file file``, ``cp files folder``."""
    for source, target in _moves(sh, given):
        if sh.files.kind(source) != "":
            sh.files.write(target, _content(sh, source, "cp"), append=False)
    return 0


def mv(sh: Shell, given: ParsedOptions) -> int:
    """``mv file file``, ``mv files folder``; a folder is not followed."""
    for source, target in _moves(sh, given):
        if sh.files.kind(source) in ("file", None):
            sh.files.write(target, _content(sh, source, "mv"), append=False)
            sh.files.remove(source, UnknownPiece(f"mv {source.rpartition('/')[2]}", sh.where))
    return 0


def _moves(sh: Shell, given: ParsedOptions) -> Iterator[tuple[str, str]]:
    """Each file and where it goes; none where a path isn't known."""
    paths = list(_paths(sh, given))
    if len(paths) < len(given.operands) or len(paths) < 2:
        return
    *sources, target = paths
    into = sh.files.kind(target) == "dir"
    for source in sources:
        yield source, posixpath.join(target, posixpath.basename(source)) if into else target


def _content(sh: Shell, source: str, program: str) -> Value:
    """The text of the file; open where it can't be read."""
    content = sh.files.read(source)
    return (sh.unknown(f"{program} {source}", sh.where),) if content is None else content


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
