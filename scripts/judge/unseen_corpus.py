"""Check out the launch scripts of tests/facts/unseen.txt, and list them for scripts/judge/start_corpus.py.

    .venv/bin/python scripts/judge/unseen_corpus.py --mirror DIR --out FOLDER [--list tests/facts/unseen.txt]
    scripts/judge/start_corpus.py FOLDER/list.txt --device cuda --vllm $(scripts/ci/unpack_vllm.sh)

DIR holds clones as <owner>+<name>/repo, with the recorded commits. Text only is written, nothing of it runs.
Each script is read from the folder that its line names, which is the repository itself ("."), or a project in
it. A commit that DIR lacks is named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fork_compose_check import git_of, write_tree

LISTED = Path(__file__).resolve().parents[2] / "tests" / "facts" / "unseen.txt"


def entries(listed: Path) -> Iterator[tuple[str, str, str, str]]:
    """(repository, commit, folder, script below it) of every line that is not a comment."""
    for line in listed.read_text().splitlines():
        if line and not line.startswith("#"):
            repo, commit, folder, script = line.split(" ", 3)
            yield repo, commit, folder, script


def checked_out(repo: str, commit: str, mirror: Path, out: Path) -> Path | None:
    """The folder of the repository's text at the commit, None where the mirror lacks it."""
    tree = out / repo.replace("/", "+", 1)
    if not tree.exists():
        try:
            write_tree(git_of({"repo": repo}, mirror), commit, tree)
        except subprocess.CalledProcessError:
            return None
        (tree / ".git").mkdir(exist_ok=True)  # a clone has one: scripts ask git where it is
    return tree


def main() -> int:
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--mirror", type=Path, required=True)
    cli.add_argument("--out", type=Path, required=True)
    cli.add_argument("--list", type=Path, default=LISTED)
    options = cli.parse_args()
    lines, missing = [], set()
    for repo, commit, folder, script in entries(options.list):
        tree = checked_out(repo, commit, options.mirror, options.out)
        if tree is None:
            missing.add(f"{repo} {commit}")
        else:
            lines.append(f"{(tree / folder).resolve()} {script}\n")
    (options.out / "list.txt").write_text("".join(lines))
    print(f"{len(lines)} scripts listed in {options.out}/list.txt")
    for name in sorted(missing):
        print(f"not in {options.mirror}: {name}", file=sys.stderr)
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
