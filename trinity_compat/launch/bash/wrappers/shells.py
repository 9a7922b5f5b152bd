"""Shells that a script starts: ``bash -c text``, ``bash file``, ``./file.sh``, ``bash < text``."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import replace
from itertools import takewhile

from trinity_compat.common import readable_files
from trinity_compat.launch.bash.files import absolute, changed_by
from trinity_compat.launch.bash.options import OptionSpec
from trinity_compat.launch.bash.shell import code
from trinity_compat.launch.bash.state import OPTION_LETTERS, Shell
from trinity_compat.launch.bash.traced_text import Prefix, Value, doubt_in, literal, shown, text_of
from trinity_compat.launch.model import UnknownPiece

SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
BASH = OptionSpec(
    "abcefhiklmnprstuvxBCDEHPT", "oO", long={"--rcfile": "O", "--init-file": "O"}, leading=True, lenient=True
)


def run(sh: Shell, fields: list[Value], prefix: Prefix, name: str) -> int:
    """``bash -c text``, ``bash file``, ``bash < text``."""
    leading = list(takewhile(lambda word: text_of(word).startswith(("-", "+")), fields[1:]))
    # ``+x`` turns an option off, which in a new shell it is
    words = [word for word in leading if text_of(word)[0] == "-"]
    given = BASH.read([*words, *fields[1 + len(leading) :]])
    if given is None:
        return 2
    rest, named = given.operands, (text_of(name) for name in given.options.get("o", []))
    options = (given.options.keys() & set("euaxf")) | {OPTION_LETTERS.get(name, name) for name in named}
    name = "sh" if given.has("p") else name  # bash -p reads no BASH_ENV
    child = _shell_of(sh, prefix, name)
    child.options |= options
    if given.has("c"):
        if not rest:
            return 2
        return code.run_script(child, rest[0], rest[1] if len(rest) > 1 else fields[0], rest[2:], sh.where)
    if rest and not given.has("s"):
        return run_file(sh, rest[0], rest[1:], prefix, program=name, options=options)
    if sh.stdin is None:
        return 0
    if doubt_in([sh.stdin]) and not text_of(sh.stdin).strip():
        sh.warn("TP101", f"{name} reads code that is known only at run time; it is skipped")
        return 0
    child.stdin = None  # the code has been read from it
    return code.run_script(child, code.without_last_backslash(sh.stdin), fields[0], rest, sh.where)


def _shell_of(sh: Shell, prefix: Prefix, program: str) -> Shell:
    """The shell that ``program`` is. Of all shells only bash reads the file that BASH_ENV names."""
    child = sh.child(prefix)
    child.reach = replace(child.reach, hooked=program == "bash" and bool(child.exported("BASH_ENV")))
    return child


def is_script(sh: Shell, text: str) -> bool:
    """A path to a shell script: by its ending, or by its first line."""
    if "/" not in text:
        return False
    if text.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        return True
    path = sh.files_path(literal(text, sh.where))
    content = sh.files.read(path, as_it_is=True) if sh.files.kind(path) == "file" else None
    # as the kernel does; without this line a file that is no script would be parsed as one
    return bool(content) and bool(re.match(r"#!.*\b(ba|z|da)?sh\b", text_of(content or ()).split("\n", 1)[0]))


def run_file(
    sh: Shell,
    name: Value,
    args: list[Value],
    prefix: Prefix,
    *,
    program: str = "",
    options: set[str] | None = None,
) -> int:
    """A script run by ``program``, or by the one that its first line names."""
    content = script_content(sh, name)
    if content is None:
        sh.doubt = UnknownPiece(f"bash {text_of(name)}", sh.where)
        sh.write((sh.unknown(f"bash {text_of(name)}", sh.where),))
        return 0
    # only bash reads the file that BASH_ENV names, so it counts which shell runs the script
    by_itself = "bash" if re.match(r"#!.*\bbash\b", text_of(content).split("\n", 1)[0]) else "sh"
    child = _shell_of(sh, prefix, program or by_itself)
    child.options |= options or set()
    return code.run_script(child, code.without_last_backslash(content), name, args, sh.where)


def script_content(sh: Shell, name: Value) -> Value | None:
    """The text of another script; None, and a warning, when it can't be read."""
    named = shown(name)
    if doubt_in([name]) or (doubt_in([sh.cwd]) and not text_of(name).startswith("/")):
        sh.warn("TP106", f"{named or 'a file'}: its path is known only at run time; it is not read")
        return None
    path = sh.files_path(name)
    end = sh.files.end_of(path)
    if "/" in end:
        sh.warn("TP106", f"{path}: {end}, the end of that path below --cwd, is read in its place")
        path = absolute(sh.files.roots[0], end)
    content = sh.files.read(path, as_it_is=True)
    if content is None and end:
        message = f"not under --cwd; it is not read: if it is {end}, read that: trinity-compat parse {end}"
        sh.warn("TP106", f"{named}: {message}")
    elif content is None:
        sh.warn("TP106", f"{named}: {_why_unread(sh, path)}")
    elif (changed := changed_by(path, sh.files.handed)) is not None:
        message = f"{named}: {changed.expression} may change it before; it is read as it is now"
        sh.warn("TP106", message)
    elif doubt_in([content]) and not text_of(content).strip():
        sh.warn("TP106", f"{named}: its content is known only at run time; it is not read")
        return None
    return content


def _why_unread(sh: Shell, path: str) -> str:
    if sh.files.kind(path) == "":
        return "no such file; it is not read"
    try:
        readable_files.real_path(path, None)
    except OSError as error:
        return f"{error.strerror}; it is not read"
    if sh.files.in_reach(path):
        return "no regular file, larger than 1 MiB, or git's own; it is not read"
    return f"not under --cwd; it is not read: --also-read {shlex.quote(posixpath.dirname(path))} reads it"
