"""``[[ … ]]``, ``[ … ]`` and ``test``.

What cannot be known (a file out of reach, a value that is open) gets bash's answer for what is known
so far; the shell's ``doubt`` then says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from trinity_compat.launch.bash.files import spelled
from trinity_compat.launch.bash.state import OPTION_LETTERS, Shell, Variable
from trinity_compat.launch.bash.traced_text import Value, doubt_in, is_uncounted, literal, shown, text_of
from trinity_compat.launch.bash.tree import Node, ParsedText
from trinity_compat.launch.bash.words import expansion, lookup, regex
from trinity_compat.launch.bash.words.arithmetic import BadArithmetic
from trinity_compat.launch.bash.words.matching import Matcher, glob
from trinity_compat.launch.model import EnvRef, UnknownPiece

FILE_TESTS = {f"-{letter}" for letter in "eafdrwxsLhbcpSgukOGN"}
OF_FOLDERS = ("-d", "-e", "-r", "-w", "-x")  # what holds for a folder that the script has made
UNARY = FILE_TESTS | {"-z", "-n", "-v", "-o", "-R", "-t"}
BINARY = {"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "=~"}
NUMERIC = {
    "-eq": eq, "-ne": ne, "-lt": lt, "-le": le, "-gt": gt, "-ge": ge,
}  # fmt: skip


class BadTest(Exception):
    """bash prints an error; status 2."""


def run_clause(sh: Shell, unit: ParsedText, node: Node) -> int:
    """``[[ … ]]`` as a command."""
    sh.doubt = None
    try:
        return 0 if _clause(sh, unit, node["X"]) else 1
    except BadArithmetic:
        return 1
    except (BadTest, regex.BadExpression):
        return 2


def _clause(sh: Shell, unit: ParsedText, node: Node) -> bool:
    """One ``[[ … ]]`` expression.

    shfmt lets ``!`` reach over ``&&`` and ``||`` and gives both the same rank, so the operands are
    taken in order and ranked again as bash does.
    """
    return _Clauses(sh, unit, list(_in_order(node))).alternatives(taken=True)


def _in_order(node: Node) -> Iterator[Node | str]:
    kind = node.get("Type")
    if kind == "BinaryTest" and node["Op"] in ("&&", "||"):
        yield from _in_order(node["X"])
        yield node["Op"]
        yield from _in_order(node["Y"])
    elif kind == "UnaryTest" and node["Op"] == "!":
        yield "!"
        yield from _in_order(node["X"])
    else:
        yield node


class _Clauses:
    """``||`` over ``&&`` over ``!``. Doubt in a side goes away when the other side decides alone."""

    def __init__(self, sh: Shell, unit: ParsedText, items: list[Node | str]) -> None:
        self.sh, self.unit, self.items, self.at = sh, unit, items, 0

    def _take(self, operator: str) -> bool:
        found = self.at < len(self.items) and self.items[self.at] == operator
        self.at += found
        return found

    def alternatives(self, *, taken: bool) -> bool:
        return self._chain("||", lambda taken: self._chain("&&", self._negation, taken), taken)

    def _chain(self, operator: str, operand: Callable[[bool], bool], taken: bool) -> bool:
        decides = operator == "||"
        value, doubt = self._with_doubt(operand, taken)
        while self._take(operator):
            needed = taken and value != decides
            right, more = self._with_doubt(operand, needed)
            if needed:
                doubt = None if right == decides and more is None else doubt or more
                value = right
        self.sh.doubt = self.sh.doubt or doubt
        return value

    def _with_doubt(
        self, operand: Callable[[bool], bool], taken: bool
    ) -> tuple[bool, UnknownPiece | EnvRef | None]:
        before, self.sh.doubt = self.sh.doubt, None
        value = operand(taken)
        doubt, self.sh.doubt = self.sh.doubt, before
        return value, doubt

    def _negation(self, taken: bool) -> bool:
        if self._take("!"):
            return not self._negation(taken)
        node = self.items[self.at]
        self.at += 1
        return bool(taken and isinstance(node, dict) and _single(self.sh, self.unit, node))


def _single(sh: Shell, unit: ParsedText, node: Node) -> bool:
    sh.budget.step()
    kind = node.get("Type")
    if kind == "ParenTest":
        return _clause(sh, unit, node["X"])
    if kind == "UnaryTest":
        return unary(sh, node["Op"], expansion.expand_single(sh, unit, node["X"], tilde="word"))
    if kind != "BinaryTest":
        return unary(sh, "-n", expansion.expand_single(sh, unit, node, tilde="word"))
    operator = node["Op"]
    left = expansion.expand_single(sh, unit, node["X"], tilde="word")
    if operator in ("=", "==", "!=", "=~"):
        _note(sh, left)
        if operator != "=~":
            return fits(sh, unit, node["Y"], text_of(left)) == (operator != "!=")
        _note(sh, expansion.expand_single(sh, unit, node["Y"]))
        return _regex(sh, unit, node["Y"], text_of(left), "nocasematch" in sh.options)
    right = expansion.expand_single(sh, unit, node["Y"], tilde="word")
    return binary(sh, operator, left, right, numbers=True)


def fits(sh: Shell, unit: ParsedText, pattern: Node, text: str) -> bool:
    """Return whether a text fits a pattern, as ``[[ == ]]`` and ``case`` ask."""
    fold = "nocasematch" in sh.options
    chars, value = expansion.expand_pattern(sh, unit, pattern)
    _note(sh, value)
    if fold:
        chars = [(char.lower(), quoted) for char, quoted in chars]
    return Matcher(text, sh.budget, fold).whole(glob(chars))


def _regex(sh: Shell, unit: ParsedText, node: Node, text: str, fold: bool) -> bool:
    try:
        found = regex.search(expansion.expand_expression(sh, unit, node), text, sh.budget, fold=fold)
    except regex.Unread:
        found, sh.doubt = None, UnknownPiece(unit.text(node), unit.where(node))
    where = unit.where(node)
    matched: list[Value] = [literal(found[0], where)] if found else []
    # what each group matched is used by no known script that launches a training
    matched += [(sh.unknown(f"${{BASH_REMATCH[{i + 1}]}}", where),) for i in range(found[1] if found else 0)]
    sh.put("BASH_REMATCH", Variable(array=dict(enumerate(matched))))
    return found is not None


def _note(sh: Shell, *values: Value) -> None:
    sh.doubt = sh.doubt or doubt_in(values)


def unary(sh: Shell, operator: str, operand: Value) -> bool:
    """Decide a test with one operand: ``-n text``, ``-f file``."""
    text = text_of(operand)
    if operator in ("-z", "-n"):
        # text that is there settles it, whatever else is open
        if not text or any(bit.source is not None and bit.text for bit in operand):
            _note(sh, operand)
        return (not text) == (operator == "-z")
    if operator in ("-v", "-R"):
        return _is_set(sh, text)
    if operator == "-o":
        return len(text) > 1 and OPTION_LETTERS.get(text, text) in sh.options
    if operator == "-t":  # training is started from files and schedulers, not at a terminal
        return False
    return _file_test(sh, operator, operand)


def _is_set(sh: Shell, text: str) -> bool:
    name, bracket, index = text.partition("[")
    if bracket:
        found = lookup.elements(sh, name, sh.where)
        if index[:-1] in ("@", "*"):
            if all(map(is_uncounted, found.values())):
                _note(sh, *found.values())
            return bool(found)
        key, of_key = lookup.key_of(sh, name, index[:-1], sh.where)
        _note(sh, *of_key, *filter(is_uncounted, found.values()))
        return key in found
    if name.isdigit():
        return int(name[:9]) <= len(sh.positional)
    value = lookup.lookup(sh, name, sh.where)
    if value is not None and sh.scalar(name) is None:
        _note(sh, value)
        return text_of(value) != ""
    return value is not None


def _file_test(sh: Shell, operator: str, operand: Value) -> bool:
    text = text_of(operand)
    if doubt_in([operand]):
        # below an unset folder may lie what is asked for, on the machine where the variable is set
        unset = isinstance(doubt_in([operand]), EnvRef)
        below = unset and text.strip("/")
        named = below or not unset
        if named and operator in OF_FOLDERS and spelled(operand).rstrip("/") in sh.files.made_open:
            return _taken_as_made(sh, f"{operator} {spelled(operand)}")
        sh.doubt = sh.doubt or (UnknownPiece(f"{operator} {shown(operand)}", sh.where) if below else None)
        _note(sh, operand)
        return False
    if not text:
        return False
    path = sh.files_path(operand)
    kind = sh.files.kind(path)
    if kind is None:
        sh.doubt = sh.doubt or UnknownPiece(f"{operator} {text}", sh.where)
        return False
    if not kind and path not in sh.files.removed:
        sh.lacking = UnknownPiece(f"{operator} {text}", sh.where)
    if operator == "-f":
        return kind == "file"
    if operator == "-s":
        return kind == "dir" or (kind == "file" and sh.files.size(path) > 0)
    if operator == "-d":
        return kind == "dir"
    if operator in ("-L", "-h"):
        return Path(path).is_symlink()
    if operator in ("-b", "-c", "-p", "-S"):
        return operator == "-c" and text == "/dev/null"
    if operator == "-x":
        return kind == "dir" or (kind == "file" and (path in sh.files.written or os.access(path, os.X_OK)))
    if operator == "-w" and path in sh.files.made_dirs and not sh.files.in_reach(path):
        return _taken_as_made(sh, f"{operator} {text}")
    return bool(kind)


def _taken_as_made(sh: Shell, test: str) -> bool:
    """A test of a folder out of reach that the script made: its ``mkdir`` is taken to have succeeded."""
    sh.warn("TP101", f"{test} is known only at run time; taken as true, since the script makes that folder")
    return True


def binary(sh: Shell, operator: str, left: Value, right: Value, *, numbers: bool = False) -> bool:
    """``a = b``, ``1 -lt 2``; ``numbers`` allows expressions, as ``[[`` does."""
    _note(sh, left, right)
    a, b = text_of(left), text_of(right)
    if operator in ("=", "==", "!="):
        return (a == b) == (operator != "!=")
    if operator in ("<", ">"):
        return a < b if operator == "<" else a > b
    if operator in NUMERIC:
        return NUMERIC[operator](_number(sh, a, numbers), _number(sh, b, numbers))
    if operator in ("-nt", "-ot", "-ef"):
        sh.doubt = sh.doubt or UnknownPiece(f"{a} {operator} {b}", sh.where)
        return False
    raise BadTest(operator)


def _number(sh: Shell, text: str, expression: bool) -> int:
    if expression:
        number, used = lookup.evaluate_text(sh, text, [], sh.where)
        _note(sh, *used)
        return number
    if re.fullmatch(r"\s*[-+]?\d{1,19}\s*", text):
        return int(text)
    if sh.doubt is not None:  # an open number: the status is a guess anyway
        return 0
    raise BadTest(f"{text}: integer expression expected")


def run_test(sh: Shell, args: list[Value], *, bracket: bool) -> int:
    """``test …`` and ``[ … ]`` as commands."""
    sh.doubt = None
    if bracket:
        if not args or text_of(args[-1]) != "]":
            return 2
        args = args[:-1]
    parser = _Test(sh, args)
    try:
        return 0 if parser.run() else 1
    except (BadTest, IndexError, RecursionError):
        return 2


class _Test:
    """The grammar of ``test``: by number of arguments first, as POSIX rules, then -o, -a, !, ( )."""

    def __init__(self, sh: Shell, args: list[Value]) -> None:
        self.sh, self.args, self.at = sh, args, 0

    def run(self) -> bool:
        if len(self.args) <= 3:
            return self._short(self.args)
        if len(self.args) == 4 and text_of(self.args[0]) == "!":
            return not self._short(self.args[1:])
        result = self._either()
        if self.at < len(self.args):
            raise BadTest("too many arguments")
        return result

    def _short(self, args: list[Value]) -> bool:
        texts = [text_of(arg) for arg in args]
        if not args:
            return False
        if len(args) == 1:
            return unary(self.sh, "-n", args[0])
        if len(args) == 2:
            if texts[0] == "!":
                return not self._short(args[1:])
            if texts[0] in UNARY:
                return unary(self.sh, texts[0], args[1])
            raise BadTest("unary operator expected")
        if texts[1] in BINARY - {"=~"}:
            return binary(self.sh, texts[1], args[0], args[2])
        if texts[1] in ("-a", "-o"):
            sides = (bool(texts[0]), bool(texts[2]))
            return all(sides) if texts[1] == "-a" else any(sides)
        if texts[0] == "!":
            return not self._short(args[1:])
        if (texts[0], texts[2]) == ("(", ")"):
            return bool(texts[1])
        raise BadTest("binary operator expected")

    def _peek(self) -> str:
        return text_of(self.args[self.at]) if self.at < len(self.args) else ""

    def _either(self) -> bool:
        return self._joined("-o", lambda: self._joined("-a", self._primary, all), any)

    def _joined(
        self, operator: str, operand: Callable[[], bool], decide: Callable[[Iterable[bool]], bool]
    ) -> bool:
        values = [operand()]
        while self._peek() == operator:
            self.at += 1
            values.append(operand())  # test evaluates both sides, whatever the first one says
        return decide(values)

    def _primary(self) -> bool:
        token = self._peek()
        if token == "!":
            self.at += 1
            return not self._primary()
        if token == "(":
            self.at += 1
            value = self._either()
            if self._peek() != ")":
                raise BadTest("a ) is missing")
            self.at += 1
            return value
        rest = self.args[self.at :]
        if len(rest) >= 3 and text_of(rest[1]) in BINARY - {"=~"}:
            self.at += 3
            return binary(self.sh, text_of(rest[1]), rest[0], rest[2])
        if token in UNARY and len(rest) >= 2:
            self.at += 2
            return unary(self.sh, token, rest[1])
        self.at += 1
        return unary(self.sh, "-n", rest[0])
