"""Write docs/reference/ and docs/findings/ from the rows and the tables of fields and settings.

The table of docs/durability.md is written from the rules of the fingerprint.

python scripts/make_reference.py
"""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path

from trinity_compat.job.fingerprint_rules import table
from trinity_compat.job.settings import page as settings_page
from trinity_compat.translate.reference import code_pages, ignored_page, mapping_page
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.trinity_fields import fields_page

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    rows = load_rows()
    pages = {DOCS / "findings" / name: text for name, text in code_pages(rows).items()}
    pages[DOCS / "reference" / "mapping.md"] = mapping_page(rows)
    pages[DOCS / "reference" / "ignored.md"] = ignored_page()
    pages[DOCS / "reference" / "trinity.md"] = fields_page()
    pages[DOCS / "reference" / "settings.md"] = settings_page()
    pages[DOCS / "durability.md"] = _with_table((DOCS / "durability.md").read_text(encoding="utf-8"))
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _with_table(page: str) -> str:
    before, header, rest = page.partition("| setting | voids | why |\n")
    after = dropwhile(lambda line: line.startswith("|"), rest.splitlines(keepends=True))
    return f"{before}{table()}{''.join(after)}" if header else page


if __name__ == "__main__":
    main()
