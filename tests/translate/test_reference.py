"""The generated pages are current."""

from pathlib import Path

from trinity_compat.translate.reference import code_pages, ignored_page, mapping_page, reading_page
from trinity_compat.translate.rows import load_rows

DOCS = Path(__file__).parents[2] / "docs"


def test_mapping_page_is_current():
    assert (DOCS / "reference" / "mapping.md").read_text() == mapping_page(load_rows())


def test_code_pages_are_current():
    pages = code_pages(load_rows())
    assert {path.name: path.read_text() for path in (DOCS / "findings").glob("*.md")} == pages


def test_page_of_ignored_keys_is_current():
    assert (DOCS / "reference" / "ignored.md").read_text() == ignored_page()


def test_page_of_the_codes_of_reading_is_current():
    page = (DOCS / "reference" / "reading.md").read_text()
    assert page == reading_page() and "| TP201 | the release has no such key" in page
