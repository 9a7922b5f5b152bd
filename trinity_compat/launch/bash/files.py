"""The files that a script may look at: those under ``--cwd`` or ``--also-read``, and those it wrote itself.

Nothing is ever written. A file that the script makes (``cat > run.sh <<EOF``) lives in memory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinity_compat.common import limits, readable_files
from trinity_compat.common.errors import Where
from trinity_compat.common.limits import BudgetExceeded
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, open_source, text_of
from trinity_compat.launch.model import EnvRef, UnknownPiece


def absolute(folder: str, path: str) -> str:
    """Return ``path`` as an absolute path from ``folder``, without ``.`` and ``..``; no link is followed."""
    normal = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - Path keeps the dots
    return normal[1:] if normal.startswith("//") else normal  # which normpath keeps


def changed_by(path: str, changed: Mapping[str, UnknownPiece | None]) -> UnknownPiece | None:
    """Return the program that may have changed a file: its own entry's, or the nearest folder's (``/w/``)."""
    ends = (at for at in range(len(path), 0, -1) if path[at - 1] == "/")
    return next((changed[key] for key in (path, *(path[:end] for end in ends)) if key in changed), None)


def spelled(path: Value) -> str:
    """Return a path as text, with ``$NAME`` or the expression in place of each unknown piece."""
    sources = [(open_source(bit), bit.text) for bit in path]
    return "".join(f"${s.name}" if isinstance(s, EnvRef) else s.expression if s else t for s, t in sources)


_WRITES = re.compile(r"""["'][wax]b?\+?["']|write|dump|rename|replace|copy|move""")  # in code
_ADDRESS = re.compile(r"\w+://")
_NAMED = re.compile(r"""(?<=["'])[\w./-]+\.\w+(?=["'])""")


@dataclass(slots=True)
class PathFacts:
    """Facts about files, from the disk and from the script. Paths given here are absolute and normalised."""

    roots: tuple[str, ...]  # --cwd, and the script that the command line names
    written: dict[str, Value] = field(default_factory=dict)
    made_dirs: set[str] = field(default_factory=set)
    made_open: set[str] = field(default_factory=set)  # folders whose path isn't known, as `spelled` has them
    removed: dict[str, UnknownPiece] = field(default_factory=dict)  # and the command that removed it
    # to programs that aren't read, which may write them: the path, or a folder with "/" at its end for all
    # below it, and the program; None: what it holds is known again (see `changed_by`)
    handed: dict[str, UnknownPiece | None] = field(default_factory=dict)
    read_bytes: int = 0

    def in_reach(self, path: str) -> bool:
        """Return whether a path, links followed, leads to where files may be looked at."""
        try:
            readable_files.real_path(path, self.roots)
        except OSError:
            return False
        return True

    def kind(self, path: str) -> str | None:
        """Return ``"file"``, ``"dir"`` or ``"other"``; ``""`` if nothing is there, None if unknown."""
        # what the script wrote comes first: a path that was removed may have been written again
        if path in self.written:
            return "file"
        if path in self.made_dirs:
            return "dir"
        if path in self.removed:
            return ""
        if path == "/dev/null":
            return "other"
        if "\0" in path or not self.in_reach(path):
            return None
        return self._kind_on_disk(path) or (None if self._is_brought(path) else "")

    def _is_brought(self, path: str) -> bool:
        """Return whether a path lies in a folder that isn't here, and that a program brings."""
        above = [f"{path}/"[:at] for at, char in enumerate(f"{path}/", 1) if char == "/"]
        return any(self.handed.get(folder) and not self._kind_on_disk(folder) for folder in above)

    @staticmethod
    def _kind_on_disk(path: str) -> str:
        try:
            mode = Path(path).stat().st_mode
        except (OSError, ValueError):
            return ""
        if stat.S_ISREG(mode):
            return "file"
        return "dir" if stat.S_ISDIR(mode) else "other"

    def end_of(self, path: str) -> str:
        """Return the longest end of a path that names a file below ``--cwd``, or empty.

        Empty also where the path may be looked at, or leads to something on this machine.
        """
        if self.kind(path) is not None or os.path.lexists(path):
            return ""
        parts = path.split("/")[1:]
        ends = ("/".join(parts[at:]) for at in range(1, len(parts)))
        return next((end for end in ends if self.kind(absolute(self.roots[0], end)) == "file"), "")

    def size(self, path: str) -> int:
        """Bytes of a file that is in reach."""
        if path in self.written:
            return len(text_of(self.written[path]).encode(errors="surrogateescape"))
        return Path(path).stat().st_size

    def read(self, path: str, *, as_it_is: bool = False) -> Value | None:
        """The content of a regular file, None when it isn't there, too large or out of reach.

        Open where a program may have changed it, but for ``as_it_is``.
        """
        if path == "/dev/null":
            return ()
        if path in self.removed:
            return None
        if not as_it_is and (why := changed_by(path, self.handed)) is not None:
            return (TextPiece("", why.where, why),)
        if path in self.written:
            return self.written[path]
        try:
            data = readable_files.content(path, self.roots, limits.SCRIPT)
        except OSError:
            return None
        self.read_bytes += len(data)
        if self.read_bytes > 16 * limits.SCRIPT:
            raise BudgetExceeded("too many files")
        text = data.replace(b"\0", b"").decode(errors="surrogateescape")
        return lines_of(text, Where(path, 1))

    def write(self, path: str, value: Value, *, append: bool) -> None:
        """Keep what the script writes to a file."""
        before: Value = ()
        if append:
            before = self.read(path) or ()
        self.written[path] = before + value
        self.removed.pop(path, None)
        self.handed[path] = None
        total = sum(len(bit.text) for kept in self.written.values() for bit in kept)
        if total > limits.OVERLAY or len(self.written) > 2000:
            raise BudgetExceeded("the script writes too much")

    def wrote(self, suffixes: tuple[str, ...]) -> dict[str, str]:
        """The files of these kinds that the script wrote, as far as all of their text is known."""
        named = {path: value for path, value in self.written.items() if path.endswith(suffixes)}
        return {path: text_of(value) for path, value in named.items() if not any(map(open_source, value))}

    def unread_at(self, path: str) -> UnknownPiece | None:
        """The program that wrote or may have changed a file whose text isn't known, else None."""
        written = self.written.get(path, ())
        unknown = (bit.source for bit in written if isinstance(bit.source, UnknownPiece))
        return changed_by(path, self.handed) or next(unknown, None)

    def unread(self, suffixes: tuple[str, ...]) -> dict[str, UnknownPiece | None]:
        """The files of these kinds and the folders that programs may have changed, and removed files.

        A program that isn't read has to make them again, or the launch finds none.
        """
        named = (path for path in self.handed if path.endswith((*suffixes, "/")))
        found = {path: why for path, why in self.removed.items() if path.endswith(suffixes)}
        return found | {path: self.unread_at(path) for path in named}

    def given_to_unread(self, folder: str, words: list[str], why: UnknownPiece) -> None:
        """Words of a program that isn't read, started in ``folder``: each may be a path that it writes.

        So may each name of a file in code that writes one, and in a folder that is named the last part of
        each: ``scp host:conf.yaml .``, and of an address (``wget URL``) that in ``folder``.
        """
        values = [word if _ADDRESS.match(word) else word.rpartition("=")[2] for word in words]
        values += [name for word in words if _WRITES.search(word) for name in _NAMED.findall(word)]
        named = [absolute(folder, value) for value in values if value and not value.startswith("-")]
        folders = [path for path in named if self.kind(path) == "dir"]
        folders += [folder] if any("://" in value for value in values) else []
        lasts = {re.split("[/:]", path.partition("?")[0])[-1] for path in named if path not in folders}
        for path in (*named, *(absolute(each, last) for each in folders for last in lasts)):
            self.hand(path, why)

    def hand(self, path: str, why: UnknownPiece) -> None:
        """A file whose text is not known from here on; with ``/`` at its end, a folder of such files."""
        below = [path]
        if path.endswith("/"):
            below += [known for known in (*self.handed, *self.removed) if known.startswith(path)]
        for known in below:
            self.handed.pop(known, None)
            self.removed.pop(known, None)
        if len(self.handed) < limits.FIELDS:
            self.handed[path] = why

    def below(self, folder: str) -> Iterator[str]:
        """The files in a folder and in those below it."""
        folders = [folder]
        for each in folders:
            paths = [absolute(each, name) for name in self.children(each)]
            inner = [path for path in paths if self.kind(path) == "dir"]
            folders += inner[: limits.FIELDS - len(folders)]
            yield from (path for path in paths if path not in inner)

    def maybe_made(self) -> set[str]:
        """The files and folders that are not on the disk now and may be there at this place of the script."""
        handed = (path for path, why in self.handed.items() if why is not None and not path.endswith("/"))
        return {*self.written, *self.made_dirs, *handed}

    def remove(self, path: str, why: UnknownPiece) -> None:
        """``rm``: only in memory."""
        self.written.pop(path, None)
        self.handed.pop(path, None)
        self.made_dirs.discard(path)
        self.removed[path] = why

    def children(self, path: str) -> list[str]:
        """Names in a directory that is in reach."""
        try:
            names = readable_files.names(path, self.roots, limits.FIELDS)
        except OSError:
            names = []
        # the disk as the script left it: with what it wrote, without what it removed
        prefix = path.rstrip("/") + "/"
        new = [p[len(prefix) :] for p in (*self.written, *self.made_dirs) if p.startswith(prefix)]
        gone = {p[len(prefix) :] for p in self.removed if p.startswith(prefix)}
        return sorted({*names, *(name for name in new if "/" not in name)} - gone)
