"""Hooks of mkdocs.yml: the README is the home page, and links out of docs/ lead to the repository.

In the nav a folder (``decisions/``) stands for its pages. Findings and reference (``reference/``) are made
here, by make_reference.py, and are in no checkout. The page that translates in a browser (``docs/try``) is
part of the site where ``make web`` has built it. Links of pages are written for a checkout; a folder without
an index page and a file outside of docs/ are no pages of the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WEB = ROOT / ".scratch" / "web" / "site"
_LINK = re.compile(r"(?<!!)\[([^][]*)\]\((?!https?://|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def generated() -> Mapping[str, str]:
    """Return the generated pages; what makes them imports nothing that the site's environment lacks."""
    for folder in (ROOT, ROOT / "scripts" / "site"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    import make_reference

    return make_reference.pages()


def on_config(config: Any) -> Any:
    """Write out the folders of the nav."""
    config["nav"] = written_out(config["nav"])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the home page, the generated ones, and the built page in place of its sources."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](").replace("](../", "](")
    for name, page in {"index.md": text, **generated()}.items():
        files.append(File.generated(config, name, content=page))
    for source in [file for file in files if file.src_uri.startswith("try/")]:
        files.remove(source)
    for path in sorted(path for path in WEB.rglob("*") if path.is_file()):
        name = f"try/{path.relative_to(WEB).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links that are no pages of the site to the repository, or leave their text alone without one."""
    base = str(config["repo_url"] or "").rstrip("/")
    folder = (DOCS / page.file.src_uri).parent
    is_page = {each.src_uri for each in files}

    def changed(match: re.Match[str]) -> str:
        text, name, heading = match[1], match[2], match[3] or ""
        found = (place for place in ((folder / name).resolve(), (ROOT / name).resolve()) if place.exists())
        place = next(found, None)
        if place is None or not place.is_relative_to(ROOT):
            return match[0]  # mkdocs says that it leads nowhere
        inside = place.relative_to(DOCS).as_posix() if place.is_relative_to(DOCS) else ""
        if inside in is_page:
            return match[0]
        if inside and place.is_dir():
            return f"[{text}]({name.rstrip('/')}/{sorted(place.glob('*.md'))[0].name})"
        return f"[{text}]({base}/blob/main/{place.relative_to(ROOT).as_posix()}{heading})" if base else text

    return _LINK.sub(changed, markdown)


def written_out(entry: Any) -> Any:
    """Return a part of the nav with the pages of each folder in its place."""
    if isinstance(entry, dict):
        return {title: written_out(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [written_out(each) for each in entry]
    if isinstance(entry, str) and entry.endswith("/"):
        return [path.relative_to(DOCS).as_posix() for path in sorted((DOCS / entry).glob("*.md"))]
    return entry
