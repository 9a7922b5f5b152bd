"""Check that a release can be made: ``release_check.py [--tag vX.Y.Z] [--out DIR] [--pythons 3.10 3.13 …]``.

The version stands in one place, with a tag also in CHANGELOG.md; the wheel and the sdist are built, and each
works alone in a fresh venv, the wheel in one of each other Python that is asked for and installed, too; the
commands that the README shows are its commands; links of the pages resolve. ``--out`` gets notes.md, too: the
part of CHANGELOG.md.
pip's own variables (PIP_NO_INDEX, PIP_FIND_LINKS) say where the light side's dependencies come from. Needs
only `build` and `hatchling`. Exit code 1 names everything that is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # hatchling brings it

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
# Words, the exit code: commands of the light side that read the example.
TRIED = (
    ("translate run.sh -o x.yaml", 0),
    ("audit run.sh", 0),
    ("diff run.sh x.yaml", 0),
    ("upgrade run.sh --check", 0),
    ("to-verl x.yaml", 0),
    ("explain data.train_batch_size", 0),
    ("run run.sh --dry-run --device cpu", 0),
    ("doctor", 1),
)


def pages() -> list[Path]:
    """Return every page of the documentation, also those that only the site has."""
    return [*sorted(ROOT.glob("*.md")), *sorted([*(ROOT / "docs").rglob("*.md"), *generated_pages()])]


def version() -> str:
    """Return the version, which only the package says."""
    text = (ROOT / "trinity_compat" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'(?m)^__version__ = "(.+)"$', text)
    return str(found)


def version_problems(tag: str | None) -> Iterator[str]:
    """Yield what is wrong with the version, and with a tag for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "version" in project or "version" not in project.get("dynamic", ()):
        yield "pyproject.toml: has a version of its own; it belongs into trinity_compat/__init__.py alone"
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version()):
        yield f"trinity_compat/__init__.py: {version()} is not a semantic version"
    if tag is None:
        return
    if tag != f"v{version()}":
        yield f"the tag {tag} is not v{version()}, which trinity_compat/__init__.py says"
    if not re.search(
        rf"(?m)^## \[?{re.escape(version())}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    ):
        yield f"CHANGELOG.md: no section {version()}"


def broken_links(page: Path) -> Iterator[str]:
    """Yield each link of a page to a file that is not there, or to a heading that a page lacks."""
    for link in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", _without_code(page)):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() and target not in generated_pages():
            yield f"{page.relative_to(ROOT)}: {link} does not exist"
        elif heading and target.suffix == ".md" and heading not in headings(target):
            yield f"{page.relative_to(ROOT)}: {link} names a heading that is not there"


@cache
def generated_pages() -> Mapping[Path, str]:
    """Return the site's pages that no checkout has."""
    sys.path += [str(ROOT), str(ROOT / "scripts" / "site")]
    import make_reference

    return {ROOT / "docs" / name: text for name, text in make_reference.pages().items()}


@cache
def headings(page: Path) -> frozenset[str]:
    """Return the anchors of a page, as GitHub makes them."""
    found: list[str] = []
    for title in re.findall(r"(?m)^#{1,6} +(.+?) *$", _without_code(page)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return frozenset(found)


def text_of(page: Path) -> str:
    """Return the text of a page, or of one that only the site has."""
    return page.read_text(encoding="utf-8") if page.exists() else generated_pages()[page]


def _without_code(page: Path) -> str:
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", text_of(page))


def shown_commands(page: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each command that a page shows, in a block or in backquotes, with its options."""
    text = text_of(page)
    lines = [
        *re.findall(r"(?m)^ {4,}(.*trinity-compat .*)$", text),
        *re.findall(r"`([^`\n]*trinity-compat [^`\n]*)`", text),
    ]
    for line in lines:
        for words in re.findall(r"trinity-compat ((?:[a-z][a-z-]*)(?: [^|;&#)]*)?)", line):
            command, *rest = words.split(" -- ")[0].split()
            yield command, tuple(word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word))


def command_problems(command: Path) -> Iterator[str]:
    """Yield each command and option of the README that the installed ``command`` does not have."""
    for name, options in sorted(set(shown_commands(ROOT / "README.md"))):
        done = subprocess.run([command, name, "--help"], capture_output=True, text=True)
        if done.returncode:
            yield f"README.md: there is no command {name}"
            continue
        for option in options:
            if not re.search(rf"(?m)(^|[\s,/]){re.escape(option)}\b", done.stdout):
                yield f"README.md: {name} has no option {option}"


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def installed(archive: Path, folder: Path, python: str = sys.executable) -> Path:
    """Install ``archive`` alone into a venv of its own; returns the command."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", archive], check=True
    )
    return folder / "bin" / "trinity-compat"


def trial_problems(command: Path, folder: Path) -> Iterator[str]:
    """Yield each command of the light side that does not do its work."""
    (folder / "run.sh").write_bytes(SCRIPT.read_bytes())
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["TOY_DIR"] = "/toy"
    told = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
    if version() not in told:
        yield f"--version says {told.strip()!r}, not {version()}"
    for words, code in TRIED:
        done = subprocess.run([command, *words.split()], cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode != code or "Traceback" in done.stderr:
            yield f"trinity-compat {words}: exit code {done.returncode}, not {code}\n{done.stderr[-2000:]}"


def other_python(version: str) -> str | None:
    """Return the program of a Python that works here, None where there is none (a shim of pyenv may not)."""
    for program in (f"python{version}", *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        if shutil.which(program) and not subprocess.run([program, "-c", ""], capture_output=True).returncode:
            return str(program)
    return None


def notes() -> str:
    """Return what CHANGELOG.md says of this version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"(?ms)^## \[?{re.escape(version())}\b.*?(?=^## |\Z)", text)
    return found[0] if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="the tag of the release, vX.Y.Z")
    parser.add_argument("--out", type=Path, help="where wheel, sdist and notes go")
    parser.add_argument(
        "--pythons", nargs="*", default=(), metavar="X.Y", help="others to try the wheel under"
    )
    asked = parser.parse_args()
    wrong = [*version_problems(asked.tag), *(problem for page in pages() for problem in broken_links(page))]
    with tempfile.TemporaryDirectory(prefix="tc-release-") as name:
        folder = Path(name)
        for archive in build(asked.out or folder / "dist"):
            place = folder / archive.suffix[1:]
            place.mkdir()
            command = installed(archive, place / "venv")
            wrong += [f"{archive.name}: {problem}" for problem in trial_problems(command, place)]
            if archive.suffix != ".whl":
                continue
            wrong += command_problems(command)
            for other in asked.pythons:
                if (python := other_python(other)) is None:
                    print(
                        f"Python {other} is not installed here: scripts/judge/try_python.py {other} tries it"
                    )
                    continue
                place = folder / other
                place.mkdir()
                command = installed(archive, place / "venv", python)
                wrong += [f"Python {other}: {problem}" for problem in trial_problems(command, place)]
                print(f"Python {other}: tried")
    if asked.out:
        (asked.out / "notes.md").write_text(notes(), encoding="utf-8")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"release {version()}: {f'{len(wrong)} problems' if wrong else 'ok'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
