"""Measure the light tests: change the code a little, run its package's tests, count the surviving mutants.

    .venv/bin/python scripts/judge/mutate.py [--per-package 16] [--only translate,audit] [--out DIR]
    .venv/bin/python scripts/judge/mutate.py --changed BASE [--count 40] [--at-least 0.9]

Takes a seeded sample of mutants of each package below, or of the files that differ from the commit BASE,
every operator alike. They are tried one after the other in a copy of the working tree, which PYTHONPATH
names, so that a test that starts the command line gets the mutated code too. A warm process
(warm_pytest.py) forks for each. A mutant meets the tests that run its line, by a coverage of the
untouched copy, the quickest ones up to 12 s; where only imports run the line, those that run anything of
its file. With --rest, a mutant that these let live meets all others of its package: those, too, that run
its line in a process of their own.

The controls come first: the untouched copy passes, the command line is the copy's, and a module that
raises fails its package's tests. Results go to DIR/results.json after each mutant; a second call with the
same seed goes on where the first stopped. A person who finds that a survivor means the same as the code
writes why into its ``equivalent`` there, or into ``server`` where only a test with a server, an engine or
a whole job can kill it; the table counts those apart.
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
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
# Modules that take long to import, for each kind of test.
LIGHT = (
    "hypothesis",
    "_hypothesis_pytestplugin",
    "xdist.plugin",
    "pytest_cov.plugin",
    "hydra",
    "omegaconf",
    "rich",
)
WEB = ("sqlalchemy", "sqlalchemy.dialects.sqlite", "scipy.stats", "starlette.testclient", "uvicorn", "jinja2")
TORCH = ("torch", "transformers", "ray.util.state", "pandas", "datasets", "pyarrow.parquet")
VLLM = ("tensordict", "peft", "vllm.lora.request", "vllm.model_executor.layers.utils")
VERL = (*TORCH, "verl.protocol", "verl.trainer.main_ppo", "verl.trainer.ppo.ray_trainer")


@dataclass(frozen=True, slots=True)
class Package:
    """``control``: the module that the control breaks. ``tests``: those that should notice. ``warm``: modules
    to import beforehand."""

    control: str
    tests: tuple[str, ...]
    warm: tuple[str, ...] = LIGHT


PACKAGES = {
    "launch": Package("reading.py", ("tests/launch",)),
    "verl_config": Package("effective.py", ("tests/verl_config",)),
    "translate": Package(
        "translator.py",
        (
            "tests/translate",
            "tests/run/test_refusals.py",
            "tests/run/test_refusals_and_audit.py",
            "tests/run/test_teacher_plan.py",
        ),
    ),
    "trinity/config": Package("read.py", ("tests/trinity/config", "tests/run/test_stages.py")),
    "audit": Package("collect.py", ("tests/audit",)),
    "compare": Package("verdict.py", ("tests/compare",), (*LIGHT, *WEB)),
    "buffer": Package("store.py", ("tests/buffer",), (*LIGHT, *WEB)),
    "synchronizer": Package(
        "policy.py", ("tests/synchronizer", "tests/explorer/test_bench.py"), (*LIGHT, *WEB, *VERL)
    ),
    "trinity/algorithms": Package("grpo.py", ("tests/trinity/algorithms",), (*LIGHT, *VERL)),
    "trinity/pipelines": Package(
        "operators.py",
        ("tests/trinity/pipelines", "tests/explorer/test_pipelines.py"),
        (*LIGHT, *WEB, *TORCH),
    ),
    "trinity/workflows": Package("run_rows.py", ("tests/trinity/workflows",), (*LIGHT, *WEB, *VERL)),
    "explorer": Package("scheduling/loop.py", ("tests/explorer",), (*LIGHT, *WEB, *VERL)),
    "trainer": Package(
        "exchange.py",
        (
            "tests/trainer",
            "tests/trinity/algorithms/test_in_verl.py",
            "tests/trinity/algorithms/test_file_rows.py",
            "tests/explorer/test_explorer_rendezvous.py",
        ),
        (*LIGHT, *WEB, *VERL),
    ),
    # Not verl: it loads the plugins at its own import.
    "plugins": Package(
        "verl_entry.py",
        ("tests/plugins", "tests/upstream/test_plugin.py", "tests/explorer/test_load_results.py"),
        (*LIGHT, *TORCH, *VLLM),
    ),
    "run": Package(
        "plan/plan_run.py",
        (
            "tests/run",
            "tests/advise",
            "tests/trinity/workflows/test_workflow_plan.py",
            "tests/trinity/pipelines/test_pipeline_plan.py",
        ),
        (*LIGHT, *WEB, *VERL),
    ),
    "studio": Package("app.py", ("tests/studio",), (*LIGHT, *WEB)),
}
# A mutant with which a test, or all of them, run this much longer hangs, which is a failure.
SLOWER, TEST_S, ALL_S = 4, 15, 30
BUDGET_S = 12

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
    """Return True for texts and lists, where an operator other than + or % ends in a TypeError."""
    literal = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return literal or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


def _is_nothing(node: ast.expr) -> bool:
    """Return True for False, 0 and an empty text, from which None hardly differs for a caller."""
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


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of one file of the working tree."""
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = file.relative_to(ROOT)
    for node in mutable(ast.parse(source)):
        for kind, old, new in replacements(node):
            assert isinstance(old, ast.expr | ast.stmt) and old.end_lineno and old.end_col_offset
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            text = "pass" if new is None else f"({ast.unparse(new)})"
            yield Mutant(package_of(str(name)), str(name), old.lineno, kind, start, end, text)


def package_of(file: str) -> str:
    """The key of PACKAGES that ``file`` (from the repository's root) belongs to, else its first folder."""
    inside = file.removeprefix("trinity_compat/")
    return next((package for package in PACKAGES if inside.startswith(f"{package}/")), inside.split("/")[0])


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / "trinity_compat" / package).rglob("*.py"))


def changed_files(base: str) -> list[Path]:
    """The files of PACKAGES that differ from commit ``base``, deleted ones apart."""
    words = ["git", "diff", "--name-only", "--diff-filter=d", base, "--", "trinity_compat"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    return [ROOT / name for name in listed if name.endswith(".py") and package_of(name) in PACKAGES]


def sample(files: Iterable[Path], count: int, seed: str) -> list[Mutant]:
    """``count`` mutants, one of each kind in turn: strings and constants would crowd out the rest."""
    kinds: dict[str, list[Mutant]] = {}
    for file in files:
        for mutant in mutants_of(file):
            kinds.setdefault(mutant.kind, []).append(mutant)
    chance = random.Random(seed)
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

    def survives(self, file: str, source: str, tests: Tests, names: Sequence[str]) -> bool:
        """Return True if the tests ``names`` pass with ``source`` in ``file``; then restore the file."""
        path = self.root / file
        original = path.read_bytes()
        path.write_text(source, encoding="utf-8")
        try:
            return tests.pass_(names)
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
    """The tests of one package, and which of them run a line, in a warm process.

    Raises SystemExit unless they pass without a mutation, and fail on the control.
    """

    def __init__(self, tree: Copy, package: str, out: Path) -> None:
        about = PACKAGES[package]
        name = package.replace("/", "-")
        data, times = out / f"{name}.coverage", out / f"{name}.times.json"
        data.unlink(missing_ok=True)
        self._log, self.cpu_s = out / f"{name}.log", 0.0
        words = [sys.executable, str(Path(__file__).with_name("warm_pytest.py")), str(tree.root), *about.warm]
        self._warm = subprocess.Popen(
            words, env=tree.env | {"COVERAGE_FILE": str(data)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._answer()
        of = (f"--cov=trinity_compat/{package}", "--cov-context=test", "--cov-report=")
        if not self._run([*about.tests, *of], None, str(times)):
            raise SystemExit(f"{package}: its tests fail without a mutation, see {self._log}")
        self.seconds: dict[str, float] = json.loads(times.read_text(encoding="utf-8"))
        self._data = CoverageData(str(data))
        self._data.read()
        if not self._run(["--collect-only", *self.seconds], None):
            raise SystemExit(f"{package}: its tests cannot be named one by one, see {self._log}")
        file = f"trinity_compat/{package}/{about.control}"
        broken = 'raise RuntimeError("the control")\n'
        if tree.survives(file, broken, self, list(self.seconds)):
            raise SystemExit(f"{package}: its tests pass though {file} raises: they don't see the copy")

    def close(self) -> None:
        """End the warm process."""
        self._warm.communicate()

    def pass_(self, names: Sequence[str]) -> bool:
        """Run the tests up to the first failure; return True if all passed within their time limits."""
        seconds = [self.seconds[name] for name in names]
        a_test = TEST_S + SLOWER * max(seconds)
        return self._run([f"--timeout={a_test:.0f}", *names], ALL_S + SLOWER * sum(seconds))

    def _run(self, words: Sequence[str], limit_s: float | None, times: str = "") -> bool:
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        asked = {"words": [*options, *words], "limit_s": limit_s, "times": times, "log": str(self._log)}
        assert self._warm.stdin
        self._warm.stdin.write(json.dumps(asked) + "\n")
        self._warm.stdin.flush()
        answer = self._answer()
        self.cpu_s += answer["cpu_s"]
        return answer["code"] == 0

    def _answer(self) -> dict[str, Any]:
        assert self._warm.stdout
        line = self._warm.stdout.readline()
        if not line:
            raise SystemExit(f"the warm process ended with {self._warm.wait()}")
        return json.loads(line)

    def running(self, file: Path, line: int) -> list[str]:
        """The tests that run ``line`` of ``file``, the quickest up to BUDGET_S. Where only imports run it,
        those that run anything of the file."""
        lines = self._data.contexts_by_lineno(str(file))
        # In the middle of a statement no line is recorded but those before.
        near = max((known for known in lines if known <= line), default=0)
        found = self._named(lines.get(near, ())) or self._named(
            name for names in lines.values() for name in names
        )
        quickest = sorted(found, key=lambda name: (self.seconds[name], name))
        spent = accumulate(self.seconds[name] for name in quickest)
        chosen = [name for name, so_far in zip(quickest, spent, strict=True) if so_far <= BUDGET_S]
        # File by file, for the sake of what a file's tests share.
        order = list(dict.fromkeys(map(_file, chosen or quickest[:1])))
        return sorted(chosen or quickest[:1], key=lambda name: order.index(_file(name)))

    def _named(self, contexts: Iterable[str]) -> set[str]:
        return {context.partition("|")[0] for context in contexts} & set(self.seconds)


def _file(test: str) -> str:
    return test.partition("::")[0]


def run(mutants: list[Mutant], tree: Copy, out: Path, rest: bool) -> list[dict[str, object]]:
    """The results of ``mutants``, those that OUT has already taken from there."""
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    done = {_key(result): result for result in stored}
    results: list[dict[str, object]] = []
    tests: dict[str, Tests] = {}
    for mutant in mutants:
        result = done.get(_key(asdict(mutant)))
        if result is None or result["diff"] != mutant.diff(ROOT):
            if mutant.package not in tests:
                for former in tests.values():
                    former.close()
                tests = {mutant.package: Tests(tree, mutant.package, out.parent)}
            result = examine(mutant, tree, tests[mutant.package], rest)
            said = "survived" if result["survived"] else "killed"
            print(f"{said:8}  {result['seconds']:5} s  {mutant.file}:{mutant.line} {mutant.kind}", flush=True)
        results.append(result)
        done[_key(result)] = result
        out.write_text(json.dumps(list(done.values()), indent=1, ensure_ascii=False), encoding="utf-8")
    for last in tests.values():
        last.close()
    return results


def _key(result: dict[str, object]) -> tuple[object, ...]:
    return tuple(result[name] for name in ("file", "start", "end", "text"))


def examine(mutant: Mutant, tree: Copy, tests: Tests, rest: bool) -> dict[str, object]:
    began, used = time.monotonic(), tests.cpu_s
    first = tests.running(tree.root / mutant.file, mutant.line)
    others = [name for name in tests.seconds if rest and name not in set(first)]
    survived = all(
        tree.survives(mutant.file, mutant.source(ROOT), tests, names) for names in (first, others) if names
    )
    return asdict(mutant) | {
        "diff": mutant.diff(ROOT),
        "tests": len(first),
        "survived": survived,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_s": round(tests.cpu_s - used, 1),
        "equivalent": "",
        "server": "",
    }


def table(results: list[dict[str, object]]) -> str:
    """Markdown: mutants, killed and survivors by package, then each survivor."""
    lines = [
        "| package | mutants | killed | mean the same | need a server | survive |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for package in dict.fromkeys(result["package"] for result in results):
        lines.append(_row(str(package), [result for result in results if result["package"] == package]))
    lines.append(_row("all", results))
    for result in results:
        if result["survived"]:
            why = result["equivalent"] or result["server"]
            lines += ["", f"{result['file']}:{result['line']} {result['kind']} {why}", str(result["diff"])]
    return "\n".join(lines)


def _row(name: str, results: list[dict[str, object]]) -> str:
    equal = sum(bool(result["equivalent"]) for result in results)
    heavy = sum(bool(result["server"]) for result in results)
    killed = sum(not result["survived"] for result in results)
    left = len(results) - killed - equal - heavy
    return (
        f"| {name} | {len(results)} | {killed} ({100 * share(results):.0f} %) | {equal} | {heavy} | {left} |"
    )


def share(results: list[dict[str, object]]) -> float:
    """The part that is killed of the mutants that mean something else than the code."""
    differing = [result for result in results if not result["equivalent"]]
    return sum(not result["survived"] for result in differing) / (len(differing) or 1)


def main() -> None:
    cli = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    cli.add_argument("--per-package", type=int, default=16, help="mutants of each package")
    cli.add_argument("--only", default=",".join(PACKAGES), help="packages, separated by commas")
    cli.add_argument("--changed", metavar="BASE", help="instead: of the files that differ from this commit")
    cli.add_argument("--count", type=int, default=40, help="mutants of the changed files")
    cli.add_argument("--rest", action="store_true", help="try survivors with their package's other tests")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument(
        "--at-least", type=float, default=0.0, help="exit with 1 where a smaller share is killed"
    )
    cli.add_argument("--out", type=Path, default=ROOT / ".scratch" / "mutate")
    asked = cli.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.changed:
        mutants = sample(changed_files(asked.changed), asked.count, f"{asked.seed} changed")
        mutants.sort(key=lambda mutant: list(PACKAGES).index(mutant.package))
    else:
        names = asked.only.split(",")
        mutants = [
            m for name in names for m in sample(files_of(name), asked.per_package, f"{asked.seed} {name}")
        ]
    tree = Copy(asked.out.resolve())
    check_command_line(tree)
    results = run(mutants, tree, asked.out.resolve() / "results.json", asked.rest)
    print(table(results))
    if results and share(results) < asked.at_least:
        raise SystemExit(f"fewer than {100 * asked.at_least:.0f} % are killed")


if __name__ == "__main__":
    main()
