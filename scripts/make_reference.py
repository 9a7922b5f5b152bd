"""Write docs/reference/ and docs/findings/ from the rows, and the tables of fields, settings and codes.

python scripts/make_reference.py
"""

from __future__ import annotations

from pathlib import Path

from trinity_compat.job.fingerprint_rules import page as voids_page
from trinity_compat.job.settings import page as settings_page
from trinity_compat.translate.reference import code_pages, ignored_page, mapping_page, reading_page
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
    pages[DOCS / "reference" / "voids.md"] = voids_page()
    pages[DOCS / "reference" / "reading.md"] = reading_page()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
