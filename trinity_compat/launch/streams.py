"""The small part of sed and awk that launch scripts use to cut text."""

from __future__ import annotations

import re

from trinity_compat.launch import ere
from trinity_compat.launch.bounds import Budget
from trinity_compat.launch.matching import chars_of

ONE_FIELD = re.compile(r"\{\s*print\s+((?:\$(?:\d{1,3}|NF)\s*,?\s*)+);?\s*\}")


def sed(text: str, script: str, budget: Budget, extended: bool, quiet: bool) -> str | None:
    """``s/a/b/flags`` (several, with ``;``), ``Np``, ``Nq``, ``Nd``, ``/re/d``; None for the rest."""
    commands = _commands(script)
    if commands is None:
        return None
    lines = text.split("\n")
    tail = lines.pop() if text.endswith("\n") else None
    out: list[str] = []
    for number, line in enumerate(lines, 1):
        budget.step()
        kept, printed, stop = _one_line(line, number, number == len(lines), commands, budget, extended)
        out += [kept] if printed else []
        out += [kept] if not quiet and kept is not None and stop != "deleted" else []
        if stop == "quit":
            break
    return "".join(line + "\n" for line in out) if tail is not None or out != lines else "\n".join(out)


Command = tuple[str, str, str, str]  # address, name, and for s: pattern, "new\0flags"


def _commands(script: str) -> list[Command] | None:
    out: list[Command] = []
    rest = script.strip()
    while rest:
        match = re.match(r"(\d+|\$|)\s*([pqd])\s*(;|$)", rest)
        if match:
            out.append((match[1], match[2], "", ""))
            rest = rest[match.end() :].strip()
            continue
        match = re.match(r"(\d+|\$|)\s*s(.)", rest)
        if not match:
            return None
        mark = re.escape(match[2])
        body = re.compile(rf"((?:\\.|[^{mark}\\])*){mark}((?:\\.|[^{mark}\\])*){mark}([gIip]*)\s*(;|$)", re.S)
        found = body.match(rest, match.end())
        if not found:
            return None
        pattern = found[1].replace("\\" + match[2], match[2]) if match[2] not in "()|+?{}." else found[1]
        out.append((match[1], "s", pattern, found[2].replace("\\" + match[2], match[2]) + "\0" + found[3]))
        rest = rest[found.end() :].strip()
    return out


def _one_line(
    line: str, number: int, last: bool, commands: list[Command], budget: Budget, extended: bool
) -> tuple[str, bool, str]:
    printed, stop = False, ""
    for address, name, pattern, new in commands:
        if address and not (address == "$" and last) and address != str(number):
            continue
        if name == "d":
            return line, printed, "deleted"
        if name == "q":
            return line, printed, "quit"
        if name == "p":
            printed = True
        else:
            line, hit = _substitute(line, pattern, new, budget, extended)
            printed = printed or (hit and "p" in new.split("\0")[1])
    return line, printed, stop


def _substitute(line: str, pattern: str, new: str, budget: Budget, extended: bool) -> tuple[str, bool]:
    replacement, flags = new.split("\0")
    chars = chars_of(pattern if extended else ere.from_basic(pattern))
    out, rest, hit = "", line, False
    while True:
        found = ere.find(chars, rest, budget, fold="i" in flags.lower())
        if found is None:
            break
        hit = True
        at, groups = found
        out += rest[:at] + _filled(replacement, groups)
        rest = rest[at + len(groups[0]) :]
        if "g" not in flags or not rest or chars[:1] == [("^", False)]:
            break
        if not groups[0]:
            out += rest[:1]
            rest = rest[1:]
        budget.make(len(out) // 16)
    return out + rest, hit


def _filled(replacement: str, groups: list[str]) -> str:
    def one(match: re.Match[str]) -> str:
        token = match[0]
        if token == "&":
            return groups[0]
        if token[1].isdigit():
            return groups[int(token[1])] if int(token[1]) < len(groups) else ""
        return {"n": "\n", "t": "\t"}.get(token[1], token[1])

    return re.sub(r"\\.|&", one, replacement, flags=re.S)


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
