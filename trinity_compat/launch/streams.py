"""The small part of sed and awk that launch scripts use to cut text."""

from __future__ import annotations

import re

from trinity_compat.launch import ere, regex_text
from trinity_compat.launch.bounds import Budget

ONE_FIELD = re.compile(r"\{\s*print\s+((?:\$(?:\d{1,3}|NF)\s*,?\s*)+);?\s*\}")


def sed(text: str, script: str, budget: Budget, extended: bool, quiet: bool) -> str | None:
    """``s/a/b/flags`` (several, with ``;``), ``Np``, ``Nq``, ``Nd``, ``/re/d``; None for the rest."""
    commands = _commands(script)
    if commands is None:
        return None
    lines = text.split("\n")
    tail = lines.pop() if not text or text.endswith("\n") else None
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        budget.step()
        shown, stop = _one_line(line, number, number == len(lines), commands, budget, extended, quiet)
        out += shown
        if stop:
            break
    return "".join(line + "\n" for line in out) if tail is not None or out != lines else "\n".join(out)


Command = tuple[str, str, str, str]  # address, name, and for s: pattern, "new\0flags"


def _commands(script: str) -> list[Command] | None:
    out: list[Command] = []
    rest = script.strip()
    while rest:
        match = re.match(r"(\d+|\$|)\s*([pqd])[ \t]*([;\n]|$)", rest)
        if match:
            out.append((match[1], match[2], "", ""))
            rest = rest[match.end() :].strip()
            continue
        match = re.match(r"(\d+|\$|)\s*s(.)", rest)
        if not match:
            return None
        mark = re.escape(match[2])
        body = rf"((?:\\.|[^{mark}\\])*){mark}" * 2 + r"([gIip]*\d{0,4}[gIip]*)[ \t]*([;\n]|$)"
        found = re.compile(body, re.S).match(rest, match.end())
        if not found or not found[1] or re.fullmatch(r"\D*0+\D*", found[3]):
            return None
        escaped = "\\" + match[2]
        if escaped in found[1] and match[2] in "()|+?{}.*^$[]n":  # versions of sed disagree
            return None
        new = found[2].replace(escaped, match[2])
        out.append((match[1], "s", found[1].replace(escaped, match[2]), new + "\0" + found[3]))
        rest = rest[found.end() :].strip()
    return out


def _one_line(
    line: str, number: int, last: bool, commands: list[Command], budget: Budget, extended: bool, quiet: bool
) -> tuple[list[str], bool]:
    """What is printed for a line, and whether sed ends there."""
    shown: list[str] = []
    for address, name, pattern, new in commands:
        if address and not (address == "$" and last) and address != str(number):
            continue
        if name == "d":
            return shown, False
        if name == "q":
            return [*shown, *([] if quiet else [line])], True
        hit = True
        if name == "s":
            line, hit = _substitute(line, pattern, new, budget, extended)
        if hit and (name == "p" or "p" in new.split("\0")[1]):
            shown.append(line)
    return [*shown, *([] if quiet else [line])], False


def _substitute(line: str, pattern: str, new: str, budget: Budget, extended: bool) -> tuple[str, bool]:
    replacement, flags = new.split("\0")
    chars = regex_text.chars_of_text(pattern, basic=not extended, stream=True)
    wanted = int(re.sub(r"\D", "", flags) or "1")
    out, at, last, count, hit = "", 0, -1, 0, False
    while at <= len(line):
        found = ere.find(chars, line, budget, fold="i" in flags.lower(), begin=at)
        if found is None:
            break
        start, groups = found
        end = start + len(groups[0])
        out += line[at:start]
        if not start == end == last:  # nothing right behind a match isn't one
            count += 1
            fits = count == wanted or (count > wanted and "g" in flags)
            out += _filled(replacement, groups) if fits else groups[0]
            hit = hit or fits
        at = last = end
        if hit and "g" not in flags:
            break
        if start == end:
            out, at = out + line[at : at + 1], at + 1
        budget.make(len(out) // 16)
    return out + line[at:], hit


PIECE = re.compile(r"\\(.)|&|[^\\&]+", re.S)
CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _filled(replacement: str, groups: list[str]) -> str:
    """The new text: groups put in, and ``\\U \\L \\u \\l \\E`` followed."""
    out, mode, once = "", "", ""
    for match in PIECE.finditer(replacement):
        letter = match[1] or ""
        if letter and letter in "ULE":
            mode, once = letter, ""
        elif letter and letter in "ul":
            once = letter
        elif piece := _piece(match[0], letter, groups):
            piece = {"U": str.upper, "L": str.lower}.get(mode, str)(piece)
            head = {"u": str.upper, "l": str.lower}.get(once, str)(piece[:1])
            out, once = out + head + piece[1:], ""
    return out


def _piece(text: str, letter: str, groups: list[str]) -> str:
    if text == "&" or letter == "0":
        return groups[0]
    if letter.isdigit():
        if int(letter) >= len(groups):
            raise ere.BadExpression(f"no group {letter}")
        return groups[int(letter)]
    if letter and letter in "cdox":
        raise ere.Unread("\\" + letter)
    return CONTROL.get(letter, letter) if letter else text


def awk(text: str, program: str, separator: str | None) -> str | None:
    """``{print $N}`` and lists of fields; None for the rest."""
    match = ONE_FIELD.fullmatch(program.strip())
    if not match or (separator is not None and len(separator) != 1):
        return None
    out = ""
    lines = text.split("\n")
    for line in lines[:-1] if lines[-1] == "" else lines:
        fields = line.split() if separator in (None, " ") else line.split(separator) if line else []
        groups = [piece.split() for piece in match[1].split(",")]
        out += " ".join("".join(_field(line, fields, name) for name in names) for names in groups) + "\n"
    return out


def _field(line: str, fields: list[str], name: str) -> str:
    if name == "$0":
        return line
    index = len(fields) if name == "$NF" else int(name[1:])
    return fields[index - 1] if 0 < index <= len(fields) else ""
