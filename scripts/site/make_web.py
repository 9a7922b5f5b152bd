"""Build the page that translates in a browser (docs/try), as files for any web server: .scratch/web/site.

It holds the package's wheel without the editor's script, Python as WebAssembly (pyodide,
requirements/pyodide), the wheels of requirements/light.txt that the commands import, the studio's scripts
and styles, and the shell parser.
``make web`` prepares what this script takes; --parser names the folder of the parser's files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jinja2

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from trinity_compat import __version__  # noqa: E402
from trinity_compat.cli._browser import answer  # noqa: E402
from trinity_compat.common.releases import VERL_RELEASES  # noqa: E402
from trinity_compat.studio.start_plan import MODES  # noqa: E402
from trinity_compat.studio.translate_page import keys_by_release  # noqa: E402
from trinity_compat.trinity.config import TARGETS  # noqa: E402

SOURCES = ROOT / "docs" / "try"
STUDIO = ROOT / "trinity_compat" / "studio"
ASSETS = ROOT / "trinity_compat" / "web" / "assets"
WHEELS, PYODIDE = ROOT / ".wheels", ROOT / ".pyodide"
PARSER, OUT = ROOT / ".scratch" / "web" / "parser", ROOT / ".scratch" / "web" / "site"
LARGEST = 12_100_000  # bytes of all files
OWN = ("page.css", "page.js", "share.js", "translator.js", "worker.js", "zip.js")
EDITOR = ("codemirror.iife.min.js", "codemirror.LICENSE")
SHARED = {
    STUDIO / "static": (
        "editors.js",
        "icon.svg",
        "style.css",
        "theme.js",
        "translate.js",
        "translate_tabs.js",
    ),
    ASSETS: ("base.css",),
    ASSETS / "vendor": EDITOR,
}
PYTHON = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
SHELL_PARSER = ("parser.js", "parser.wasm", "parser.LICENSE", "wasm_exec.js")
# Of requirements/light.txt, what the page's commands import; tests/web starts them without the others.
PACKAGES = ("antlr4_python3_runtime", "click", "hydra_core", "omegaconf", "packaging", "pyyaml", "rich")


def main() -> None:
    """Build the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--parser", type=Path, default=PARSER)
    given = parser.parse_args()
    missing = [str(path) for path in (WHEELS, PYODIDE, given.parser) if not path.is_dir()]
    if missing:
        raise SystemExit(f"not there: {', '.join(missing)}; `make web` makes them")
    build(given.out, given.parser)
    files = {path.relative_to(given.out).as_posix(): path.stat().st_size for path in files_of(given.out)}
    total = sum(files.values())
    print(f"{given.out}: {len(files)} files, {total / 1e6:.2f} MB")
    if total > LARGEST:
        raise SystemExit(f"more than {LARGEST / 1e6:.1f} MB: {files}")


def build(out: Path, parser: Path) -> None:
    """Replace the folder by one with the page's files."""
    with tempfile.TemporaryDirectory(dir=_made(out.parent)) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for place, names in {SOURCES: OWN, **SHARED}.items():
            for each in names:
                shutil.copyfile(place / each, folder / each)
        shutil.copytree(SOURCES / "examples", folder / "examples")
        (folder / "index.html").write_text(_page(), encoding="utf-8")
        (folder / "keys.json").write_text(json.dumps(keys_by_release()))
        (folder / "first.json").write_text(json.dumps(_first_example()))
        _add_python(_made(folder / "pyodide"))
        for each in SHELL_PARSER:
            _add(parser / each, _made(folder / "parser"))
        _add_wheels(_made(folder / "wheels"))
        _add_service_worker(folder)
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(folder, out)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a built page."""
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _page() -> str:
    loader = jinja2.FileSystemLoader([SOURCES, STUDIO / "templates"])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    examples = json.loads((SOURCES / "examples.json").read_text(encoding="utf-8"))
    values = {"releases": VERL_RELEASES, "targets": TARGETS, "modes": MODES, "version": __version__}
    return environment.get_template("index.html").render(examples=examples, **values) + "\n"


def _first_example() -> dict[str, object]:
    """Return the first example with its translation, which the page shows when it opens."""
    name = json.loads((SOURCES / "examples.json").read_text(encoding="utf-8"))[0]["name"]
    text = (SOURCES / "examples" / name).read_text(encoding="utf-8")
    translated = json.loads(answer(json.dumps({"kind": "translate", "name": name, "text": text})))
    return {"name": name, "text": text, "answers": {"translate": translated}}


def _add(path: Path, folder: Path) -> None:
    """Copy a file; a .wasm compressed, so that it is as small from a server that compresses nothing."""
    if path.suffix == ".wasm":
        packed = gzip.compress(path.read_bytes(), 9, mtime=0)
        (folder / f"{path.name}.bin").write_bytes(packed)
    else:
        shutil.copyfile(path, folder / path.name)


def _add_python(folder: Path) -> None:
    package = PYODIDE / "node_modules" / "pyodide"
    for each in PYTHON:
        _add(package / each, folder)
    lock = json.loads((package / "pyodide-lock.json").read_text(encoding="utf-8"))
    # The packages of its distribution lie on another host: none is used.
    (folder / "pyodide-lock.json").write_text(json.dumps({"info": lock["info"], "packages": {}}) + "\n")


def _add_wheels(folder: Path) -> None:
    """Add our wheel without the editor's script, and a zip of the others without what only CPython loads."""
    with tempfile.TemporaryDirectory() as built:
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "--wheel-dir", built, ROOT], check=True)
        (own,) = Path(built).glob("*.whl")
        with zipfile.ZipFile(folder / own.name, "w") as packed:
            _add_parts(own, packed, but=EDITOR)
    with zipfile.ZipFile(folder / "packages.zip", "w") as packed:
        for name in PACKAGES:
            (wheel,) = WHEELS.glob(f"{name}-*.whl")
            _add_parts(wheel, packed, but=(".so", "/RECORD"))
    (folder.parent / "wheels.json").write_text(json.dumps([own.name, "packages.zip"]) + "\n")


def _add_parts(wheel: Path, packed: zipfile.ZipFile, but: tuple[str, ...]) -> None:
    with zipfile.ZipFile(wheel) as parts:
        for info in parts.infolist():
            if not info.is_dir() and not info.filename.endswith(but):
                packed.writestr(zipfile.ZipInfo(info.filename), parts.read(info), zipfile.ZIP_DEFLATED, 9)


def _add_service_worker(folder: Path) -> None:
    """Write sw.js with the names of all files, and a version that is a digest of their content."""
    digest = hashlib.sha256()
    names = []
    for path in files_of(folder):
        names.append(path.relative_to(folder).as_posix())
        digest.update(f"{names[-1]}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    head = f"const VERSION = {json.dumps(digest.hexdigest()[:16])};\nconst FILES = {json.dumps(names)};\n"
    strict, rest = (SOURCES / "sw.js").read_text(encoding="utf-8").split("\n", 1)
    (folder / "sw.js").write_text(f"{strict}\n{head}{rest}", encoding="utf-8")


if __name__ == "__main__":
    main()
