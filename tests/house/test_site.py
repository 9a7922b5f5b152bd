"""The site of the documentation: its nav has every page once, and links are those of a checkout."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import needs
import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "site"))
import site_hooks  # noqa: E402

DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """A loader of mkdocs.yml, whose tags name a function and a variable."""


Loader.add_multi_constructor("", lambda loader, suffix, node: suffix)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def pages(entry):
    if isinstance(entry, dict):
        entry = list(entry.values())
    return [entry] if isinstance(entry, str) else [page for each in entry for page in pages(each)]


def test_every_page_is_in_the_nav_once():
    listed = pages(site_hooks.written_out(SITE["nav"]))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    made = {"index.md", *site_hooks.generated()}
    assert len(listed) == len(set(listed)) and set(listed) == there | made and not there & made


def test_the_build_makes_the_generated_pages_with_the_site_s_packages_alone(tmp_path):
    """In an environment that has mkdocs and none of this package's requirements but PyYAML."""
    python = needs.made(".venv-docs", "hashes/docs.txt") / "bin" / "python"
    words = [python, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, text in site_hooks.generated().items():
        built = (tmp_path / "site" / name).with_suffix("") / "index.html"
        rows = re.findall(r"(?m)^(?:\| `?|## )([\w.]+)", text)
        assert len(rows) > 12 and all(row in built.read_text() for row in rows)


def test_the_site_has_the_four_parts_and_an_appendix():
    assert [name for each in SITE["nav"] for name in each] == [
        "Home",
        "Tutorial",
        "How-tos",
        "Reference",
        "Explanation",
        "Appendix",
    ]
    assert SITE["validation"]["links"]["not_found"] == "warn"  # an error of a strict build


def words(page):
    """Words of text and tables, with a letter each; code blocks and the targets of links are none."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page)
    text = re.sub(r"(?m)(^(?![-*] |\d+\. )\S.*\n)\n(?: {4,}.*\n+)+", r"\1\n", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    return sum(bool(re.search(r"[^\W\d_]", word)) for word in text.replace("|", " ").split())


def test_words_are_those_of_text_and_tables():
    page = "# One two\n\n| three | 4 |\n|---|---|\n\nfive:\n\n    no code\n    at all\n\n"
    assert words(f"{page}[six](no/where.md) seven\n") == 6
    assert words("```sh\nno\n```\n- one\n\n    two\n") == 2


def test_the_site_is_short_enough_to_be_read():
    """Tutorial, how-tos, explanation and the reference that people write have at most 45,000 words.

    Generated pages (findings.md, reference/) are for looking up, and decisions/ are only shortened. The
    appendix takes the figures of a measurement, while the result stays in a sentence, and the pages of
    contributors.
    """
    parts = [part for part in SITE["nav"] if "Appendix" not in part]
    names = [
        name for name in pages(parts) if not name.startswith(("findings.md", "reference/", "decisions/"))
    ]
    texts = {name: (ROOT / "README.md" if name == "index.md" else DOCS / name).read_text() for name in names}
    by_page = {name: words(text) for name, text in texts.items()}
    assert len(by_page) > 35
    assert sum(by_page.values()) <= 45_000, sorted(by_page.items(), key=lambda each: -each[1])[:10]


def test_every_page_of_measurements_is_in_their_index_with_a_date():
    folder = DOCS / "measurements"
    index = (folder / "index.md").read_text()
    pages = [path for path in folder.glob("*.md") if path.name != "index.md"]
    assert [path.name for path in pages if f"]({path.name})" not in index] == []
    undated = [path.name for path in pages if not re.search(r"\b20\d\d-\d\d-\d\d\b", path.read_text())]
    assert undated == []


@pytest.mark.parametrize(
    ("page", "written", "read"),
    [
        ("audit.md", "[a](compare.md#json)", "[a](compare.md#json)"),
        ("audit.md", "[a](../CONTRIBUTING.md#set-up)", "[a](R/blob/main/CONTRIBUTING.md#set-up)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](R/blob/main/CONTRIBUTING.md)"),
        ("index.md", "[a](decisions/)", "[a](decisions/a-stage-is-a-job.md)"),
        ("audit.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        (
            "audit.md",
            "[a](https://h.example/x) ![p](pictures/run.png)",
            "[a](https://h.example/x) ![p](pictures/run.png)",
        ),
    ],
)
def test_a_link_out_of_the_pages_leads_to_the_repository(page, written, read):
    files = [SimpleNamespace(src_uri=path.relative_to(DOCS).as_posix()) for path in DOCS.rglob("*.*")]
    here = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert site_hooks.on_page_markdown(written, here, {"repo_url": "R/"}, files) == read
    if "blob" in read:
        assert site_hooks.on_page_markdown(written, here, {"repo_url": ""}, files) == "a"


def test_the_site_s_packages_are_pinned():
    lines = (ROOT / "requirements/docs.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert any(line.startswith("mkdocs-material==") for line in lines)


def test_a_build_is_strict_and_not_quiet():
    """A quiet build doesn't count warnings, so that --strict never fails."""
    (words,) = re.findall(r"mkdocs build( .*)?$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert words.split() == ["--strict"]


@pytest.fixture
def tree(tmp_path):
    """A repository of a site with two releases, and a page that has been written since."""
    folder = tmp_path / "tree"
    (folder / "docs").mkdir(parents=True)
    (folder / "mkdocs.yml").write_text(
        "site_name: x\ntheme: {name: material, font: false}\nextra: {version: {provider: mike}}\n"
        "validation: {links: {not_found: warn}}\n"
    )
    git("init", "-q", at=folder)
    for text, tag in (("Ninth", "v0.9.0"), ("Tenth", "v0.10.0"), ("Newest", None)):
        (folder / "docs" / "index.md").write_text(f"# {text}\n")
        if tag:
            git("add", ".", at=folder)
            git("-c", "user.name=x", "-c", "user.email=x@x.example", "commit", "-qm", text, at=folder)
            git("tag", tag, at=folder)
    git("tag", "v1-of-something", at=folder)
    return folder


def git(*words, at):
    subprocess.run(["git", *words], cwd=at, check=True)


def built(tree, out, *words):
    python = needs.made(".venv-docs", "hashes/docs.txt") / "bin" / "python"
    command = [python, ROOT / "scripts" / "site" / "site_versions.py", out, "--tree", tree, *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_each_release_and_the_working_tree_have_a_folder_of_the_site(tree, tmp_path):
    out = tmp_path / "site"
    done = built(tree, out, "--tags")
    assert done.returncode == 0, done.stderr
    for name, title in (("0.9.0", "Ninth"), ("0.10.0", "Tenth"), ("dev", "Newest")):
        assert f'<h1 id="{title.lower()}">{title}</h1>' in (out / name / "index.html").read_text()
    listed = json.loads((out / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [
        ("dev", []),
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
    ]
    assert 'url=0.10.0/"' in (out / "index.html").read_text()


def test_a_named_version_stands_beside_the_others_and_is_strict(tree, tmp_path):
    out = tmp_path / "site"
    assert built(tree, out, "--name", "0.11.0").returncode == 0
    assert built(tree, out).returncode == 0
    assert [each["version"] for each in json.loads((out / "versions.json").read_text())] == ["dev", "0.11.0"]
    (tree / "docs" / "index.md").write_text("[x](gone.md)")
    done = built(tree, out)
    assert done.returncode and "gone.md" in done.stderr
    assert built(tree, out, "--name", "../up").returncode == 2


def test_the_site_s_list_of_versions_is_the_one_that_is_written():
    assert SITE["extra"]["version"]["provider"] == "mike"
    text = (ROOT / ".github/workflows/docs.yml").read_text()
    assert "scripts/site/site_versions.py .scratch/site --tags" in text and "fetch-depth: 0" in text
