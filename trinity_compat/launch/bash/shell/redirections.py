"""Redirections: where stdin comes from, and which files the script writes for itself."""

from __future__ import annotations

from collections.abc import Callable

from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import TextPiece, Value, doubt_in, literal, text_of
from trinity_compat.launch.bash.tree import Node
from trinity_compat.launch.bash.words import expansion
from trinity_compat.launch.bash.words.segments import value_of
from trinity_compat.launch.model import UnknownPiece

OUT = {">", ">>", ">|", "&>", "&>>"}


def run(sh: Shell, statement: Node, command: Callable[[Shell, Node], int]) -> int:
    """A command with its redirections in place, and taken back after it."""
    stdin, stdout = sh.stdin, sh.stdout
    target: tuple[str, bool] | None = None
    for redirection in statement["Redirs"]:
        operator = redirection["Op"]
        number = (redirection.get("N") or {}).get("Value", "")
        if operator in ("<", "<<", "<<-", "<<<", "<>"):
            if number in ("", "0"):
                sh.stdin = _input(sh, redirection)
        elif operator in OUT and (number in ("", "1")):
            target = _output_path(sh, redirection), operator in (">>", "&>>")
            # a path that isn't known, or a device: what is written is gone
            sh.stdout = [] if target[0] else None
        elif operator in OUT and (path := _output_path(sh, redirection)):
            # `exec 3> FILE`: what is written to it later is not followed
            sh.files.hand(path, UnknownPiece(f"{number}{operator} {path.rpartition('/')[2]}", sh.where))
        elif operator == ">&" and number in ("", "1"):
            word = text_of(expansion.expand_single(sh, sh.unit, redirection.get("Word")))
            if word != "1":  # `>&2`, `>&-`: not where a substitution or a file would read it
                target, sh.stdout = None, None
    if not statement.get("Cmd"):
        # `> file` makes it empty; `$(< file)` is its content.
        content = sh.stdin
        sh.stdin, sh.stdout = stdin, stdout
        if target and target[0]:
            sh.files.write(target[0], (), append=target[1])
        elif content is not None and content != stdin:
            sh.write(content)
        return 0
    try:
        return command(sh, statement)
    finally:
        written = sh.stdout
        sh.stdin, sh.stdout = stdin, stdout
        if target and target[0] and written is not None:
            sh.files.write(target[0], tuple(written), append=target[1])


def _output_path(sh: Shell, redirection: Node) -> str:
    value = expansion.expand_single(sh, sh.unit, redirection["Word"], tilde="word")
    if not text_of(value) or doubt_in([value]) or text_of(value).startswith("/dev/"):
        return ""
    return sh.files_path(value)


def _input(sh: Shell, redirection: Node) -> Value:
    operator, unit = redirection["Op"], sh.unit
    if operator == "<<<":
        value = expansion.expand_single(sh, unit, redirection["Word"], tilde="word")
        return (*value, TextPiece("\n", unit.where(redirection["Word"])))
    if operator in ("<<", "<<-"):
        return _here_document(sh, redirection)
    parts = redirection["Word"].get("Parts") or []
    if len(parts) == 1 and parts[0]["Type"] == "ProcSubst":
        return expansion.process_output(sh, unit, parts[0])
    value = expansion.expand_single(sh, unit, redirection["Word"], tilde="word")
    content = None if doubt_in([value]) else sh.files.read(sh.files_path(value))
    if content is None:
        return (sh.unknown(f"< {text_of(value)}", unit.where(redirection["Word"])),)
    return content


def _here_document(sh: Shell, redirection: Node) -> Value:
    document = redirection.get("Hdoc")
    if not document:
        return ()
    marker = redirection["Word"].get("Parts") or []
    raw = any(p["Type"] in ("SglQuoted", "DblQuoted") or "\\" in p.get("Value", "") for p in marker)
    parts = document.get("Parts") or []
    if raw:
        value: Value = tuple(
            bit for p in parts for bit in expansion.lines_of(p.get("Value", ""), sh.unit.where(p))
        )
    else:
        value = value_of(expansion.expand_parts(sh, sh.unit, parts, quoted=True, heredoc=True))
    return _without_tabs(value) if redirection["Op"] == "<<-" else value


def _without_tabs(value: Value) -> Value:
    out: list[TextPiece] = []
    fresh = True
    for bit in value:
        text = bit.text
        if bit.source is None:
            lines = text.split("\n")
            lines = [line.lstrip("\t") if i or fresh else line for i, line in enumerate(lines)]
            text = "\n".join(lines)
        out += [TextPiece(text, bit.where, bit.source)] if text or bit.source else literal(text, bit.where)
        fresh = bit.text.endswith("\n")
    return tuple(out)
