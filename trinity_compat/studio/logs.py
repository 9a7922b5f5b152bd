"""The ends of a job's log files, followed; secrets masked, control sequences taken out."""

from __future__ import annotations

import re
from pathlib import Path

from trinity_compat.common.redaction import shown
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.studio import job_files

_AT_ONCE = 64 * 1024  # bytes
_TAIL = 8192  # bytes that the last lines are taken from
_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|[\x00-\x08\x0b\x0c\x0e-\x1f]"
)


def names(job: JobDir) -> list[str]:
    """The processes that have a log, trainer first."""
    folder = job.root / "log"
    try:
        files = [Path(name) for name in job_files.names(folder) if name.endswith(".log")]
    except OSError:  # not this user's to read, or a link
        return []
    found = (path.stem for path in files if job_files.is_there(folder / path))
    return sorted(found, key=lambda name: (name != "trainer", not name.startswith("explorer"), name))


def follow(job: JobDir, at: dict[str, int]) -> dict[str, str]:
    """Process → what its log has had since byte ``at[process]``, which moves on; whole lines only.

    A first look begins near the end; so does one after a file that became shorter.
    """
    fresh = {}
    for name in names(job):
        text, at[name] = _since(job.log(name), at.get(name))
        if text:
            fresh[name] = clean(text)
    return fresh


def _since(path: Path, at: int | None) -> tuple[str, int]:
    try:
        with job_files.opened(path) as file:
            size = file.seek(0, 2)
            begin = at if at is not None and at <= size else max(0, size - _AT_ONCE)
            begin = max(begin, size - 4 * _AT_ONCE)
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return "", at or 0
    whole = data[: data.rfind(b"\n") + 1]
    if at is None and begin:  # from the middle of a line
        whole = whole[whole.find(b"\n") + 1 :]
        return whole.decode(errors="replace"), begin + data.rfind(b"\n") + 1
    return whole.decode(errors="replace"), begin + len(whole)


def last_lines(path: Path, *, after: int = 0, count: int = 12) -> str:
    """Return the last lines of a log since byte ``after``, or why it cannot be read."""
    try:
        with job_files.opened(path) as file:
            file.seek(max(after, file.seek(0, 2) - _TAIL))
            text = file.read(_TAIL).decode(errors="replace")
    except OSError as error:
        return f"{path} {error.strerror}"
    return "\n".join(clean(text + "\n").rstrip().splitlines()[-count:])


def clean(text: str) -> str:
    """Return ``text`` as a terminal finally shows it, without colours and with secrets masked.

    Of a progress bar only the last state remains.
    """
    last = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")[:-1])
    return "".join(f"{shown(_CONTROL.sub('', line))}\n" for line in last)
