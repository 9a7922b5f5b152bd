"""``date``: follows SOURCE_DATE_EPOCH, so that a reading can be repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone

from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import text_of

_moment: ContextVar[datetime | None] = ContextVar("moment", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """Give all readings inside the same time, so that they differ only in what they are given."""
    token = _moment.set(datetime.now(timezone.utc))
    try:
        yield
    finally:
        _moment.reset(token)


def moment(sh: Shell) -> datetime:
    """SOURCE_DATE_EPOCH, or the time of the reading."""
    value = sh.scalar("SOURCE_DATE_EPOCH")
    epoch = text_of(value) if value is not None else os.environ.get("SOURCE_DATE_EPOCH", "")
    if re.fullmatch(r"\d{1,11}", epoch):
        return datetime.fromtimestamp(int(epoch), timezone.utc)
    sh.warn("TP110", "date gives the time of this reading; set SOURCE_DATE_EPOCH to fix it")
    return _moment.get() or datetime.now(timezone.utc)


def epoch_or_now(sh: Shell, text: str) -> datetime:
    """``printf '%(…)T' TEXT``: seconds since the epoch, else now."""
    return datetime.fromtimestamp(int(text), timezone.utc) if re.fullmatch(r"\d{1,11}", text) else moment(sh)


def is_utc(sh: Shell) -> bool:
    """Return whether no other time zone is set: without TZ a container's is UTC."""
    value = sh.scalar("TZ")
    return value is None or text_of(value) in ("", "UTC")


_NUMBERS = "CdegGHIjklmMqSuUVwWyY"  # what a padding flag changes
# GNU date's padding flags: %-d, %_d, %0d, %^a.
FORMAT = re.compile(r"%([-_0^#]?)(\d*)(:{0,3}[A-Za-z%+])")


def strftime(form: str, when: datetime) -> str:
    """The time in a format of GNU date."""
    return FORMAT.sub(lambda match: _one(match, when), form)


def _one(match: re.Match[str], when: datetime) -> str:
    flag, kind = match[1], match[3]
    text = _field(kind, when)
    if flag in ("-", "_") and kind in _NUMBERS:
        stripped = text.lstrip("0 ") or "0"
        return stripped if flag == "-" else stripped.rjust(len(text))
    if kind == "N" and match[2]:
        return text[: int(match[2][:1])]
    if flag == "#" and kind == "p":
        return text.lower()
    return text.upper() if flag in ("^", "#") else text


def _field(kind: str, when: datetime) -> str:
    special = {
        "s": lambda: str(int(when.timestamp())),
        "N": lambda: f"{when.microsecond * 1000:09d}",
        "F": lambda: when.strftime("%Y-%m-%d"),
        "T": lambda: when.strftime("%H:%M:%S"),
        "R": lambda: when.strftime("%H:%M"),
        "D": lambda: when.strftime("%m/%d/%y"),
        "e": lambda: str(when.day).rjust(2),
        "k": lambda: str(when.hour).rjust(2),
        "l": lambda: str((when.hour + 11) % 12 + 1).rjust(2),
        "h": lambda: when.strftime("%b"),
        "n": lambda: "\n",
        "t": lambda: "\t",
        "P": lambda: when.strftime("%p").lower(),
        "q": lambda: str((when.month + 2) // 3),
        "C": lambda: f"{when.year // 100:02d}",
        "r": lambda: when.strftime("%I:%M:%S %p"),
        ":z": lambda: when.strftime("%z")[:3] + ":" + when.strftime("%z")[3:],
        "%": lambda: "%",
    }
    if kind in special:
        return special[kind]()
    return when.strftime(f"%{kind}") if kind in "aAbBcdgGHIjmMpSuUVwWxXyYzZ" else f"%{kind}"


def moment_of(sh: Shell, text: str) -> datetime | None:
    """Return the time that ``date -d TEXT`` prints: now, or ``@SECONDS``; None for every other form."""
    if match := re.fullmatch(r"@(\d{1,11})", text.strip()):
        return datetime.fromtimestamp(int(match[1]), timezone.utc)
    return moment(sh) if text.strip() in ("", "now") else None
