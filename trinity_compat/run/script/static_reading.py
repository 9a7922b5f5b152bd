"""Static reading of a script for a dry run: its launches, and errors of bash on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.launch import Diagnostic, Launch, Word, merged, read_script
from trinity_compat.run.plan.overlay import is_trinity_only
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.verl_config.grammar import split_key

_ENDS = ("TP001", "TP104", "TP111", "TP112")  # bash, or the reading, ends there
_NOT_ASKED = "TP113"  # a variable of the whole environment that has no effect: only --env asks for one


def invocations(call: ScriptCall) -> Iterator[Invocation]:
    """Yield the launches with the words that bash would pass.

    Diagnostics go to stderr, as ``translate`` prints them. Raises UserError where bash would end before a
    launch, and for a value known only by running a command, unless ``--set`` gives its key.
    """
    reading = read_script(
        call.script, cwd=call.cwd, env=call.environ, args=call.arguments, mains=call.options.mains
    )
    diagnostics = [found for found in reading.diagnostics if found.code != _NOT_ASKED]
    for diagnostic in merged(diagnostics):
        print(diagnostic, file=sys.stderr)
    text = Path(call.script).read_text(errors="replace").splitlines()
    ends = [found for found in diagnostics if found.code in _ENDS]
    ends = [found for found in ends if _is_before_the_last(found, reading.launches, text)]
    if ends:
        hint = "what follows is not started; fix that line first"
        raise UserError(ends[0].message, where=ends[0].where, hint=hint)
    if not reading.launches:
        raise UserError(f"{call.script} starts no veRL training main that can be read without running it")
    instead = _by_key(call.options.sets)
    for launch in reading.launches:
        words = tuple(_settled(word, instead) for word in launch.arguments)
        options = tuple(word.text for word in launch.torchrun)
        sent = (launch.start.elsewhere,) if launch.start and launch.start.elsewhere else ()
        yield Invocation(launch.module, words, sent, cwd=launch.cwd, main=launch.main, torchrun=options)


def _is_before_the_last(found: Diagnostic, launches: Sequence[Launch], text: Sequence[str]) -> bool:
    """Return whether a diagnostic precedes the last launch.

    A command after the last launch cannot prevent one.
    """
    if not launches or found.where.file != launches[-1].where.file:
        return True
    words = [word.where for word in launches[-1].arguments]
    last = max([launches[-1].where.line, *(at.line for at in words if at.file == found.where.file)])
    # A quote without its end stands in the launch's own command, behind the words that were read.
    between = text[last - 1 : found.where.line - 1]
    return all(line.endswith("\\") for line in between)


def _by_key(sets: Sequence[str]) -> Mapping[str, str]:
    return {split_key(text)[1]: text for text in sets if not is_trinity_only(text)}


def _settled(word: Word, instead: Mapping[str, str]) -> str:
    """The word's text, or the ``--set`` that replaces it."""
    if not word.open:
        return word.text
    key = word.text if "=" not in word.text else split_key(word.text)[1]
    if key in instead:
        return instead[key]
    unknown = word.open[0]
    give = f"--set {key}=… says" if key else "the key=value that it becomes, written out, says"
    if unknown.variable:
        give = f"{unknown.variable}=… in the environment says"
    raise UserError(
        f"{unknown.expression} is known only at run time",
        where=unknown.where,
        hint=f"{give} what it will be; `trinity-compat run` itself lets bash compute it",
    )
