"""Every program that is computed: its options, and what it does. All others are unknown, and stay open.

Only what real launch scripts need is here: measured on 1,696 public scripts, no launch changes by
computing sed, cut, sort, head, seq or bc; grep and xargs read the variables of an env file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.programs import changes, facts, getopt, paths, texts
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import Value, doubt_in

STRICT = OptionSpec()  # operands only
ANY = OptionSpec(lenient=True)
COPY = OptionSpec(values="tS", long={"--target-directory": "t"}, lenient=True)


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A row. ``run`` gives the status, None where it can't say.

    ``options``: None where every word is an operand. ``settled``: says nothing where an argument isn't known.
    """

    run: Callable[[Shell, ParsedOptions], int | None]
    options: OptionSpec | None = STRICT
    settled: bool = False


PROGRAMS: dict[str, ProgramRow] = {
    "awk": ProgramRow(texts.awk, OptionSpec(values="F"), settled=True),
    "basename": ProgramRow(paths.basename, OptionSpec("a", "s", long={"--multiple": "a", "--suffix": "s"})),
    "cat": ProgramRow(texts.cat),
    "chmod": ProgramRow(changes.nothing, ANY),
    "chown": ProgramRow(changes.nothing, ANY),
    "cp": ProgramRow(changes.cp, COPY),
    "date": ProgramRow(
        facts.date,
        OptionSpec("u", "d", "I", {"--utc": "u", "--universal": "u", "--date": "d", "--iso-8601": "I"}),
        settled=True,
    ),
    "dirname": ProgramRow(paths.dirname),
    "expr": ProgramRow(facts.expr, options=None, settled=True),
    "getopt": ProgramRow(getopt.getopt, getopt.OPTIONS, settled=True),
    "git": ProgramRow(paths.git, options=None),
    "grep": ProgramRow(texts.grep, OptionSpec("EFGchiqsvx", "e"), settled=True),
    "id": ProgramRow(facts.identity, OptionSpec("un")),
    "mkdir": ProgramRow(changes.mkdir, OptionSpec(values="m", long={"--mode": "m"}, lenient=True)),
    "mv": ProgramRow(changes.mv, COPY),
    "printenv": ProgramRow(facts.printenv),
    "readlink": ProgramRow(paths.readlink, OptionSpec("femnqsv")),
    "realpath": ProgramRow(paths.realpath, OptionSpec("emqLP", "R", long={"--relative-to": "R"})),
    "rm": ProgramRow(changes.rm, ANY),
    "sed": ProgramRow(changes.sed, OptionSpec("nErsuz", "ef", "i", {"--in-place": "i"}, lenient=True)),
    "tee": ProgramRow(texts.tee, OptionSpec("a", long={"--append": "a"}, lenient=True)),
    "touch": ProgramRow(changes.touch, OptionSpec(values="drt", lenient=True)),
    "tr": ProgramRow(
        texts.tr, OptionSpec("cCds", long={"--delete": "d", "--squeeze-repeats": "s"}), settled=True
    ),
    "uname": ProgramRow(facts.uname, OptionSpec("smo")),
    "wc": ProgramRow(texts.wc, OptionSpec("clmw", long={"--lines": "l", "--words": "w"}), settled=True),
    "whoami": ProgramRow(facts.whoami),
    "xargs": ProgramRow(texts.xargs, OptionSpec("rt", leading=True)),
}


def run(sh: Shell, name: str, words: list[Value]) -> int | None:
    """The status of a program; None for one that isn't computed, or not with these words."""
    program = PROGRAMS.get(name)
    if program is None or (program.settled and (sh.vanished or doubt_in(words))):
        return None
    given = program.options.read(words) if program.options else ParsedOptions({}, words)
    return None if given is None else program.run(sh, given)
