"""Build the site with a folder for each version: ``site_versions.py OUT [--tags] [--name NAME]``.

OUT/NAME is the site of the working tree (``dev`` where --name is not given). With --tags each tag vX.Y.Z
of the repository has its own at OUT/X.Y.Z, built from that tag's pages. OUT/versions.json is what
mkdocs-material's list of versions reads; OUT/index.html leads to the newest release, or to NAME.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_INDEX = """<!doctype html>
<meta charset="utf-8">
<title>trinity-compat</title>
<meta http-equiv="refresh" content="0; url={name}/">
<a href="{name}/">trinity-compat {name}</a>
"""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="dev", help="the name of the working tree's site")
    parser.add_argument("--tags", action="store_true", help="build the site of each release, too")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another working tree")
    asked = parser.parse_args(words)
    out, tree = asked.out.resolve(), asked.tree.resolve()
    if not re.fullmatch(r"[\w][\w.-]*", asked.name):
        parser.error(f"--name {asked.name}: letters, digits, '.', '-' and '_' make a folder's name")
    build(tree, out / asked.name)
    for tag in releases(tree) if asked.tags else []:
        with tempfile.TemporaryDirectory(prefix="tc-site-") as name:
            _check_out(tree, tag, Path(name))
            build(Path(name), out / tag[1:])
    write_list(out)
    return 0


def build(tree: Path, out: Path) -> None:
    """Build one site; a warning is an error, as of a link that leads nowhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    subprocess.run(command, cwd=tree, check=True)


def releases(tree: Path) -> list[str]:
    """Return the tags of releases, the newest first."""
    listed = subprocess.run(["git", "tag"], cwd=tree, capture_output=True, text=True, check=True).stdout
    return sorted(filter(_RELEASE.fullmatch, listed.split()), key=_numbers, reverse=True)


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)))


def _check_out(tree: Path, tag: str, folder: Path) -> None:
    archive = subprocess.run(["git", "archive", tag], cwd=tree, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)


def write_list(out: Path) -> None:
    """Write OUT/versions.json, the working tree before the releases, and OUT/index.html."""
    names = sorted(path.parent.name for path in out.glob("*/index.html"))
    numbered = sorted((name for name in names if _RELEASE.fullmatch(f"v{name}")), key=_numbers, reverse=True)
    ordered = [*(name for name in names if name not in numbered), *numbered]
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if numbered[:1] == [name] else []}
        for name in ordered
    ]
    (out / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (out / "index.html").write_text(_INDEX.format(name=(numbered or ordered)[0]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
