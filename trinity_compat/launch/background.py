"""Recognition of lines that do nothing but start one command in the background."""

from __future__ import annotations

from collections import Counter

from trinity_compat.common.errors import UserError
from trinity_compat.common.limits import Budget, BudgetExceeded
from trinity_compat.launch.bash.tree import Node, below, parse


def lines_of_commands(text: str) -> list[int]:
    """Return all lines of every simple command with ``&``, but those that another command shares.

    Bash reports one line of such a command, not always the first. Empty for a text that cannot be parsed.
    """
    try:
        nodes, _ = parse(text.encode(errors="surrogateescape"), Budget())
    except (BudgetExceeded, UserError):
        return []
    simple = [node for node in below(nodes) if (node.get("Cmd") or {}).get("Type") == "CallExpr"]
    shared = Counter(line for node in simple for line in _lines(node))
    return [
        line
        for node in simple
        if node.get("Background")
        for line in _lines(node)
        if all(shared[each] == 1 for each in _lines(node))
    ]


def _lines(statement: Node) -> range:
    return range(statement["Pos"]["Line"], statement["End"]["Line"] + 1)
