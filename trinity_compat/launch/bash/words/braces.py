"""Brace expansion: ``{a,b}``, ``{1..9..2}``, ``{a..e}``, before everything else."""

from __future__ import annotations

import itertools
import re
from typing import Any

from trinity_compat.common import limits
from trinity_compat.common.limits import Budget, BudgetExceeded
from trinity_compat.launch.bash.tree import Node

Token = str | dict[str, Any]  # a character (a backslash pair counts as one), or a part that isn't literal
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


def expand(parts: list[Node], budget: Budget) -> list[list[Node]]:
    """The words that one word becomes; itself when there are no braces."""
    if not any(part["Type"] == "Lit" and "{" in part["Value"] for part in parts):
        return [parts]
    tokens: list[Token] = []
    for part in parts:
        tokens += re.findall(r"\\.|.", part["Value"], re.S) if part["Type"] == "Lit" else [part]
    results = _expand(tokens, budget)
    if len(results) == 1 and results[0] == tokens:
        return [parts]
    template = next(part for part in parts if part["Type"] == "Lit")
    return [_parts(tokens, template) for tokens in results]


def _parts(tokens: list[Token], template: Node) -> list[Node]:
    out: list[Node] = []
    run = ""
    for token in [*tokens, {}]:
        if isinstance(token, str):
            run += token
            continue
        if run and out and (joined := _longer_name(out[-1], run)):
            out[-1], run = joined
        if run:
            out.append({**template, "Value": run})
        run = ""
        if token:
            out.append(token)
    return out


def _longer_name(part: Node, text: str) -> tuple[Node, str] | None:
    """``$a{p,q}`` is ``$ap $aq``: the letters after a short name belong to it."""
    name = part.get("Param", {}).get("Value", "")
    match = re.match(r"\w+", text, re.ASCII)
    if not part.get("Short") or not name.isidentifier() or not match:
        return None
    return {**part, "Param": {**part["Param"], "Value": name + match[0]}}, text[match.end() :]


def _expand(tokens: list[Token], budget: Budget, depth: int = 0) -> list[list[Token]]:
    """All expansions of a token list, left to right."""
    budget.step(1 + len(tokens) // 100)
    if depth > limits.DEPTH:
        raise BudgetExceeded("braces nested too deeply")
    results: list[list[Token]] = [[]]
    at = 0
    while at < len(tokens):
        group = _group(tokens, at) if tokens[at] == "{" else None
        options = _options(tokens, at, group, budget, depth) if group else None
        if group is None or options is None:
            for result in results:
                result.append(tokens[at])
            at += 1
            continue
        if len(results) * len(options) > limits.FIELDS:
            raise BudgetExceeded(f"braces that make more than {limits.FIELDS} words")
        results = [[*result, *option] for result in results for option in options]
        budget.step(len(results) // 10 + 1)
        at = group[0] + 1
    return results


def _group(tokens: list[Token], start: int) -> tuple[int, list[int]] | None:
    """The matching ``}`` and the commas on its level."""
    depth = 0
    commas: list[int] = []
    for index in range(start, len(tokens)):
        token = tokens[index]
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if depth == 0:
                return index, commas
        elif token == "," and depth == 1:
            commas.append(index)
    return None


def _options(
    tokens: list[Token], start: int, group: tuple[int, list[int]], budget: Budget, depth: int
) -> list[list[Token]] | None:
    end, commas = group
    if commas:
        edges = [start, *commas, end]
        pieces = [tokens[low + 1 : high] for low, high in itertools.pairwise(edges)]
        return [option for piece in pieces for option in _expand(piece, budget, depth + 1)]
    inner = tokens[start + 1 : end]
    if all(isinstance(token, str) for token in inner):
        return _range("".join(str(token) for token in inner))
    return None


def _range(text: str) -> list[list[Token]] | None:
    match = RANGE.fullmatch(text)
    if not match or len(text) > 60:
        return None
    if match[4]:
        return [[chr(n)] for n in _numbers(ord(match[4]), ord(match[5]), int(match[6] or 1))]
    # a leading zero asks for zero padding; a sign counts as a digit does
    padded = any(re.match("-?0.", text) for text in match.group(1, 2))
    width = max(len(match[1]), len(match[2])) if padded else 0
    numbers = _numbers(int(match[1]), int(match[2]), int(match[3] or 1))
    return [list(f"{n:0{width}d}") for n in numbers]


def _numbers(first: int, last: int, step: int) -> range:
    step = abs(step) or 1
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if (abs(last - first) // step) >= limits.FIELDS:
        raise BudgetExceeded(f"braces that make more than {limits.FIELDS} words")
    return numbers
