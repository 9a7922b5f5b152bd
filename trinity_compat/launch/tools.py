"""Programs whose output can be computed: names of paths, text filters over known input.

Each takes the shell and its arguments and returns a status, or None when it can't say (an option
that isn't read, a file out of reach); then the program counts as unknown.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable

from trinity_compat.launch import clock, filters
from trinity_compat.launch.operators import cut_value
from trinity_compat.launch.state import Shell
from trinity_compat.launch.values import Bit, Value, doubt_in, literal, text_of

Args = list[Value]
Tool = Callable[[Shell, Args], int | None]


def _line(sh: Shell, value: Value) -> int:
    sh.write((*value, Bit("\n", sh.where)))
    return 0


def _basename(sh: Shell, args: Args) -> int | None:
    suffix, many = "", False
    while args and text_of(args[0]).startswith("-"):
        option, args = text_of(args[0]), args[1:]
        if option == "--":
            break
        if option == "-s" and args:
            suffix, args, many = text_of(args[0]), args[1:], True
        elif option == "-a":
            many = True
        else:
            return None
    if len(args) == 2 and not many:
        suffix, args = text_of(args[1]), args[:1]
    for arg in args:
        _line(sh, base_of(arg, suffix))
    return 0 if args else 1


def base_of(value: Value, suffix: str = "") -> Value:
    """``basename``."""
    text = text_of(value)
    stripped = text.rstrip("/")
    if not stripped:
        return value if not text else literal("/", value[0].where)
    start, stop = stripped.rfind("/") + 1, len(stripped)
    if suffix and stripped.endswith(suffix) and stripped[start:] != suffix:
        stop -= len(suffix)
    where = value[0].where
    head = cut_value(value, (start, len(text)), f"basename {text}", where, sure=True)
    if stop == len(text) or doubt_in([head]):
        return head
    return literal(text[start:stop], where)


def _dirname(sh: Shell, args: Args) -> int | None:
    args = [arg for arg in args if text_of(arg) != "--"]
    for arg in args:
        _line(sh, dir_of(arg, sh))
    return 0 if args else 1


def dir_of(value: Value, sh: Shell) -> Value:
    """``dirname``."""
    text = text_of(value)
    result = posixpath.dirname(text.rstrip("/")).rstrip("/") or ("/" if text.startswith("/") else ".")
    if doubt_in([value]) is None:
        return literal(result, sh.where)
    return cut_value(value, (0, len(result)), f"dirname {text}", sh.where, sure=True)


def _realpath(sh: Shell, args: Args) -> int | None:
    relative = ""
    paths: Args = []
    for arg in args:
        text = text_of(arg)
        if text.startswith("--relative-to="):
            relative = text.split("=", 1)[1]
        elif not text.startswith("-") or text == "-":
            paths.append(arg)
    for arg in paths:
        if doubt_in([arg]) or doubt_in([sh.cwd]):
            return None if not text_of(arg).startswith("/") else _line(sh, arg)
        path = sh.files_path(arg)
        if sh.files.in_reach(path):
            path = os.path.realpath(path)
        if relative:
            path = os.path.relpath(path, sh.files_path(literal(relative, sh.where)))
        _line(sh, literal(path, sh.where))
    return 0 if paths else 1


def _readlink(sh: Shell, args: Args) -> int | None:
    if any(text_of(arg) in ("-f", "-e", "-m", "-fn", "-nf") for arg in args):
        return _realpath(sh, args)
    return None


def _date(sh: Shell, args: Args) -> int | None:
    form, when, text = "", None, ""
    rest = [text_of(arg) for arg in args]
    zone = ""
    while rest:
        arg = rest.pop(0)
        if arg.startswith("+"):
            form = arg[1:]
        elif arg in ("-u", "--utc", "--universal"):
            zone = "UTC"
        elif arg in ("-d", "--date") and rest:
            text = rest.pop(0)
        elif arg.startswith("--date="):
            text = arg[7:]
        elif re.fullmatch(r"-I\w*|--iso-8601(=\w+)?", arg):
            form = {"s": "%Y-%m-%dT%H:%M:%S%:z", "m": "%Y-%m-%dT%H:%M%:z"}.get(arg[-7:][2:3], "%F")
            form = "%Y-%m-%dT%H:%M:%S%:z" if "sec" in arg or arg == "-Is" else "%F"
        else:
            return None
    when = None if doubt_in(args) else clock.shifted(sh, text)
    if when is None:
        return None
    if zone:
        when = when.astimezone(clock.UTC)
    return _line(sh, literal(clock.strftime(sh, form or "%a %b %e %H:%M:%S %Z %Y", when), sh.where))


def _seq(sh: Shell, args: Args) -> int | None:
    separator, width, numbers = "\n", False, []
    rest = [text_of(arg) for arg in args]
    while rest:
        arg = rest.pop(0)
        if arg in ("-s", "--separator") and rest:
            separator = rest.pop(0)
        elif arg.startswith("-s"):
            separator = arg[2:]
        elif arg in ("-w", "--equal-width"):
            width = True
        elif re.fullmatch(r"-?\d{1,15}", arg):
            numbers.append(int(arg))
        else:
            return None
    if not 1 <= len(numbers) <= 3 or doubt_in(args):
        return None
    first, step, last = {1: (1, 1), 2: (numbers[0], 1), 3: tuple(numbers[:2])}[len(numbers)] + (numbers[-1],)
    if step == 0:
        return 1
    values = range(first, last + (1 if step > 0 else -1), step)
    sh.budget.fields(len(values))
    texts = [str(value) for value in values]
    size = max((len(t) for t in texts), default=0) if width else 0
    text = separator.join(t.zfill(size) for t in texts)
    sh.write(literal(text + "\n" if texts else "", sh.where))
    return 0


def _cat(sh: Shell, args: Args) -> int | None:
    files = [arg for arg in args if text_of(arg) == "-" or not text_of(arg).startswith("-")]
    if len(files) != len(args):
        return None
    for value in filters.inputs(sh, files):
        sh.write(value)
    return 0


def _tee(sh: Shell, args: Args) -> int | None:
    value = sh.stdin or ()
    append = any(text_of(arg) in ("-a", "--append") for arg in args)
    for arg in args:
        if not text_of(arg).startswith("-") and text_of(arg) and not doubt_in([arg]):
            path = sh.files_path(arg)
            if not path.startswith("/dev/"):
                sh.files.write(path, value, append=append)
    sh.write(value)
    return 0


def _mkdir(sh: Shell, args: Args) -> int | None:
    for arg in args:
        if text_of(arg).startswith("-") or doubt_in([arg]) or doubt_in([sh.cwd]) or not text_of(arg):
            continue
        path = sh.files_path(arg)
        while path not in ("/", "") and len(sh.files.made_dirs) < 2000:
            sh.files.made_dirs.add(path)
            path = posixpath.dirname(path)
    return 0


def _rm(sh: Shell, args: Args) -> int | None:
    for arg in args:
        if not text_of(arg).startswith("-") and text_of(arg) and not doubt_in([arg]):
            sh.files.remove(sh.files_path(arg))
    return 0


def _copy(sh: Shell, args: Args) -> int | None:
    files = [arg for arg in args if not text_of(arg).startswith("-")]
    if len(files) == 2 and not doubt_in(files):
        content = sh.files.read(sh.files_path(files[0]))
        target = sh.files_path(files[1])
        if content is not None and sh.files.kind(target) != "dir":
            sh.files.write(target, content, append=False)
    return 0


def _touch(sh: Shell, args: Args) -> int | None:
    for arg in args:
        if not text_of(arg).startswith("-") and text_of(arg) and not doubt_in([arg]):
            path = sh.files_path(arg)
            if sh.files.kind(path) in ("", None):
                sh.files.write(path, (), append=True)
    return 0


def _whoami(sh: Shell, args: Args) -> int | None:
    value = sh.scalar("USER")
    return None if value is None else _line(sh, value)


def _id(sh: Shell, args: Args) -> int | None:
    return _whoami(sh, args) if [text_of(arg) for arg in args] in (["-un"], ["-u", "-n"]) else None


def _uname(sh: Shell, args: Args) -> int | None:
    known = {"": "Linux", "-s": "Linux", "-m": "x86_64", "-o": "GNU/Linux"}
    text = known.get(" ".join(text_of(arg) for arg in args))
    return None if text is None else _line(sh, literal(text, sh.where))


def _expr(sh: Shell, args: Args) -> int | None:
    texts = [text_of(arg) for arg in args]
    if len(texts) != 3 or texts[1] not in "+-*/%" or doubt_in(args):
        return None
    if not all(re.fullmatch(r"-?\d{1,18}", t) for t in (texts[0], texts[2])):
        return None
    a, b = int(texts[0]), int(texts[2])
    if texts[1] in "/%" and b == 0:
        return 2
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    result = {"+": a + b, "-": a - b, "*": a * b, "/": quotient, "%": a - b * quotient}[texts[1]]
    _line(sh, literal(str(result), sh.where))
    return int(result == 0)


def _printenv(sh: Shell, args: Args) -> int | None:
    for arg in args:
        value = sh.scalar(text_of(arg))
        if value is None:
            return None
        _line(sh, value)
    return 0 if args else None


def _fine(sh: Shell, args: Args) -> int | None:
    """Programs that only change the world, and are taken to succeed."""
    return 0


TABLE: dict[str, Tool] = {
    "basename": _basename,
    "dirname": _dirname,
    "realpath": _realpath,
    "readlink": _readlink,
    "date": _date,
    "seq": _seq,
    "cat": _cat,
    "tee": _tee,
    "mkdir": _mkdir,
    "rm": _rm,
    "cp": _copy,
    "touch": _touch,
    "whoami": _whoami,
    "id": _id,
    "uname": _uname,
    "arch": lambda sh, args: _line(sh, literal("x86_64", sh.where)),
    "expr": _expr,
    "printenv": _printenv,
    "chmod": _fine,
    "chown": _fine,
    **filters.TABLE,
}
