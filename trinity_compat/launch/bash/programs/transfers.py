"""Programs that write files which no word names: copies, downloads, archives, version control."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.programs.changes import landings, of_pattern, settled
from trinity_compat.launch.bash.programs.paths import repository
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import EMPTY, Value, doubt_in, literal, text_of
from trinity_compat.launch.launchers import name_of

_PATTERN = "I"  # the letter that stands here for an option with names of files
_OTHER = "X"  # for a long one with a value of another kind
_FLAG = "Z"  # and for long ones without, with which more files are written than a word names
Places = Callable[[Shell, ParsedOptions, Value], Iterator[str]]

_ANY = OptionSpec(lenient=True)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A program that copies or fetches files.

    ``places`` yields the paths that it may write, a folder with ``/`` at its end for all below it, from the
    options, the operands and the value of the option ``folder``. ``words``: a pattern of those with which it
    writes files here. ``exact``: it writes no other word's path.
    """

    places: Places
    options: OptionSpec = _ANY
    folder: str = ""
    words: str = ""
    exact: bool = True


def paths_written(sh: Shell, fields: list[Value]) -> tuple[list[str], bool]:
    """The paths that a command may write (see `Transfer`), and whether it writes no others."""
    name, *words = fields
    row = TRANSFERS.get(name_of(text_of(name)))
    if row is None:
        return [], False
    first = text_of(words[0]) if words else ""
    if row is _TAR and first[:1].isalpha():  # `tar xf FILE`
        words[0] = literal(f"-{first}", sh.where)
    given = row.options.read(words)
    folder = given.value(row.folder) if given else EMPTY
    if given is None or doubt_in([folder]) or not re.search(row.words, " ".join(map(text_of, words))):
        return [], row.exact
    return [*row.places(sh, given, folder)], row.exact


def _copies(verbs: int, whole: str = "$^") -> Places:
    """Copies to the last operand. ``whole``: with such words in front, of all that is in a folder."""

    def places(sh: Shell, given: ParsedOptions, folder: Value) -> Iterator[str]:
        *sources, target = given.operands[verbs:] or [EMPTY]
        if re.match(r"[^/]+:|[a-z0-9]+://", text_of(target)):  # of another host, of a store
            return
        told = " ".join([*given.texts()[:verbs], *given.options])
        for source, path in landings(sh, sources, target):
            of_all = re.search(whole, told) or text_of(source).endswith(("/", "/."))
            yield from _file_or_folder(f"{sh.files_path(target)}/" if of_all else path)

    return places


def _file_or_folder(path: str) -> tuple[str, str]:
    return path, posixpath.join(path, "")


def _into(members: int, default: str = ".") -> Places:
    """Writes into a folder: the operands from number ``members`` on, and any file where there are none."""

    def places(sh: Shell, given: ParsedOptions, folder: Value) -> Iterator[str]:
        if not (folder or default):
            return
        path = sh.files_path(folder or literal(default, sh.where))
        named = [text_of(each) for each in (*given.operands[members:], *given.options.get(_PATTERN, []))]
        for place in (of_pattern(path, name) for name in named or ["*"]):
            yield from _file_or_folder(place) if place else ()

    return places


def _downloads(file: str, several: str, by_name: str = "") -> Places:
    """Writes what the option ``file`` names, else (with ``by_name``) the last part of each address.

    With one of ``several``, any file of a folder.
    """

    def places(sh: Shell, given: ParsedOptions, folder: Value) -> Iterator[str]:
        here = sh.files_path(folder)
        yield from (absolute(here, text_of(name)) for name in given.options.get(file, []))
        if given.has(several):
            yield f"{here}/"
        takes_names = given.has(by_name) if by_name else not given.has(file)
        for address in given.operands if takes_names else ():
            path = settled(address).partition("?")[0].rstrip("/")
            yield of_pattern(here, path.rpartition("/")[2])

    return places


# The commands of git that change files of the whole repository.
_OF_ALL = {"pull", "merge", "rebase", "am", "apply", "stash", "cherry-pick", "revert", "clean", "bisect"}


def _git(sh: Shell, given: ParsedOptions, folder: Value) -> Iterator[str]:
    verb, *rest = given.texts() or [""]
    if verb == "repo":  # `gh repo clone`
        verb, *rest = rest or [""]
    here = sh.files_path(folder)
    top = repository(sh, here) or here
    if verb == "clone" and rest and not doubt_in(given.operands[-1:]):
        name = rest[1] if rest[1:] else re.split("[/:]", rest[0].rstrip("/").removesuffix(".git"))[-1]
        yield from _file_or_folder(absolute(here, name))
    elif verb in _OF_ALL or (verb == "reset" and given.has(_FLAG)):
        yield f"{top}/"
    elif verb in ("checkout", "switch", "restore") and rest:
        paths = [path for path in (absolute(here, word) for word in rest) if sh.files.kind(path)]
        yield from (place for path in paths for place in _file_or_folder(path))
        if not paths:
            yield f"{top}/"
    elif verb == "submodule":
        text = text_of(sh.files.read(absolute(top, ".gitmodules"), as_it_is=True) or ())
        for path in re.findall(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE):
            yield f"{absolute(top, path)}/"


def _options(letters: str = "", long: str = "", flags: str = "", **lettered: str) -> OptionSpec:
    """The options with a value, by letter; ``long`` are others without one, ``flags`` have no value."""
    names = dict.fromkeys((f"--{name}" for name in long.split()), _OTHER)
    names |= dict.fromkeys((f"--{name}" for name in flags.split()), _FLAG)
    names |= {f"--{name}": letter for letter, each in lettered.items() for name in each.split()}
    return OptionSpec(values=f"{letters}{_PATTERN}{_OTHER}{''.join(lettered)}", long=names, lenient=True)


_TAR = Transfer(
    _into(0),
    _options("f", C="directory", f="file"),
    "C",
    r"^-?\w*x|\s-\w*x|--extract|--get",
)
_HUB = _options(
    long="token revision repo-type repo_type cache-dir cache_dir max-workers exclude",
    D="local-dir local_dir",
    M="model dataset",
    I="include",
)
_7Z = Transfer(_into(2), OptionSpec(attached="o", lenient=True), "o", r"^[xe]\b")
_WGET = _options("Pa", flags="recursive mirror content-disposition", O="output-document", i="input-file")
_CURL = _options("Hdu", flags="remote-header-name remote-name-all", o="output", D="output-dir")
_GIT = Transfer(
    _git, _options("Cbcoj", "depth branch origin config jobs reference filter", "hard keep merge"), "C"
)
_RSYNC = _options("e", "exclude include exclude-from include-from files-from filter")
_SYNC = r"\b(sync|rsync)\b"
TRANSFERS = {
    "rsync": Transfer(_copies(0), _RSYNC),
    "scp": Transfer(_copies(0), _options("cDFiJloPSX")),
    "ln": Transfer(_copies(0)),
    "aws": Transfer(_copies(2, rf"{_SYNC}|{_FLAG}"), _options(flags="recursive")),
    "gcloud": Transfer(_copies(2, _SYNC)),
    **dict.fromkeys(("gsutil", "azcopy", "s5cmd", "ossutil"), Transfer(_copies(1, _SYNC))),
    **dict.fromkeys(("hdfs", "hadoop"), Transfer(_copies(1), words="-(get|copyToLocal)")),
    "rclone": Transfer(_copies(1, r"\b(sync|copy|move)\b")),
    **dict.fromkeys(("docker", "podman", "kubectl"), Transfer(_copies(1), words=r"^cp\b", exact=False)),
    **dict.fromkeys(("tar", "bsdtar"), _TAR),
    "unzip": Transfer(_into(1), _options("dx"), "d", r"^(?!.*(^|\s)-[a-zA-Z]*[lptvzZ])"),
    **dict.fromkeys(("7z", "7za", "7zz"), _7Z),
    **dict.fromkeys(("huggingface-cli", "hf"), Transfer(_into(2, ""), _HUB, "D", "^download")),
    "modelscope": Transfer(_into(1, ""), _HUB, "D", "^download"),
    **dict.fromkeys(("git", "gh"), _GIT),
    "wget": Transfer(_downloads("O", f"rmi{_FLAG}"), _WGET, "P"),
    "curl": Transfer(_downloads("o", f"J{_FLAG}", "O"), _CURL, "D"),
    "patch": Transfer(_into(0), _options("pdiF", d="directory"), "d"),
}  # fmt: skip
