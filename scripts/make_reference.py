"""Make the generated pages: docs/findings.md is committed, docs/reference/ is made by each build of the site.

python scripts/make_reference.py [OUT]: write docs/findings.md; with OUT also reference/ there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from reference_pages import fields_page, findings_page, ignored_page, mapping_page, reading_page

from trinity_compat.job.fingerprint_rules import page as voids_page
from trinity_compat.job.settings import page as settings_page
from trinity_compat.translate.rows import load_rows

FINDINGS = Path(__file__).resolve().parents[1] / "docs" / "findings.md"


def reference() -> Mapping[str, str]:
    """Return the pages that only the site has, by their name under docs/."""
    return {
        "reference/mapping.md": mapping_page(load_rows()),
        "reference/ignored.md": ignored_page(),
        "reference/trinity.md": fields_page(),
        "reference/settings.md": settings_page(),
        "reference/voids.md": voids_page(),
        "reference/reading.md": reading_page(),
    }


def main(out: Path | None = None) -> None:
    pages = {FINDINGS: findings_page()}
    if out is not None:
        pages |= {out / name: text for name, text in reference().items()}
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
