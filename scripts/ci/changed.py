"""Choose the parts of CI that a change can break: ``changed.py [--since COMMIT]`` prints them, one a line.

The light tests always run. Another part runs where a changed module belongs to the part's packages or is
imported by them, directly or not (import graph, grimp); other files run the parts of the table below; a file
that nothing here names runs all. The default for ``--since`` is the commit in ``.ci/landed``, the last one
that landed. Where there is none, or it is not an ancestor of HEAD, all run. On stderr: what is left out.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LANDED = ROOT / ".ci" / "landed"
PACKAGE = "trinity_compat"

PROCESSES = (
    "explorer",
    "trainer",
    "buffer",
    "synchronizer",
    "plugins",
    "trinity.workflows",
    "trinity.pipelines",
)
# Part → the packages that its tests are about: a change of one, or of what one imports, runs it.
ABOUT: Mapping[str, tuple[str, ...]] = {
    "runtime": PROCESSES,
    "postgres": ("buffer",),
    "browser": ("studio",),
    "upstream": ("translate", "trinity.workflows", "trinity.selectors", "plugins"),
    "whole": PROCESSES,
    "proof": PROCESSES,
    "starts": ("run",),
}
# Part → packages of which only a change of their own runs it. The command plans a job with all of the light
# side; what it plans is held by light tests, so what only planning imports runs no job.
ITSELF: Mapping[str, tuple[str, ...]] = {
    "runtime": ("run",),
    "postgres": ("studio",),  # its pages over both databases
    "whole": ("run", "cli", "__main__"),
    "proof": ("run", "cli", "__main__"),
    "starts": ("cli",),
}
ALL = frozenset(ABOUT)
ENGINES = frozenset({"runtime", "whole", "proof"})
# Other files: the first pattern that matches says which parts notice a change.
FILES: tuple[tuple[str, frozenset[str]], ...] = (
    (r"\.ci/landed$", frozenset()),
    (r"docs/howto\.md", ENGINES),  # tests/faults runs its snippets
    (
        r"docs/try/|web/|requirements/(pyodide/|debian-web)|scripts/site/(make_web|make_pyodide|build_web)",
        frozenset({"browser"}),
    ),
    (r"docs/|[^/]+\.md$|LICENSE$|\.github/|(action|mkdocs)\.yml$|docker/|\.dockerignore$", frozenset()),
    (r"\.pre-commit|requirements/(hashes/)?docs\.txt$", frozenset()),
    (r"translators/", frozenset({"upstream", "starts"})),
    (r"benchmarks/", frozenset({"runtime"})),
    (r"scripts/gpu/", frozenset({"proof"})),
    (
        r"scripts/(judge/(start_corpus|stock_verl|verl_clone|starts_sample|record_facts)|ci/unpack_\w+)\.",
        frozenset({"starts", "runtime", "upstream"}),
    ),
    (r"scripts/ci/(run_tests|changed|install_system|make_venv|make_upstream_venv)\.", ALL),
    (r"scripts/", frozenset()),
    (r"tests/facts/", frozenset({"starts"})),
    (r"tests/[^/]+$|tests/vision_site/", ALL),
)
MARK = re.compile(r"pytest\.mark\.(runtime|postgres|browser|upstream|whole)")


def parts_of(path: str) -> frozenset[str]:
    """Parts besides the light one that a change of ``path`` (from the repository's root) can break."""
    if path.startswith(f"{PACKAGE}/"):
        return parts_of_module(path)
    for pattern, parts in FILES:
        if re.match(pattern, path):
            return parts
    if re.match(r"tests/[^/]+/", path):  # the marks of its folder
        folder = ROOT.joinpath(*path.split("/")[:2])
        return frozenset(mark for file in folder.glob("*.py") for mark in MARK.findall(file.read_text()))
    return ALL


def parts_of_module(path: str) -> frozenset[str]:
    """The same for a file of the package.

    An ``__init__`` runs with every module beside it, and a file that is not a module (a template, a schema, a
    deleted module) may be anybody's there: both count as their whole package. Those of the root run all.
    """
    module = path.removesuffix(".py").replace("/", ".")
    whole_package = module not in graph().modules
    while module not in graph().modules:
        module = module.rpartition(".")[0]
    if module == PACKAGE:
        return ALL
    importers = graph().find_downstream_modules(module, as_package=whole_package)
    about = {part for part, packages in ABOUT.items() if any_of({module, *importers}, packages)}
    return frozenset(about | {part for part, packages in ITSELF.items() if any_of({module}, packages)})


def any_of(modules: Iterable[str], packages: Iterable[str]) -> bool:
    """Return whether a module is part of one of ``packages`` (without the root), or contains it."""
    roots = [f"{PACKAGE}.{package}" for package in packages]
    return any(f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in modules for b in roots)


@cache
def graph() -> Any:
    """Import graph of the package."""
    import grimp

    return grimp.build_graph(PACKAGE)


def changed_files(since: str) -> list[str]:
    """Paths that differ between ``since`` and the working tree; a renamed file under both names."""
    words = ["git", "diff", "--name-only", "--no-renames", since]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    more = ["git", "ls-files", "--others", "--exclude-standard"]
    return (
        told.split("\n")[:-1]
        + subprocess.run(more, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    )


def landed() -> str | None:
    """The commit in ``.ci/landed`` where it is an ancestor of HEAD, else None."""
    commit = LANDED.read_text().strip() if LANDED.exists() else ""
    if not re.fullmatch("[0-9a-f]{40}", commit):
        return None
    words = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return commit if subprocess.run(words, cwd=ROOT, capture_output=True).returncode == 0 else None


def chosen(paths: Iterable[str]) -> dict[str, str]:
    """Part → the first changed file that runs it."""
    found: dict[str, str] = {}
    for path in sorted(paths):
        for part in parts_of(path):
            found.setdefault(part, path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--since", metavar="COMMIT", default=landed())
    since = parser.parse_args().since
    if since is None:
        print("changed: no landed commit to compare with (.ci/landed): all parts run", file=sys.stderr)
        found = dict.fromkeys(ABOUT, "")
    else:
        paths = changed_files(since)
        found = chosen(paths)
        print(f"changed: {len(paths)} files since {since[:12]}", file=sys.stderr)
        for part in ABOUT:
            why = f"runs ({found[part]})" if part in found else "left out: no changed file is of its packages"
            print(f"changed: {part}: {why}", file=sys.stderr)
    print("\n".join(part for part in ("light", *ABOUT) if part == "light" or part in found))


if __name__ == "__main__":
    main()
