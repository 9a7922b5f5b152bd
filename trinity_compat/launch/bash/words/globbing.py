"""Pathname expansion, in the files that are in reach."""

from __future__ import annotations

import re

from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import Value, literal, text_of
from trinity_compat.launch.bash.words.matching import Chars, Matcher, glob
from trinity_compat.launch.bash.words.segments import Segs, field_value

SPECIAL = re.compile(r"[*?[]|[+@!]\(")


def expand(sh: Shell, field: Segs) -> list[Value] | None:
    """The paths that a field matches; None when it stays what it is."""
    if "f" in sh.options or not any(not s.quoted and SPECIAL.search(s.text) for s in field):
        return None
    chars: Chars = [(char, seg.quoted) for seg in field for char in seg.text]
    where = field_value(field, sh.where)[0].where
    paths = _match(sh, chars)
    # bash leaves a pattern that matches nothing as it is; files out of reach count as nothing
    if not paths and "nullglob" not in sh.options:
        return None
    if not paths:
        sh.warn("TP105", "nothing matches this pattern; it becomes no argument at all", where)
    return [literal(path, where) for path in paths]


def _match(sh: Shell, chars: Chars) -> list[str]:
    components: list[Chars] = [[]]
    for item in chars:
        if item[0] == "/":
            components.append([])
        else:
            components[-1].append(item)
    found = [""]
    for index, component in enumerate(components):
        last = index == len(components) - 1
        found = [path for base in found for path in _descend(sh, base, component, last)]
        if not found:
            return []
    return sorted(found)


def _descend(sh: Shell, base: str, component: Chars, last: bool) -> list[str]:
    end = "" if last else "/"
    if not SPECIAL.search("".join(char for char, quoted in component if not quoted)):
        path = base + "".join(char for char, _ in component)
        return [path + end] if not last or sh.files.kind(absolute(text_of(sh.cwd), path)) else []
    folder = absolute(text_of(sh.cwd), base)
    pattern = glob(component)
    hidden = component[0][0] == "." or "dotglob" in sh.options
    names = [n for n in sh.files.children(folder) if hidden or not n.startswith(".")]
    return [base + name + end for name in names if Matcher(name, sh.budget).whole(pattern)]
