"""Check the messages of the commits since the last landed one (``.ci/landed``): ``check_commits.py``.

A subject in the imperative of at most 72 characters, a blank line, and a body that says why. Commits older
than this script are not held to it. Exit code 1 names each commit with what is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from changed import ROOT, landed

LONGEST_SUBJECT = 72
# What `docs/testing.md` asks for in a fresh clone; there is nothing more to say of it.
WITHOUT_A_BODY = "Name the last landed commit"
# "Added", "Adding" and "Adds"; verbs that only end like these are in the second pattern.
_OTHER_FORM = re.compile(r"\w+(?:ed|ing|[^su]s)$")
_IMPERATIVE = re.compile(
    r"\w*(?:feed|seed|need|speed|heed|weed|embed|exceed|proceed|shed|bring|string|ping|bias)$", re.I
)


def problems(message: str) -> Iterator[str]:
    """Yield what is wrong with a commit's message."""
    subject, *rest = message.rstrip("\n").split("\n")
    first = subject.partition(" ")[0]
    if len(subject) > LONGEST_SUBJECT:
        yield f"the subject has {len(subject)} characters, at most {LONGEST_SUBJECT} are read everywhere"
    if not re.match(r"[A-Z]", subject) or subject.endswith("."):
        yield "the subject begins with a capital letter and ends without a full stop"
    elif _OTHER_FORM.match(first) and not _IMPERATIVE.match(first):
        yield f"the subject begins with {first!r}: write an order instead, like Add, Fix or Name"
    if rest and rest[0]:
        yield "the line after the subject is not blank"
    elif not any(line.strip() for line in rest) and subject != WITHOUT_A_BODY:
        yield "no body says why"


def commits(since: str | None) -> Iterator[tuple[str, str]]:
    """Yield hash and message of each commit after ``since`` that has this script, the newest first.

    Without ``since`` the newest commit alone.
    """
    reach = [f"{since}..HEAD"] if since else ["-1"]
    for entry in _git("log", "--no-merges", "--format=%h%n%B%x00", *reach).split("\0"):
        name, _, message = entry.strip().partition("\n")
        if name and _git("ls-tree", "--name-only", name, "scripts/ci/check_commits.py"):
            yield name, message


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    wrong = [(name, message, found) for name, message in commits(landed()) if (found := [*problems(message)])]
    for name, message, found in wrong:
        print(f"{name} {message.partition(chr(10))[0]}")
        print(*(f"  {problem}" for problem in found), sep="\n")
    if wrong:
        print("`git commit --amend`, or `git rebase -i` with `reword`, changes a message.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
