"""From text to shfmt's syntax tree.

Nodes stay plain dicts, in the form of mvdan/sh's typed JSON (``shell_parser.py``). A script with a syntax
error is read up to the command that has it, as bash does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common import limits
from trinity_compat.common.errors import Where
from trinity_compat.common.limits import Budget, BudgetExceeded
from trinity_compat.launch.bash import quoted_defaults
from trinity_compat.launch.bash.shell_parser import SyntaxProblem, syntax_tree
from trinity_compat.launch.bash.traced_text import TextPiece

Node = dict[str, Any]
COMMENT_BACKSLASH = re.compile(rb"#[^\n]*\\\n")
CONTINUED = re.compile(rb"(?<!\\)(?:\\\\)*\\\n\Z")  # ends in an odd number of backslashes


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text, and how its lines map to what the user wrote.

    ``holes`` are characters of the private use area that stand for pieces of the text which are
    not literal: code made by ``eval "… $HOME …"`` keeps its references this way.
    """

    name: str
    source: bytes
    lines: tuple[Where, ...] = ()
    holes: Mapping[str, TextPiece] = field(default_factory=dict)

    def where(self, node: Node) -> Where:
        """The place of a node in the user's file."""
        return self.line(node["Pos"]["Line"] if "Pos" in node else 0)

    def line(self, number: int) -> Where:
        """The place of a line of this text."""
        if not self.lines:
            return Where(self.name, number)
        return self.lines[min(max(number, 1), len(self.lines)) - 1]

    def slice(self, start: int, end: int) -> str:
        """The text between two byte offsets."""
        return self.source[start:end].decode(errors="surrogateescape")

    def text(self, node: Node) -> str:
        """A node as it was written."""
        return self.slice(node["Pos"]["Offset"], node["End"]["Offset"])


def parse(source: bytes, budget: Budget) -> tuple[list[Node], SyntaxProblem | None]:
    """The statements of a script, and the syntax error that ends them, if there is one."""
    if len(source) > limits.SCRIPT:
        raise BudgetExceeded(f"a script of more than {limits.SCRIPT >> 20} MiB")
    text, problem, error = source.replace(b"\0", b" "), None, None
    # each round takes away one thing that shfmt reads otherwise than bash, and parses again
    for _ in range(8):
        output, error = syntax_tree(text, budget)
        if error is not None:
            # the text, as long as before, as shfmt takes it; None where bash refuses it, too
            taken = _with_plain_export if "invalid var name" in error.message else _with_plain_subscripts
            if (patched_text := taken(text, error)) is not None:
                text = patched_text
                continue
            problem = problem or error
            # bash has run the commands before the error by the time it finds it, and none of the command
            # that goes on in its line
            lines = text.splitlines(keepends=True)[: max(0, error.line - 1)]
            while lines and CONTINUED.search(lines[-1]):
                lines.pop()
            text = b"".join(lines)
            continue
        tree = _load(output)
        places = list(_continued_comments(tree, text)) if COMMENT_BACKSLASH.search(text) else []
        if not places:
            return _with_quoted_defaults(tree, text, budget).get("Stmts") or [], problem
        patched = bytearray(text)
        for place in places:
            patched[place] = 0x20
        text = bytes(patched)
    return [], problem or error


def _with_quoted_defaults(tree: Node, text: bytes, budget: Budget) -> Node:
    """The tree with the single quotes of defaults in double quotes as bash takes them, level by level."""
    for _ in range(4):
        masked = quoted_defaults.masked(tree, text)
        output, error = ("", None) if masked is None else syntax_tree(masked, budget)
        if masked is None or error is not None:
            break
        tree, text = _load(output), masked
    return tree


EXPORT = re.compile(rb"(?<![\w./-])export(?=[ \t])")
ENDED = re.compile(rb"(?<!\\)\n|[;&|]")  # of a command
PLAIN_EXPORT = b"\x03xport"


def _with_plain_export(text: bytes, error: SyntaxProblem) -> bytes | None:
    """Return the text with another command's name for the ``export`` before the error.

    Of ``export A-B=1 C=2`` bash refuses one word, shfmt the whole script. `_load` restores the name.
    """
    start = sum(map(len, text.splitlines(keepends=True)[: error.line - 1]))
    place = start + error.column - 1
    found = list(EXPORT.finditer(text, 0, place))
    if not found or ENDED.search(text, found[-1].end(), place):
        return None
    return text[: found[-1].start()] + PLAIN_EXPORT + text[found[-1].end() :]


SUBSCRIPT = re.compile(rb"(?<=\[)[A-Za-z_][\w.@:/ -]*(?=\])")


def _with_plain_subscripts(text: bytes, error: SyntaxProblem) -> bytes | None:
    """The text with keys like ``[data.train_files]`` made names, on the line of the error.

    shfmt reads every subscript as arithmetic. The text keeps its length, and the evaluator takes the
    key of an associative array from the source as it was written.
    """
    if not any(word in error.message for word in ("arithmetic", "subscript", "index", "[")):
        return None
    lines = text.splitlines(keepends=True)
    if not 0 < error.line <= len(lines):
        return None
    before = lines[error.line - 1]
    lines[error.line - 1] = SUBSCRIPT.sub(lambda match: re.sub(rb"\W", b"_", match[0]), before)
    return None if lines[error.line - 1] == before else b"".join(lines)


def below(node: object) -> Iterator[Node]:
    """Every node of a tree that is more than a place, at any depth, each before those in it."""
    if isinstance(node, dict) and "Offset" not in node:
        yield node
    children = node if isinstance(node, list) else node.values() if isinstance(node, dict) else ()
    for child in children:
        if isinstance(child, (dict, list)):
            yield from below(child)


def _continued_comments(tree: Node, text: bytes) -> Iterator[int]:
    """Offsets of backslashes that end a comment.

    shfmt 3.14 takes them for continuations; for bash a comment always ends with its line.
    """
    for node in below(tree):
        comment = node.get("Text", "").encode(errors="surrogateescape") if "Hash" in node else b""
        backslash = node["Hash"]["Offset"] + len(comment) - 1 if comment else 0
        if comment.endswith(b"\\\n") and text[backslash : backslash + 1] == b"\\":
            yield backslash


def _load(output: str) -> Node:
    try:
        tree: Node = json.loads(output.replace(r'"\u0003xport"', '"export"'))
    except RecursionError:
        raise BudgetExceeded("commands nested too deeply") from None
    return tree
