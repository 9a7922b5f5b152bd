"""A database's URL: odd characters stay characters of the path, and bad URLs are told."""

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity_compat.buffer import open_buffer
from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError

ODD = [
    "a?b",
    "q?timeout=1",
    "100%",
    "a%41",
    "a%2Fb",
    "a#c",
    "a b",
    "a+b",
    "a&b=1",
    "ä",
    "a;b",
    "a'b\"c",
    "a\nb",
    "file:x",
]
PARTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))


@settings(deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=4))
def test_a_path_is_the_same_after_its_url_and_for_sqlalchemy(parts):
    path = Path("/", *parts)
    url = database_url.of_file(path)
    assert url == sa.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    assert database_url.file_of(url) == path
    assert sa.make_url(url).database == str(path)


@settings(deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3), st.lists(PARTS, min_size=1, max_size=3))
def test_inside_a_job_it_follows_the_job(root, inside):
    job, moved = Path("/", *root), Path("/elsewhere", *root)
    saved = database_url.relative(database_url.of_file(job.joinpath(*inside)), job)
    assert database_url.absolute(saved, moved) == database_url.of_file(moved.joinpath(*inside))


@pytest.mark.parametrize("url", ["sqlite:////other/x.db", "postgresql://u@h/db?connect_timeout=1"])
def test_elsewhere_it_stays_where_it_is(url):
    assert database_url.relative(url, Path("/job")) == url
    assert database_url.absolute(url, Path("/moved")) == url


@pytest.mark.parametrize("name", ODD)
def test_each_name_is_a_database_of_its_own(tmp_path, name):
    for number, folder in enumerate((name, "other")):
        file = tmp_path / folder / "experiences.db"
        buffer = open_buffer(database_url.of_file(file))
        buffer.set_state("mine", number)
        buffer.close()
        assert file.is_file()
    buffer = open_buffer(database_url.of_file(tmp_path / name / "experiences.db"), create=False)
    assert buffer.get_state("mine") == 0
    buffer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "other"])


@pytest.mark.parametrize(
    ("asked", "file"),
    [
        ("sqlite:///x.db", "CWD/x.db"),
        ("sqlite:///a/../x.db", "CWD/x.db"),
        ("sqlite:////tmp/100%.db", "/tmp/100%.db"),
        ("sqlite:///a%3Fb%2541.db", "CWD/a?b%41.db"),
        ("sqlite:///link/x.db", "CWD/real/x.db"),
    ],
)
def test_the_file_that_is_asked_for_is_the_same_from_every_folder(tmp_path, asked, file):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = database_url.file_of(database_url.asked_for(asked, tmp_path))
    assert str(found) == file.replace("CWD", str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("sqlite:///x.db?timeout=1", "takes no parameters"),
        ("sqlite:///x.db?", "takes no parameters"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///folder", "is a folder"),
        ("sqlite://", "no such kind"),
        ("sqlite+aiosqlite:///x.db", "no such kind"),
        ("x.db", "no such kind"),
        ("mysql://u:pw@h/db", r"mysql://u:\*\*\*@h/db: no such kind"),
        ("postgresqlx://h/db", "no such kind"),
    ],
)
def test_what_a_run_cannot_use_is_refused_with_what_to_write(tmp_path, asked, told):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=told) as caught:
        database_url.asked_for(asked, tmp_path)
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h:port/db",
        "postgresql://localhost/db?timeout=1",
        "postgresql://localhost/db?connect_timeout=1&connect_timeout=2",
        "sqlite+foo:///x",
        "sqlite:///x.db?timeout=1",
    ],
)
def test_a_url_with_a_bad_part_is_told_when_it_is_opened(url):
    with pytest.raises(UserError):
        open_buffer(url, retry_s=0.1)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        open_buffer(database_url.of_file(tmp_path / "file" / "x" / "experiences.db"))


def test_the_light_side_builds_urls_without_sqlalchemy():
    code = "import sys; import trinity_compat.common.database_url; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
