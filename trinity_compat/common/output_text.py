"""Texts of users in our output: one function for each kind of it.

A script's keys, values, file names and comments end in messages, tables and reports. What a terminal, a log
of GitHub or Markdown would obey in them is written so that it is only read:

- ``plain``: everything that leaves as text. Control characters become ``\\u001b``, which JSON reads back as
  the same character; a line cannot begin with ``::``, nor ``##[`` stand anywhere, which a runner of GitHub
  takes for its commands.
- ``console`` and ``Styled``: the same for a terminal, where our own colours stay.
- ``markdown``, ``markdown_code``, ``markdown_row``: words, a code span, and a table's line in Markdown.
- ``sarif``: a message of SARIF.
- HTML: Jinja's autoescape and ``html.escape``.

``plain_streams`` puts ``plain`` behind stdout and stderr of a whole command, and hides the secrets that need
no name (``redaction.without_passwords``).
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from trinity_compat.common.redaction import without_passwords

if TYPE_CHECKING:
    from rich.console import Console

# Controls but line end and tab, line separators, characters that turn the direction of a text around or are
# not seen at all, and halves of a surrogate pair, which no encoding has.
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)
_COMMAND = re.compile(r"(?m)^([^\S\n]*)::")


def plain(text: str) -> str:
    """Return ``text`` so that neither a terminal nor a workflow's log obeys anything in it.

    JSON stays the same JSON.
    """
    return without_commands(visible(text))


def visible(text: str) -> str:
    """Return ``text`` with control characters, and those that nobody sees, as escapes."""
    return OBEYED.sub(lambda found: _escape(found[0]), text)


def _escape(char: str) -> str:
    halves = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[at]:02x}{halves[at + 1]:02x}" for at in range(0, len(halves), 2))


def without_commands(text: str) -> str:
    """Return ``text`` without commands to a runner of GitHub; one obeys the old ones anywhere in a line."""
    return _COMMAND.sub(r"\1\\::", text.replace("##[", "#\\u0023["))


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


class Styled(str):
    """Text of a ``console``: users' words in it are plain, and the escapes are our own colours."""

    __slots__ = ()


def styled(show: Callable[[Console], None], *, width: int) -> Styled:
    """Return what ``show`` prints: in colour when stdout is a terminal, ``width`` columns wide elsewhere."""
    terminal = is_terminal()
    file = io.StringIO()
    out = console(
        file=file, force_terminal=terminal, width=None if terminal else width, highlight=False, emoji=False
    )
    show(out)
    text = "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())
    return Styled(text if terminal else leaving(text))


def console(**options: Any) -> Console:
    """Return rich's Console whose texts are ``plain``."""
    from rich.console import Console, ConsoleOptions, RenderableType  # here: not every command needs it
    from rich.segment import Segment

    class _Plain(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else leaving(text), style, control)

    return _Plain(**options)


def leaving(text: str) -> str:
    """Return ``text`` as a command hands it on: plain, and without the secrets that need no name."""
    return text if isinstance(text, Styled) else plain(without_passwords(text))


class _PlainStream:
    """A stream that writes ``plain`` text; bytes through its ``buffer`` stay as they are."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.rich_proxied_file = stream  # a console of rich writes there, with its colours

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._stream.write(leaving(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Write stdout and stderr as ``plain`` text in the block."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, _PlainStream(getattr(sys, name)))
    try:
        yield
    finally:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _PlainStream):  # a closed pipe has given stdout another one
                setattr(sys, name, stream.rich_proxied_file)


# An underscore inside a word is none of Markdown's.
_MARKUP = re.compile(r"[\\`*<~$\[\]]|&(?=#?\w+;)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What GitHub makes a link or a message of by itself: mentions and addresses, references to issues.
_LINK = re.compile(r"@|:(?=//)|#(?=\d)|www(?=\.)|\bgh(?=-\d)", re.I)
_NOTHING = "&#8203;"  # a space without a width


def markdown(text: str) -> str:
    """Return ``text`` as words of one line of Markdown: no markup, no link, no mention."""
    words = " ".join(visible(text).split())
    escaped = _MARKUP.sub(lambda found: {"<": "&lt;", "&": "&amp;"}.get(found[0], f"\\{found[0]}"), words)
    return _LINK.sub(rf"\g<0>{_NOTHING}", escaped)


def markdown_code(text: str) -> str:
    """Return ``text`` as a code span of one line; no run of backticks in it is as long as its fence."""
    words = " ".join(visible(text).split())
    words = re.sub(r"\\(?=\\*\|)", r"\\u005c", words)  # GitHub's tables end a cell at ``\\\\|``
    runs = {len(run) for run in re.findall("`+", words)}
    fence = "`" * next(length for length in range(1, len(runs) + 2) if length not in runs)
    edge = " " if not words or "`" in (words[0], words[-1]) else ""
    return f"{fence}{edge}{words}{edge}{fence}"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a line of a table; the cells are Markdown."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_SARIF_LINK = re.compile(r"\[(?=[^\[\]]*\]\()")


def sarif(text: str) -> str:
    """Return ``text`` as a message of SARIF, in which no link is made of brackets."""
    return _SARIF_LINK.sub(r"\\[", text)
