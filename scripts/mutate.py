"""Whether the light tests can fail: change the code a little, run its package's tests, count what survives.

    .venv/bin/python scripts/mutate.py [--per-package 16] [--only translate,audit] [--seed 1] [--out DIR]

Takes a seeded sample of mutants of each package below, every operator alike, and runs them one after the
other in a copy of the working tree: PYTHONPATH points there, so that a test that starts the command line gets
the mutated code too. Tests that run the mutated line go first, by a coverage of the untouched copy; a mutant
that they let live meets all of its package's. The controls come first: the untouched copy passes, the command
line is the copy's, and a module that raises fails its package's tests. Results go to DIR/results.json after
each mutant; a second call with the same seed goes on where the first stopped. A person who finds that a
survivor means the same as the code writes why into its ``equivalent`` there; the table counts those apart.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
# package → (the module that the control breaks, the tests that should notice)
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "launch": ("reading.py", ("tests/launch",)),
    "verl_config": ("effective.py", ("tests/verl_config",)),
    "translate": (
        "translator.py",
        ("tests/translate", "tests/runtime/test_refusals.py", "tests/runtime/test_refusals_and_audit.py"),
    ),
    "audit": ("collect.py", ("tests/audit",)),
    "compare": ("verdict.py", ("tests/compare",)),
    "buffer": ("store.py", ("tests/buffer",)),
    "synchronizer": ("policy.py", ("tests/synchronizer",)),
}
MARKS = "not runtime and not upstream and not postgres and not chaos and not nightly"
# A mutant that runs this much longer than the tests without it hangs: its tests time out, which is a failure.
SLOWER, AT_LEAST_S = 4, 60

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """``text`` takes the place of the bytes from ``start`` to ``end`` of ``file``, a path below ROOT."""

    package: str
    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def source(self, root: Path) -> str:
        """The mutated file. Raises SyntaxError where the replacement does not fit its place."""
        whole = (root / self.file).read_bytes()
        mutated = (whole[: self.start] + self.text.encode() + whole[self.end :]).decode()
        ast.parse(mutated)
        return mutated

    def diff(self, root: Path) -> str:
        before = (root / self.file).read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(before, self.source(root).splitlines(), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST | None]]:
    """(kind, the node to replace, its replacement; None: a statement that is left out)."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield "comparison", node, changed(node, ops=[COMPARISONS[type(op)]()])
        case ast.BoolOp(op=op):
            yield "boolean", node, changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) if (
            type(op) in ARITHMETIC and not _is_text(node.left) and not _is_text(node.right)
        ):
            yield "arithmetic", node, changed(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, ast.Constant(value + 1)
            yield "constant", node, ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, ast.Constant(value + 1.0)
        case ast.Constant(value=str(value)):
            yield "string", node, ast.Constant(f"{value}~" if value else "~")
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield "return", value, ast.Constant(None)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test, *_]):
            yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign() | ast.Raise():
            yield "statement", node, None
        case ast.Continue() | ast.Break():
            yield "statement", node, None


def changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_text(node: ast.expr) -> bool:
    """What + and % do to texts and lists would only end in a TypeError, which any test notices."""
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _is_nothing(node: ast.expr) -> bool:
    """What None hardly differs from for a caller: False, 0, an empty text."""
    return isinstance(node, ast.Constant) and not node.value


def mutable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``node`` that mean something when the code runs: no annotation, docstring or export.
    Nor decorators, whose slots and cache sizes change nothing that a test should see, nor what stands in an
    f-string, whose parts have no position of their own before Python 3.12."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _means_nothing(child):
                continue
            yield child
            if not isinstance(child, ast.JoinedStr):
                yield from mutable(child)


def _means_nothing(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def mutants_of(package: str, file: Path) -> Iterator[Mutant]:
    """Every mutant of one file of the working tree."""
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = str(file.relative_to(ROOT))
    for node in mutable(ast.parse(source)):
        for kind, old, new in replacements(node):
            assert isinstance(old, ast.expr | ast.stmt) and old.end_lineno and old.end_col_offset
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            text = "pass" if new is None else f"({ast.unparse(new)})"
            yield Mutant(package, name, old.lineno, kind, start, end, text)


def sample(package: str, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants, one of each kind in turn: strings and constants would crowd out the rest."""
    kinds: dict[str, list[Mutant]] = {}
    for file in sorted((ROOT / "trinity_compat" / package).rglob("*.py")):
        for mutant in mutants_of(package, file):
            kinds.setdefault(mutant.kind, []).append(mutant)
    chance = random.Random(f"{seed} {package}")
    for found in kinds.values():
        chance.shuffle(found)
    taken: list[Mutant] = []
    while len(taken) < count and any(kinds.values()):
        for kind in sorted(kinds):
            if kinds[kind] and len(taken) < count:
                mutant = kinds[kind].pop()
                if _fits(mutant):
                    taken.append(mutant)
    return taken


def _fits(mutant: Mutant) -> bool:
    try:
        mutant.source(ROOT)
    except SyntaxError:
        return False
    return True


class Copy:
    """A copy of the working tree, beside the same ``../shared``, in which tests are run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.rmtree(self.root, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        for link, place in (
            (folder / "shared", ROOT.parent / "shared"),
            (self.root / ".venv", ROOT / ".venv"),
        ):
            if place.exists() and not link.is_symlink():
                link.symlink_to(place.resolve())
        self.env = os.environ | {
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",  # a stale .pyc of the same second and size would hide a mutant
            "TRINITY_COMPAT_CORPUS_EVERY": "40",
        }

    def command_line(self) -> str:
        """The version that the command line tells, started outside the copy."""
        words = [sys.executable, "-m", "trinity_compat", "--version"]
        told = subprocess.run(words, cwd="/", env=self.env, capture_output=True, text=True, check=False)
        return told.stdout

    def tests_pass(self, tests: Sequence[str], limit_s: float | None, *options: str) -> bool:
        """Whether the tests pass, within ``limit_s``. Stops at the first failure."""
        named = self.root / ".tests"
        named.write_text("\n".join(tests), encoding="utf-8")
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", MARKS]
        words += [*options, f"@{named}"]
        with subprocess.Popen(
            words, cwd=self.root, env=self.env, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                return process.wait(limit_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:  # what a killed test has started, too
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def measure(self, package: str, data: Path) -> bool:
        """Whether the package's tests pass; which of them run which line goes to ``data``."""
        self.env["COVERAGE_FILE"] = str(data)
        of = f"--cov=trinity_compat/{package}"
        return self.tests_pass(PACKAGES[package][1], None, of, "--cov-context=test", "--cov-report=")

    def survives(self, file: str, source: str, tests: Sequence[str], limit_s: float) -> bool:
        """Whether the tests pass with ``source`` in the place of ``file``, which is put back after."""
        path = self.root / file
        original = path.read_bytes()
        path.write_text(source, encoding="utf-8")
        try:
            return self.tests_pass(tests, limit_s)
        finally:
            path.write_bytes(original)


def check_command_line(tree: Copy) -> None:
    """Raise SystemExit unless a command line that a test starts is the copy's."""
    path = tree.root / "trinity_compat" / "__init__.py"
    original = path.read_text(encoding="utf-8")
    path.write_text('"""The control."""\n\n__version__ = "0+mutated"\n', encoding="utf-8")
    told = tree.command_line()
    path.write_text(original, encoding="utf-8")
    if "0+mutated" not in told:
        raise SystemExit(f"the command line is not the copy's: {told!r}")


class Tests:
    """The tests of one package, and which of them run a line.

    Raises SystemExit unless they pass without a mutation, and fail on the control.
    """

    def __init__(self, tree: Copy, package: str, data: Path) -> None:
        module, self.all = PACKAGES[package]
        began = time.monotonic()
        if not tree.measure(package, data):
            raise SystemExit(f"{package}: its tests fail without a mutation: {' '.join(self.all)}")
        self.limit_s = max(AT_LEAST_S, SLOWER * (time.monotonic() - began))
        file = f"trinity_compat/{package}/{module}"
        if tree.survives(file, 'raise RuntimeError("the control")\n', self.all, self.limit_s):
            raise SystemExit(f"{package}: its tests pass though {file} raises: they don't see the copy")
        self._data = CoverageData(str(data))
        self._data.read()

    def running(self, file: Path, line: int) -> list[str]:
        """The ids of the tests that run ``line`` of ``file``; none where only an import does."""
        contexts = self._data.contexts_by_lineno(str(file)).get(line, [])
        return sorted({context.partition("|")[0] for context in contexts} - {""})


def run(mutants: list[Mutant], tree: Copy, out: Path) -> list[dict[str, object]]:
    """The results of ``mutants``, those that OUT has already taken from there."""
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    done = {_key(result): result for result in stored}
    results, tests = [], dict[str, Tests]()
    for mutant in mutants:
        result = done.get(_key(asdict(mutant)))
        if result is None or result["diff"] != mutant.diff(ROOT):
            if mutant.package not in tests:
                data = out.with_name(f"{mutant.package}.coverage")
                tests[mutant.package] = Tests(tree, mutant.package, data)
            result = examine(mutant, tree, tests[mutant.package])
            said = "survived" if result["survived"] else "killed"
            print(f"{said:8}  {mutant.file}:{mutant.line} {mutant.kind}", flush=True)
        results.append(result)
        done[_key(result)] = result
        out.write_text(json.dumps(list(done.values()), indent=1, ensure_ascii=False), encoding="utf-8")
    return results


def _key(result: dict[str, object]) -> tuple[object, ...]:
    return tuple(result[name] for name in ("file", "start", "end", "text"))


def examine(mutant: Mutant, tree: Copy, tests: Tests) -> dict[str, object]:
    began = time.monotonic()
    first = tests.running(tree.root / mutant.file, mutant.line)
    survived = all(
        tree.survives(mutant.file, mutant.source(ROOT), names, tests.limit_s)
        for names in (first, tests.all)
        if names
    )
    seconds = round(time.monotonic() - began, 1)
    more = {"diff": mutant.diff(ROOT), "survived": survived, "seconds": seconds, "equivalent": ""}
    return asdict(mutant) | more


def table(results: list[dict[str, object]]) -> str:
    """Markdown: mutants, killed and survivors by package, then each survivor."""
    lines = ["| package | mutants | killed | equivalent | survived |", "|---|---|---|---|---|"]
    for package in dict.fromkeys(result["package"] for result in results):
        lines.append(_row(str(package), [result for result in results if result["package"] == package]))
    lines.append(_row("all", results))
    for result in results:
        if result["survived"]:
            why = f" (equivalent: {result['equivalent']})" if result["equivalent"] else ""
            lines += ["", f"{result['file']}:{result['line']} {result['kind']}{why}", str(result["diff"])]
    return "\n".join(lines)


def _row(name: str, results: list[dict[str, object]]) -> str:
    equal = sum(bool(result["equivalent"]) for result in results)
    left = sum(bool(result["survived"]) and not result["equivalent"] for result in results)
    killed = len(results) - equal - left
    share = f" ({100 * killed / (killed + left):.0f} %)" if killed + left else ""
    return f"| {name} | {len(results)} | {killed}{share} | {equal} | {left} |"


def main() -> None:
    cli = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    cli.add_argument("--per-package", type=int, default=16, help="mutants of each package")
    cli.add_argument("--only", default=",".join(PACKAGES), help="packages, separated by commas")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--out", type=Path, default=ROOT / ".scratch" / "mutate")
    asked = cli.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    mutants = [m for name in asked.only.split(",") for m in sample(name, asked.per_package, asked.seed)]
    tree = Copy(asked.out.resolve())
    check_command_line(tree)
    print(table(run(mutants, tree, asked.out / "results.json")))


if __name__ == "__main__":
    main()
