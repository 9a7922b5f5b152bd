"""Whose a path is: the rule by which the studio acts, or only shows."""

import grp
import json
import os
import pwd
import socket
from types import SimpleNamespace

import pytest
from studio_jobs import client_of, make_job

from trinity_compat.common import path_ownership
from trinity_compat.common.path_ownership import not_own, not_own_tree


@pytest.fixture
def place(tmp_path):
    (tmp_path / "above" / "folder").mkdir(parents=True)
    (tmp_path / "above" / "folder" / "file").write_text("")
    return tmp_path / "above" / "folder" / "file"


def test_what_only_the_user_can_write_is_the_user_s_own(place):
    assert not_own(place) == not_own(place.parent) == not_own_tree(place.parent) == ""


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o707])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_part_of_the_way_that_others_may_write_is_named(place, level, mode):
    part = [place, *place.parents][level]
    part.chmod(mode)
    assert not_own(place) == f"{part} can be written by other users (mode 0{mode:o})."


def test_a_sticky_folder_is_allowed_above_and_not_as_the_end(place):
    place.parent.chmod(0o1777)
    assert not_own(place) == ""
    assert "can be written by other users (mode 1777)" in not_own(place.parent)
    (place.parent / "below").mkdir()
    assert "can be written by other users (mode 1777)" in not_own(place.parent / "below" / "..")


def test_a_missing_path_is_named(place):
    assert "cannot be inspected: No such file" in not_own(place.parent / "nothing" / "more")
    assert "cannot be inspected: Not a directory" in not_own(place / "nothing")


def test_a_link_counts_with_all_that_it_leads_through(place, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("above/folder")
    assert not_own(link / "file") == ""
    place.parent.parent.chmod(0o777)
    assert not_own(link / "file").startswith(f"{place.parent.parent} can be written")
    place.parent.parent.chmod(0o755)
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "link").symlink_to(place)
    assert not_own(tmp_path / "open" / "link").startswith(f"{tmp_path / 'open'} can be written")


@pytest.mark.parametrize("target", ["..", "../folder", "/", "loop"])
def test_links_upwards_and_in_a_circle_end(place, target):
    link = place.parent / "loop"
    link.symlink_to(target)
    assert ("Too many levels" in not_own(link)) if target == "loop" else not_own(link, or_root=True) == ""


def test_the_end_of_a_link_is_judged_as_an_end(place, tmp_path):
    place.parent.chmod(0o1777)
    (tmp_path / "link").symlink_to(place.parent)
    (place.parent.parent / "other").mkdir()
    (place.parent.parent / "other" / "up").symlink_to("../folder/.")
    for path in (tmp_path / "link", place.parent.parent / "other" / "up"):
        assert f"{place.parent} can be written" in not_own(path)


def group_of(monkeypatch, *, gid=4242, name="me", members=(), others=()):
    """This user's primary group, as the machine's files say it."""
    me = SimpleNamespace(pw_name="me", pw_uid=os.geteuid(), pw_gid=4242)
    group = SimpleNamespace(gr_name=name, gr_mem=list(members), gr_gid=gid)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: [me, *others])
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)


@pytest.mark.parametrize(
    ("changed", "private"),
    [
        ({}, True),
        ({"members": ["me"]}, True),
        ({"members": ["bob"]}, False),
        ({"name": "users"}, False),
        ({"others": [SimpleNamespace(pw_uid=-1, pw_gid=4242)]}, False),
        ({"others": [SimpleNamespace(pw_uid=-1, pw_gid=100)]}, True),
    ],
)
def test_a_group_of_the_user_s_alone_may_write(monkeypatch, changed, private):
    group_of(monkeypatch, **changed)
    assert path_ownership._is_private(4242) is private
    assert path_ownership._is_private(4243) is False


def test_a_group_s_right_to_write_counts_unless_the_group_is_private(place, monkeypatch):
    place.chmod(0o664)
    monkeypatch.setattr(path_ownership, "_is_private", lambda gid: gid == place.stat().st_gid)
    assert not_own(place) == ""
    monkeypatch.setattr(path_ownership, "_is_private", lambda gid: False)
    assert "can be written by other users (mode 0664)" in not_own(place)


def test_an_access_control_list_may_give_others_the_group_s_right(place, monkeypatch):
    place.chmod(0o664)
    monkeypatch.setattr(path_ownership, "_is_private", lambda gid: True)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"")
    assert "can be written by other users" in not_own(place)


def test_one_file_of_a_folder_is_named(place):
    place.chmod(0o666)
    assert not_own_tree(place.parent.parent).startswith(f"{place} can be written")
    place.chmod(0o644)
    (place.parent / "link").symlink_to("/dev/null")  # a link's own mode says nothing, and it is not followed
    assert not_own_tree(place.parent.parent) == ""


@pytest.mark.parametrize("url", ["sqlite:///{other}/experiences.db", "sqlite:///{job}/../x.db", "{server}"])
def test_a_job_that_is_not_the_user_s_own_does_not_choose_a_database(tmp_path, url):
    """Its run.json could name any file of the user's, or a server to log in to."""
    job = make_job(tmp_path / "jobs" / "job")
    make_job(tmp_path / "other")
    path = job / "config" / "run.json"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        places = {"other": tmp_path / "other" / "buffer", "job": job}
        named = url.format(**places, server=f"postgresql://me@127.0.0.1:{port}/x")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"database_url": named}))
        job.chmod(0o777)
        page = client_of(tmp_path / "jobs").get("/run/job").text
        assert "its database lies outside the job and is not opened" in page
        assert f"{job} can be written by other users" in page
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_user_s_own_job_may_have_its_database_elsewhere(tmp_path):
    job = make_job(tmp_path / "jobs" / "job")
    (job / "buffer" / "experiences.db").rename(tmp_path / "elsewhere.db")
    path = job / "config" / "run.json"
    url = {"database_url": f"sqlite:///{tmp_path}/elsewhere.db"}
    path.write_text(json.dumps(json.loads(path.read_text()) | url))
    assert "1006" in client_of(tmp_path / "jobs").get("/run/job").text
