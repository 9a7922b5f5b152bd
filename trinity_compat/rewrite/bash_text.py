"""Places of words in the text of a bash script, and edits that leave everything else as it was.

Offsets are bytes. The parser (shfmt) gives the words of commands, the elements of arrays, the assignments and
the comments; within a text that becomes words later (``ARGS="a=1 b=2"``) blanks are the borders. That an edit
has the effect that was meant is not decided here: the edited script is read again.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.limits import Budget
from trinity_compat.launch.bash import tree

_SAFE = re.compile(r"[\w.,:/+@%=-]+", re.A)
_PLAIN_IN_QUOTES = re.compile(r"[^\"'`$\\!\s]*")
_BEFORE_KEY = rb"(?<![\w.+~/$@}-])"
_DOTTED = re.compile(rb"(?<![\w./$}-])([A-Za-z_]\w*(?:\.\w+)+)(?=[\"']?=(?:[\"']?([\w.]+)(?![\w.$/-]))?)")
_OPERATOR = re.compile(rb"(?:\+\+?|~)\Z")
_VARIABLE = re.compile(rb"\$(?:(\w+)|\{(\w+)(?::?-([^{}$`\"'\\]*))?\})\Z")
_DEFAULTED = re.compile(rb"\$\{(\w+):?-([^{}$`\"'\\]*)\}\Z")
_ENDS_LINE = re.compile(rb"[ \t]*(\\{0,2})[ \t]*(#[^\n]*)?(?:\n|\Z)")
# Two backslashes continue a line of a script that a here-document writes.
_CONTINUED = re.compile(rb"(?<!\\)(\\{1,2})\n\Z")
_OPEN_LINE = re.compile(rb"(?:[ \t]|\\{1,2}\n)*\Z")


class NotEditable(Exception):
    """A place that cannot be edited; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The bytes from ``start`` to ``end`` become ``new``."""

    start: int
    end: int
    new: bytes


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word of the syntax tree: an argument of a command, an element of an array, or a value."""

    start: int
    end: int
    kind: str  # argument | element | value
    name: str = ""  # of the assigned variable
    free: bool = True  # neither exported, appended, nor local


@dataclass(frozen=True, slots=True)
class Place:
    """An argument ``key=value`` in the text.

    ``start`` and ``end`` enclose it with its quotes, ``key`` is where the key begins, ``value`` where the
    text after the ``=`` does, and ``stop`` where that ends. ``token``: the word or the text that holds it.
    """

    start: int
    end: int
    key: int
    value: int
    stop: int
    token: ShellWord

    @property
    def alone(self) -> bool:
        """Return True for a word of its own, False for a part of a text that is split later."""
        return self.start == self.token.start and self.token.kind != "value"


class BashText:
    """A script's text with its words.

    Raises `NotEditable` for one that the parser does not read as a whole.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        if b"\r" in source:
            raise NotEditable("its lines end in CR LF, which bash takes for characters: run dos2unix first")
        budget = Budget()
        try:
            source.decode()
            plain = source
        except UnicodeDecodeError:
            plain = re.sub(rb"[^\x00-\x7f]", b"?", source)  # as long as before
        statements, problem = tree.parse(plain, budget)
        if problem is not None:
            raise NotEditable(f"line {problem.line}: bash stops here: {problem.message}")
        self.tokens: list[ShellWord] = []
        self.comments: list[tuple[int, int]] = []
        self._walk(statements, "value")
        self.tokens.sort(key=lambda token: (token.start, -token.end))
        self.lines = [0, *(match.end() for match in re.finditer(rb"\n", source))]

    def _walk(self, node: Any, kind: str, *, free: bool = True) -> None:
        if isinstance(node, list):
            for item in node:
                self._walk(item, kind, free=free)
            return
        if not isinstance(node, dict) or "Offset" in node:
            return
        if "Hash" in node:
            self.comments.append((node["Pos"]["Offset"], node["End"]["Offset"]))
            return
        type_ = node.get("Type")
        if "Name" in node and ("Value" in node or "Array" in node) and type_ != "FuncDecl":
            name = node["Name"].get("Value", "")
            value = node.get("Value")
            if value and "Pos" in value:
                plain = free and not node.get("Append") and not node.get("Index")
                self._add(value, "value", name, plain)
        if type_ == "CallExpr":
            for word in node.get("Args") or []:
                self._add(word, "argument")
        if type_ == "DeclClause":
            free = False
        if type_ == "WordIter":
            for word in node.get("Items") or []:
                self._add(word, "element")
        for element in node.get("Elems") or []:
            if element.get("Value"):
                self._add(element["Value"], "element")
        if node.get("Hdoc"):
            self._add(node["Hdoc"], "value")
        for child in node.values():
            if isinstance(child, dict | list):
                self._walk(child, kind, free=free)

    def _add(self, node: dict[str, Any], kind: str, name: str = "", free: bool = True) -> None:
        self.tokens.append(ShellWord(node["Pos"]["Offset"], node["End"]["Offset"], kind, name, free))

    def line_of(self, offset: int) -> int:
        """Return the line of a place, counted from 1."""
        return bisect_right(self.lines, offset)

    def _in_comment(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.comments)

    def places(self, head: str, line: int) -> list[Place]:
        """Return the arguments that begin with ``head`` and a ``=``, those nearest to ``line`` first."""
        sought = re.escape(head.encode(errors="surrogateescape"))
        if not head.startswith("~"):
            sought += rb"(?=[\"']?=)"
        else:
            sought += rb"(?![\w.])"
        found = []
        for match in re.finditer(_BEFORE_KEY + sought, self.source):
            around = [token for token in self.tokens if token.start <= match.start() < token.end]
            if around and not self._in_comment(match.start()):
                smallest = min(around, key=lambda token: token.end - token.start)
                found.append(self._place(match.start(), match.end(), smallest))
        return sorted(found, key=lambda place: abs(self.line_of(place.key) - line))

    def dotted_keys(self) -> Iterator[tuple[int, str, str]]:
        """Yield place, name and value of each dotted key in front of a ``=``, comments left out.

        The value is what a plain word or number is, "" for anything else.
        """
        for match in _DOTTED.finditer(self.source):
            if not self._in_comment(match.start()):
                yield match.start(), match[1].decode(), (match[2] or b"").decode()

    def operator_at(self, at: int) -> str:
        """Return Hydra's operator in front of a key: ``+``, ``++``, ``~`` or nothing."""
        match = _OPERATOR.search(self.source, max(0, at - 2), at)
        return match[0].decode() if match else ""

    def _place(self, key: int, key_end: int, token: ShellWord) -> Place:
        source = self.source
        opening = source[token.start : key]
        if token.kind != "value" and opening in (b"", b'"', b"'", b"$'"):
            quote, start, end = opening[-1:], token.start, token.end
            closed = bool(quote) and source[end - 1 : end] == quote and quote not in source[key : end - 1]
            stop = end - 1 if closed else end
        else:
            start = key
            end = stop = self._end_of_part(key, token)
        equals = source.find(b"=", key_end, stop)
        value = equals + 1 if equals >= 0 else stop
        return Place(start, end, key, value, stop, token)

    def _end_of_part(self, at: int, token: ShellWord) -> int:
        """Return where a word ends within a text: at a blank, or at the text's own quote."""
        opening = self.source[token.start : token.start + 1]
        outer = (
            opening if opening in (b'"', b"'") and self.source[token.end - 1 : token.end] == opening else b""
        )
        limit, depth, quote = token.end - bool(outer), 0, b""
        while at < limit:
            char = self.source[at : at + 1]
            if quote:
                quote = b"" if char == quote else quote
            elif char == b"\\" and self.source[at + 1 : at + 2] != b"\n":
                at += 1
            elif char in b"{([" and (depth or self.source[at - 1 : at] == b"$" or char == b"["):
                depth += 1
            elif char in b"})]" and depth:
                depth -= 1
            elif char == outer:
                break
            elif char in (b'"', b"'"):
                quote = char
            elif not depth and (char in b" \t\n" or char == b"\\"):
                break
            at += 1
        return min(at, limit)

    # Edits.

    def renamed(self, place: Place, head: str, old: str) -> Edit:
        """Write another key, with its operator, in front of the ``=``."""
        return Edit(place.key, place.key + len(old.encode(errors="surrogateescape")), head.encode())

    def variable_of(self, place: Place) -> str:
        """Return the variable that a value is, "" for another text."""
        match = _VARIABLE.match(_unquoted(self.source[place.value : place.stop]))
        return (match[1] or match[2]).decode() if match else ""

    def revalued(self, place: Place, old: str, new: str, uses: int = 1) -> Edit:
        """Write another value: in the word itself, or where the variable is set that it comes from.

        ``uses``: the words that are this variable and get this value. Raises NotEditable where the variable
        is used elsewhere, too, or the text is a mixture.
        """
        raw = self.source[place.value : place.stop]
        quoted = self.source[place.start : place.start + 1] in (b'"', b"'") and place.stop < place.end
        bare = _unquoted(raw)
        if bare == old.encode(errors="surrogateescape") and not (b"$" in bare and quoted):
            if bare != raw and _PLAIN_IN_QUOTES.fullmatch(new):
                return Edit(place.value + 1, place.stop - 1, new.encode())
            return Edit(place.value, place.stop, self._spelled(place, new, inside=quoted))
        name = self.variable_of(place)
        if not name:
            shown = raw.decode(errors="replace")
            raise NotEditable(f"its value, {shown}, is not written out, and would have to be {new}")
        return self._reassigned(name, place, old, new, uses)

    def rewritten(self, place: Place, new: str) -> Edit:
        """Write a plain value in place of a variable that stays as it is. Raises NotEditable."""
        raw = self.source[place.value : place.stop]
        if not self.variable_of(place) or not _SAFE.fullmatch(new):
            raise NotEditable(f"its value, {raw.decode(errors='replace')}, would have to be {new}")
        return Edit(place.value, place.stop, new.encode())

    def divided(self, place: Place, divisor: int) -> Edit | None:
        """Divide the value where it stands, if it is a variable: ``$((NAME / 8))``."""
        match = _VARIABLE.match(_unquoted(self.source[place.value : place.stop]))
        if not match or match[3] is not None:
            return None
        text = b"$((%s / %d))" % (match[1] or match[2], divisor)
        return Edit(place.value, place.stop, text)

    def _reassigned(self, name: str, place: Place, old: str, new: str, uses: int) -> Edit:
        mentions = [
            match.start()
            for match in re.finditer(rb"(?<!\w)" + name.encode() + rb"(?!\w)", self.source)
            if not self._in_comment(match.start())
        ]
        assigned = [token for token in self.tokens if token.kind == "value" and token.name == name]
        elsewhere = f"its value comes from the variable {name}, and would have to be {new}"
        if not _SAFE.fullmatch(new):
            raise NotEditable(elsewhere)
        if not assigned:
            default = _DEFAULTED.match(_unquoted(self.source[place.value : place.stop]))
            if default is None or len(mentions) != 1 or default[2] != old.encode():
                raise NotEditable(f"{elsewhere}: give it that value where it is set")
            at = self.source.find(default[2] + b"}", place.value)
            return Edit(at, at + len(default[2]), new.encode())
        token = assigned[0]
        inner = sum(token.start <= at < token.end for at in mentions)
        places = ", ".join(dict.fromkeys(f"line {self.line_of(at)}" for at in mentions))
        if len(assigned) > 1 or len(mentions) != 1 + uses + inner or not token.free:
            raise NotEditable(f"{elsewhere}; it is used elsewhere, too, or exported ({places})")
        text = _unquoted(self.source[token.start : token.end])
        if text == old.encode():
            offset = self.source.find(text, token.start) if text else token.start
            return Edit(offset, offset + len(text), new.encode())
        default = _DEFAULTED.match(text)
        if default is not None and default[2] == old.encode():
            offset = self.source.rfind(default[2] + b"}", token.start, token.end)
            return Edit(offset, offset + len(default[2]), new.encode())
        raise NotEditable(f"{elsewhere}; line {self.line_of(token.start)} does not set it to a plain text")

    def _spelled(self, place: Place, text: str, *, inside: bool) -> bytes:
        """A value in the quoting of its place."""
        if _SAFE.fullmatch(text):
            return text.encode()
        if inside:
            if not _PLAIN_IN_QUOTES.fullmatch(text):
                raise NotEditable(f"its value would have to be {text}, which its quotes do not take")
            return text.encode()
        if place.alone:
            return shlex.quote(text).encode()
        if not _PLAIN_IN_QUOTES.fullmatch(text):
            raise NotEditable(f"its value would have to be {text}, which a text that is split does not take")
        return text.encode()

    def copy(self, place: Place, head: str, old: str, value: str | None) -> bytes:
        """The word once more under another key, with its own value or with another."""
        before = self.source[place.start : place.key]
        if value is not None:
            return self.word(head, value, place)
        after = self.source[place.key + len(old.encode(errors="surrogateescape")) : place.end]
        return before + head.encode() + after

    def word(self, head: str, value: str, beside: Place) -> bytes:
        """A new word in the quoting that the words beside it need."""
        return head.encode() + b"=" + self._spelled(beside, value, inside=False)

    def removed(self, place: Place) -> Edit:
        """Take a word out, with its continuation line where it has one of its own."""
        source, start, end = self.source, place.start, place.end
        line = self.lines[self.line_of(start) - 1]
        tail = _ENDS_LINE.match(source, end)
        if source[line:start].strip(b" \t"):
            left = len(source[:start].rstrip(b" \t"))
            if source[left - 1 : left] in (b"(", b'"', b"'"):
                return Edit(start, end + _blanks(source, end), b"")
            return Edit(left, end, b"")
        if tail is None:
            return Edit(start, end + _blanks(source, end), b"")
        if tail[1] or not _CONTINUED.search(source[:line]):
            return Edit(line, tail.end(), b"")
        before = _OPEN_LINE.search(source, 0, start)
        left = before.start() if before else start
        return Edit(left, end, b"")

    def inserted(self, place: Place, words: list[bytes]) -> Edit:
        """Put words behind another, each on a line of its own where that one has one."""
        source, start, end = self.source, place.start, place.end
        line = self.lines[self.line_of(start) - 1]
        indent = source[line:start]
        if indent.strip(b" \t"):
            return Edit(end, end, b"".join(b" " + word for word in words))
        if continued := _CONTINUED.search(source[:line]):
            joint = b" " + continued[1] + b"\n" + indent
        elif place.token.kind == "argument":
            joint = b" "
        else:
            joint = b"\n" + indent
            tail = _ENDS_LINE.match(source, end)
            if tail is not None and not tail[1]:  # behind the comment of the word
                end = tail.end() - source[: tail.end()].endswith(b"\n")
        return Edit(end, end, b"".join(joint + word for word in words))


def applied(source: bytes, edits: Iterator[Edit] | list[Edit]) -> bytes:
    """Return the text with all edits. Raises NotEditable where two want the same bytes."""
    out, at = [], 0
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.start < at:
            raise NotEditable("two launches want the same words otherwise")
        out += [source[at : edit.start], edit.new]
        at = edit.end
    return b"".join([*out, source[at:]])


def _unquoted(text: bytes) -> bytes:
    if len(text) >= 2 and text[:1] in (b'"', b"'") and text[-1:] == text[:1] and text[:1] not in text[1:-1]:
        return text[1:-1]
    return text


def _blanks(source: bytes, at: int) -> int:
    return len(source[at:]) - len(source[at:].lstrip(b" \t"))
