"""The documents: whole, their links lead somewhere, the commands they show exist."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trinity_compat.cli import cli

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "ci"))
import release_check  # noqa: E402

PACKAGE = ROOT / "trinity_compat"
PAGES = release_check.pages()


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_half_of_a_merge_is_left_in_any_file():
    marker = re.compile(rb"^(<{7} |>{7} |={7}$)", re.MULTILINE)
    assert [str(path) for path in tracked() if marker.search(path.read_bytes())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_here(page):
    assert list(release_check.broken_links(page)) == []


def test_a_link_to_a_file_or_a_heading_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A `title`: [linked](x.md)\n## Twice\n## Twice\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    for link in ("other.md#a-title-linked", "other.md#twice-1", "https://gone.example/x", "#here"):
        page.write_text(f"## Here\n[text]({link})")
        assert list(release_check.broken_links(page)) == []
    monkeypatch.setattr(
        release_check, "generated_pages", lambda: {tmp_path / "docs/reference/x.md": "# Made"}
    )
    page.write_text("## Here\n[text](docs/reference/x.md#made)")
    assert list(release_check.broken_links(page)) == []
    for link in (
        "docs/reference/y.md",
        "docs/reference/x.md#gone",
        "gone.md",
        "other.md#code",
        "other.md#twice-2",
        "#there",
    ):
        page.write_text(f"## Here\n[text]({link})")
        (told,) = release_check.broken_links(page)
        assert told.startswith(f"page.md: {link} ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_exist(page):
    shown = re.findall(r"(?m)^ +trinity-compat ([a-z-]+)", release_check.text_of(page))
    assert set(shown) <= set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_of_the_project_that_are_named_exist(page):
    """`trinity_compat/…`, `scripts/…` and the like in backquotes; a placeholder or a glob is left alone."""
    folders = "trinity_compat|translators|overrides|tests|scripts|benchmarks|requirements"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", release_check.text_of(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_paths_of_the_package_that_the_recipes_name_exist():
    """Without the package's folder, as a recipe names them: `compare/sources/__init__.py`."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = [name for name in re.findall(r"`([a-z_]+/[\w./-]+)`", page) if "NAME" not in name]
    assert len(named) > 30
    assert [name for name in named if not any((top / name).exists() for top in (ROOT, PACKAGE))] == []


def test_the_diagrams_of_the_architecture_follow_the_code():
    command = [sys.executable, ROOT / "scripts" / "generate" / "make_architecture.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr} (scripts/generate/make_architecture.py writes it)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_of_the_commands_that_are_shown_exist(page):
    """Whole command lines of blocks and backquotes: an option that a page shows is one of its command."""
    missing = []
    for name, options in release_check.shown_commands(page):
        command = cli.get_command(click.Context(cli), name)
        if command is None or isinstance(command, click.Group):
            continue
        known = {opt for each in command.params for opt in (*each.opts, *each.secondary_opts)} | {
            "-h",
            "--help",
        }
        missing += [f"{name} {option}" for option in options if option not in known]
    assert missing == []


def test_the_readme_is_one_screen_and_shows_only_pictures_that_are_here():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 700 and text.count("\n") < 90
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert pictures and all((ROOT / name).is_file() for name in pictures)
