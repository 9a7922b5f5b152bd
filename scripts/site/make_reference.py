"""Make the generated pages of the site, which are in no checkout: site_hooks.py asks for them.

python scripts/site/make_reference.py OUT: write them to the folder OUT, to be read or compared.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from reference_pages import fields_page, findings_page, ignored_page, mapping_page, reading_page

from trinity_compat.job.fingerprint_rules import page as voids_page
from trinity_compat.job.settings import page as settings_page
from trinity_compat.translate.rows import load_rows


def pages() -> Mapping[str, str]:
    """Return the pages by their names under docs/."""
    return {
        "findings.md": findings_page(),
        "reference/mapping.md": mapping_page(load_rows()),
        "reference/ignored.md": ignored_page(),
        "reference/trinity.md": fields_page(),
        "reference/settings.md": settings_page(),
        "reference/voids.md": voids_page(),
        "reference/reading.md": reading_page(),
    }


def main(out: Path) -> None:
    for name, text in pages().items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
