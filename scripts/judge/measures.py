"""Measures of the package: what makes code easy or hard to take over, per room and in all.

    .venv/bin/python scripts/judge/measures.py [--root trinity_compat] [--depth 1]
    .venv/bin/python scripts/judge/measures.py --budget docs/architecture.md

Prints a Markdown table. Lines are lines of files; a function's length counts from `def` to its last line,
docstring included. `Any` counts names in code, imports apart, for 1,000 lines. Comments count lines with
a `#` of their own or behind code, for 100 lines that are neither blank nor docstring. Repeated lines are
those inside a run of at least six equal lines of code that stands somewhere else too. Longest chain: of
modules that import each other one below the other, cycles (functions' imports counted in) as one.

``--budget`` compares with the page's table ``| room | lines at most |`` instead: exit code 1 where a room or
the whole is larger than the page allows, or a room is missing there.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import networkx

RUN = 6  # equal lines that make a repetition
WHOLE = "**all**"
BUDGET_ROW = re.compile(r"^\| (\S+) \| ([\d,]+) \|$", re.M)


@dataclass
class Measured:
    """Sums over some files."""

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    anys: int = 0
    repeated: int = 0
    functions: list[int] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Count another file in."""
        self.files += other.files
        self.lines += other.lines
        self.code += other.code
        self.comments += other.comments
        self.anys += other.anys
        self.repeated += other.repeated
        self.functions += other.functions

    def row(self, name: str) -> str:
        """One row of the table."""
        lengths = sorted(self.functions) or [0]
        cells = (
            name,
            self.files,
            f"{self.lines:,}",
            len(self.functions),
            f"{statistics.median(lengths):.0f}",
            lengths[int(0.9 * (len(lengths) - 1))],
            lengths[-1],
            f"{1000 * self.anys / max(1, self.lines):.1f}",
            f"{100 * self.comments / max(1, self.code):.1f}",
            f"{100 * self.repeated / max(1, self.code):.2f} %",
        )
        return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "| room | files | lines | functions | median | p90 | longest | Any/1,000 | comments/100 | repeated |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def measured(text: str, repeated: int) -> Measured:
    """One file."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    anys = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    comments, code = _comments_and_code(text, nodes)
    return Measured(1, text.count("\n"), code, comments, anys, repeated, functions)


def _comments_and_code(text: str, nodes: Sequence[ast.AST]) -> tuple[int, int]:
    docs: set[int] = set()
    for node in nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    filled = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    return len(comments), len(filled - docs)


def repetitions(texts: dict[Path, str]) -> dict[Path, int]:
    """Lines of code per file inside a run of RUN equal lines that stands in another place too."""
    seen: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    numbered = {path: list(_code_lines(text)) for path, text in texts.items()}
    for path, lines in numbered.items():
        for at in range(len(lines) - RUN + 1):
            seen[tuple(line for _, line in lines[at : at + RUN])].append((path, at))
    hit: dict[Path, set[int]] = {path: set() for path in texts}
    for places in seen.values():
        for path, at in places if len(places) > 1 else ():
            hit[path] |= set(range(at, at + RUN))
    return {path: len(lines) for path, lines in hit.items()}


def _code_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if len(bare) > 2 and not bare.startswith(("#", "import ", "from ", '"""')):
            yield number, bare


def imports(text: str, known: set[str]) -> set[str]:
    """The modules of the package that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & known) or {node.module}
    return found & known


def chain(graph: dict[str, set[str]]) -> tuple[int, list[list[str]]]:
    """(modules on the longest chain of imports, the cycles)."""
    knots = networkx.condensation(networkx.DiGraph(graph))  # a module, or a cycle of them, is one
    members = knots.nodes(data="members")
    depth: dict[int, int] = {}
    for knot in reversed(list(networkx.topological_sort(knots))):
        depth[knot] = len(members[knot]) + max((depth[below] for below in knots[knot]), default=0)
    return max(depth.values(), default=0), [sorted(names) for _, names in members if len(names) > 1]


def over_budget(sizes: dict[str, int], page: str) -> list[str]:
    """A line for each room whose size (lines) is above the page's figure, or that the page does not list."""
    allowed = {room: int(lines.replace(",", "")) for room, lines in BUDGET_ROW.findall(page)}
    told = []
    for room, lines in sizes.items():
        if room not in allowed:
            told.append(f"{room}: {lines:,} lines, and no row in the table")
        elif lines > allowed[room]:
            told.append(f"{room}: {lines:,} lines, {lines - allowed[room]:,} more than the table allows")
    return told + [f"{room}: has a row in the table and no code" for room in allowed if room not in sizes]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("trinity_compat"))
    parser.add_argument(
        "--depth", type=int, default=1, help="folders below the root that get a row of their own"
    )
    parser.add_argument("--budget", type=Path, help="the page whose table limits the rooms")
    args = parser.parse_args()
    texts = {path.relative_to(args.root): path.read_text() for path in sorted(args.root.rglob("*.py"))}
    if args.budget:
        sizes: dict[str, int] = defaultdict(int)
        for path, text in texts.items():
            for room in (path.parts[0] if len(path.parts) > 1 else ".", WHOLE):
                sizes[room] += text.count("\n")
        if told := over_budget(sizes, args.budget.read_text()):
            sys.exit("\n".join([*told, f"Cut, or raise the figure in {args.budget} and say what it bought."]))
        return
    repeated = repetitions(texts)
    rooms: dict[str, Measured] = defaultdict(Measured)
    whole = Measured()
    for path, text in texts.items():
        one = measured(text, repeated[path])
        rooms["/".join(path.parts[:-1][: args.depth]) or "."].add(one)
        whole.add(one)
    print(HEAD, *(room.row(name) for name, room in sorted(rooms.items())), whole.row(WHOLE), sep="\n")
    names = {_module(args.root, path): path for path in texts}
    graph = {name: imports(texts[path], set(names)) - {name} for name, path in names.items()}
    longest, cycles = chain(graph)
    print(f"\nlongest chain of imports: {longest} modules; cycles: {len(cycles)}")
    for cycle in cycles:
        print(f"  {', '.join(cycle)}")


def _module(root: Path, path: Path) -> str:
    parts = (root.name, *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    main()
