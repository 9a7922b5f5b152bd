"""Files that a launch makes its reader open: regular ones in folders that the user named, and no others."""

from __future__ import annotations

import os
import threading

import pytest

from trinity_compat.common import readable_files
from trinity_compat.common.errors import UserError
from trinity_compat.common.readable_files import also_reading, content, named_content
from trinity_compat.launch.script_files import files_of
from trinity_compat.translate.parquet import count_rows
from trinity_compat.translate.rows import rules_of
from trinity_compat.trinity.config.read import load
from trinity_compat.verl_config.config_folders import ConfigFolder

MOST = 1000


@pytest.fixture
def tree(tmp_path):
    """A folder to read in, with links that lead out of it, and one beside it."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / ".git", inside / "sub", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text(folder.name)
        (folder / "conf.yaml").write_text(f"a: {folder.name}\n")
    links = {
        "environ": "/proc/self/environ",
        "folder": outside,
        "file": outside / "file",
        "root": "/",
        "circle": "circle",
        "git": ".git",
        "near": "sub/file",
        "conf.yaml": outside / "conf.yaml",
        "run.sh": outside / "file",
    }
    for name, target in links.items():
        (inside / name).symlink_to(target)
    os.mkfifo(inside / "pipe")
    os.mkfifo(inside / "pipe.parquet")
    return inside


UNREAD = [
    *("environ", "folder/file", "file", "circle", "pipe", "sub", "root/proc/self/environ", "nothing", "a\0b"),
    *("/proc/self/environ", "//proc/self/environ", "/proc/self/cwd/sub/file", "/sys/kernel/uevent_seqnum"),
    *(
        "/dev/zero",
        "/dev/stdin",
        ".git/file",
        "git/file",
        "sub/../.git/file",
        "../out/file",
        "sub/../../out/file",
    ),
]


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_below_a_folder(tree, name):
    with pytest.raises(OSError, match=r"."):
        content(tree / name if not name.startswith("//") else name, [tree], MOST)


@pytest.mark.parametrize(
    "name", ["/proc/self/environ", "//proc/1/../self/environ", "/dev/zero", "/sys/kernel"]
)
def test_what_the_kernel_shows_is_read_below_no_folder(name):
    for roots in (["/"], ["/proc", "/dev", "/sys"], None):
        with pytest.raises(OSError, match=r"system's|regular"):
            content(name, roots, MOST)


def test_a_folder_of_the_kernels_that_is_mounted_elsewhere_is_known_by_its_device(monkeypatch):
    monkeypatch.setattr(readable_files, "real_path", lambda path, roots: path)  # as if it were such a place
    with pytest.raises(OSError, match="system's"):
        content(f"/proc/{os.getpid()}/environ", None, MOST)


def test_what_is_read(tree):
    assert content(tree / "near", [tree], MOST) == content(tree / "sub" / "file", [tree], MOST) == b"sub"
    assert content(tree / "folder" / "file", [tree, tree.parent / "out"], MOST) == b"out"
    with also_reading([str(tree.parent / "out")]):
        assert content(tree / "folder" / "file", [tree], MOST) == b"out"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        content(tree / "near", [tree], 2)


def test_a_path_that_changes_while_it_is_opened_leads_nowhere_else(tree):
    """The folder of a file is a link out of the root every other moment."""
    place, away, ended = tree / "turn", tree.parent / "out", threading.Event()
    place.mkdir()
    (place / "file").write_text("mine")

    def turn():
        while not ended.is_set():
            os.rename(place, tree / "kept")
            place.symlink_to(away)
            place.unlink()
            os.rename(tree / "kept", place)

    turner = threading.Thread(target=turn)
    turner.start()
    found = set()
    try:
        for _ in range(2000):
            try:
                found.add(content(place / "file", [tree], MOST))
            except OSError:
                found.add(b"")
    finally:
        ended.set()
        turner.join()
    assert found <= {b"", b"mine"}


def test_a_named_file_may_be_no_link_out_of_the_working_directory(tree, monkeypatch):
    monkeypatch.chdir(tree)
    with pytest.raises(UserError, match=r"leads to .*/out/file, which is not below") as refused:
        named_content("run.sh", MOST)
    assert str(tree.parent / "out" / "file") in str(refused.value.hint)
    with pytest.raises(UserError, match="not below"):
        list(files_of(["folder"]))
    assert named_content(tree.parent / "out" / "file", MOST) == b"out"  # as it is named there
    assert named_content("../out/file", MOST) == b"out"
    assert named_content("run.sh", MOST, cwd=tree.parent) == b"out"  # --cwd has both


def test_config_files_and_row_counts(tree):
    folder = ConfigFolder(tree, tree)
    assert folder.find("conf") is None and folder.find("folder/conf") is None
    with pytest.raises(UserError, match="belongs to git"):
        folder.find("git/conf")
    assert folder.find("sub/conf").config == {"a": "sub"}
    assert not folder.has_group("folder") and folder.has_group("sub")
    assert count_rows("pipe.parquet", str(tree)) is None  # and waits for nobody who writes


@pytest.mark.parametrize("name", ["pipe", "environ", "sub"])
def test_a_trinity_yaml_is_a_regular_file(tree, name):
    with pytest.raises(UserError, match=r"cannot read .*: (is not a regular|is the system's)"):
        load(tree / name)


def test_rules_include_what_lies_beside_them_alone(tree, monkeypatch):
    monkeypatch.chdir(tree)
    (tree.parent / "out" / "rules.yaml").write_text("description: theirs\n")
    for name in ("folder/rules.yaml", str(tree.parent / "out" / "rules.yaml"), "/proc/self/environ"):
        (tree / "mine.yaml").write_text(f"include: [{name}]\n")
        with pytest.raises(UserError, match=r"cannot read the rules: (leads to|is the system's)"):
            rules_of("mine.yaml")
