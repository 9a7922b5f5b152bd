"""Every program that is computed: its options, and what it does. All others are unknown, and stay open.

Only what real launch scripts need is here: measured on 1,696 public scripts, no launch changes by
computing sed, cut, sort, head, seq, bc or the output of grep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trinity_compat.launch.core.options import Arguments, Options
from trinity_compat.launch.core.state import Shell
from trinity_compat.launch.core.values import Value, doubt_in
from trinity_compat.launch.programs import changes, facts, paths, texts

STRICT = Options()  # operands only
ANY = Options(lenient=True)


@dataclass(frozen=True, slots=True)
class Program:
    """A row. ``run`` gives the status, None where it can't say.

    ``options``: None where every word is an operand. ``settled``: says nothing where an argument isn't known.
    """

    run: Callable[[Shell, Arguments], int | None]
    options: Options | None = STRICT
    settled: bool = False


PROGRAMS: dict[str, Program] = {
    "awk": Program(texts.awk, Options(values="F"), settled=True),
    "basename": Program(paths.basename, Options("a", "s", long={"--multiple": "a", "--suffix": "s"})),
    "cat": Program(texts.cat),
    "chmod": Program(changes.nothing, ANY),
    "chown": Program(changes.nothing, ANY),
    "cp": Program(changes.cp, ANY),
    "date": Program(
        facts.date,
        Options("u", "d", "I", {"--utc": "u", "--universal": "u", "--date": "d", "--iso-8601": "I"}),
        settled=True,
    ),
    "dirname": Program(paths.dirname),
    "expr": Program(facts.expr, options=None, settled=True),
    "git": Program(paths.git, options=None),
    "id": Program(facts.identity, Options("un")),
    "mkdir": Program(changes.mkdir, Options(values="m", long={"--mode": "m"}, lenient=True)),
    "printenv": Program(facts.printenv),
    "readlink": Program(paths.readlink, Options("femnqsv")),
    "realpath": Program(paths.realpath, Options("emqLP", "R", long={"--relative-to": "R"})),
    "rm": Program(changes.rm, ANY),
    "sed": Program(changes.sed, Options("nErsuz", "ef", "i", {"--in-place": "i"}, lenient=True)),
    "tee": Program(texts.tee, Options("a", long={"--append": "a"}, lenient=True)),
    "touch": Program(changes.touch, Options(values="drt", lenient=True)),
    "tr": Program(texts.tr, Options("cCds", long={"--delete": "d", "--squeeze-repeats": "s"}), settled=True),
    "uname": Program(facts.uname, Options("smo")),
    "wc": Program(texts.wc, Options("clmw", long={"--lines": "l", "--words": "w"}), settled=True),
    "whoami": Program(facts.whoami),
}


def run(sh: Shell, name: str, words: list[Value]) -> int | None:
    """The status of a program; None for one that isn't computed, or not with these words."""
    program = PROGRAMS.get(name)
    if program is None or (program.settled and (sh.vanished or doubt_in(words))):
        return None
    given = program.options.read(words) if program.options else Arguments({}, words)
    return None if given is None else program.run(sh, given)
