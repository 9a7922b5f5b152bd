"""What a command writes: whole files, links that stay, and devices and pipes that are never replaced.

Devices are nodes of our own: with unfixed code, run as root, ``-o /dev/null`` breaks the machine.
"""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.cli import cli
from trinity_compat.common.atomic_write import replacing, write_text
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run import debug

SCRIPT = Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh"
OUTPUTS = {"-o", "--output", "--output-file"}
LINUX_NULL = os.makedev(1, 3)


@pytest.fixture
def unlike(tmp_path):
    """A path that is no regular file: a null device, or a pipe where this user may not make devices."""
    path = tmp_path / "unlike"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, LINUX_NULL)
        os.close(os.open(path, os.O_WRONLY))  # a file system may not have devices at all
    except PermissionError:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        threading.Thread(target=drained, args=(path,), daemon=True).start()
    return path


def drained(path):
    """All that writers put into a pipe, until the last of them closes it."""
    return path.read_bytes()


def kind(path):
    return stat.S_IFMT(path.lstat().st_mode)


def files_of(folder):
    return sorted(path.name for path in folder.iterdir())


def written_to_pipe(path, write):
    """What ``write()`` puts into the pipe at ``path``."""
    found = []
    reader = threading.Thread(target=lambda: found.append(drained(path)), daemon=True)
    reader.start()
    write()
    reader.join(120)
    return found[0].decode()


def test_a_device_stays_a_device(unlike):
    before = kind(unlike)
    write_text(unlike, "x")
    assert kind(unlike) == before != stat.S_IFREG
    assert files_of(unlike.parent) == ["unlike"]


def test_a_pipe_gets_what_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert written_to_pipe(tmp_path / "pipe", lambda: write_text(tmp_path / "pipe", "hello")) == "hello"
    assert kind(tmp_path / "pipe") == stat.S_IFIFO


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/second")
    (tmp_path / "far" / "second").symlink_to("file")
    if there:
        (tmp_path / "far" / "file").write_text("old")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "second").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "new"
    assert files_of(tmp_path) == ["far", "link"] and files_of(tmp_path / "far") == ["file", "second"]


def test_a_link_to_a_device_leads_there(unlike):
    link = unlike.with_name("link")
    link.symlink_to("unlike")
    before = kind(unlike)
    write_text(link, "x")
    assert link.is_symlink() and kind(unlike) == before


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_text(tmp_path / "a", "x")
    assert files_of(tmp_path) == ["a", "b"]


def test_a_file_keeps_its_permissions_and_a_new_one_has_the_umask_s(tmp_path):
    old = tmp_path / "old"
    old.write_text("")
    old.chmod(0o640)
    umask = os.umask(0o027)
    try:
        write_text(old, "x")
        write_text(tmp_path / "new", "x")
        write_text(tmp_path / "private", "x", mode=0o600)
        write_text(old.with_name("again"), "x")
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"old": 0o640, "new": 0o640, "private": 0o600, "again": 0o640}
    write_text(old, "x", mode=0o600)
    assert stat.S_IMODE(old.stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root writes other users' files")
def test_another_user_s_file_stays_theirs(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("")
    os.chown(theirs, 1234, 1234)
    write_text(theirs, "x")
    assert (theirs.stat().st_uid, theirs.stat().st_gid) == (1234, 1234)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_what_was_there_and_nothing_beside_it(tmp_path, error):
    (tmp_path / "file").write_text("old")
    with pytest.raises(error), replacing(tmp_path / "file") as file:
        file.write(b"half")
        raise error
    assert (tmp_path / "file").read_text() == "old"
    assert files_of(tmp_path) == ["file"]


def test_nobody_sees_half_of_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with replacing(tmp_path / "file") as file:
        file.write(b"half")
        file.flush()
        assert (tmp_path / "file").read_text() == "old"
        (beside,) = set(files_of(tmp_path)) - {"file"}
        with replacing(tmp_path / "file") as other:  # two at once have a name each
            other.write(b"whole")
        assert (tmp_path / beside).read_text() == "half"
    assert (tmp_path / "file").read_text() == "half"


def test_the_longest_name_has_room_for_the_one_beside_it(tmp_path):
    path = tmp_path / ("é" * 127)
    write_text(path, "x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("name", ["/dev/fd/1", "/proc/self/fd/1", "stdout"])
@pytest.mark.parametrize("into", ["file", "pipe"])
def test_an_open_file_is_gone_on_with(tmp_path, name, into):
    """``{ echo before; translate -o /dev/stdout; echo after; } > all.txt`` loses nothing."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is, which unfixed code would replace
    code = (
        "import sys, pathlib; from trinity_compat.common.atomic_write import write_text\n"
        f"print('before'); write_text(pathlib.Path({name!r}), 'inside\\n'); print('after')"
    )
    out = (tmp_path / "all.txt").open("wb") if into == "file" else subprocess.PIPE
    with contextlib.nullcontext() if into == "pipe" else out:
        done = subprocess.run([sys.executable, "-c", code], stdout=out, cwd=tmp_path, check=True)
    told = (tmp_path / "all.txt").read_text() if into == "file" else done.stdout.decode()
    assert told == "before\ninside\nafter\n"


def test_a_file_that_another_process_has_open_is_written(tmp_path):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        write_text(Path(f"/proc/{cat.pid}/fd/0"), "hello")
        cat.stdin.close()
        assert cat.stdout.read() == b"hello"


def outputs(command=cli, path=()):
    """(words of a command, its option that names a file to write) for all commands."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from outputs(command.get_command(context, name), (*path, name))
        return
    for parameter in command.params:
        is_file = isinstance(parameter.type, click.Path) and parameter.type.file_okay
        if OUTPUTS & set(parameter.opts) and is_file:
            yield path, parameter.opts[0]


COMMANDS = dict(outputs())


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Command → words that make it write something."""
    for side in "ab":
        rows = [json.dumps({"step": step, "data": {"critic/score/mean": 0.5}}) for step in range(1, 9)]
        (tmp_path / f"{side}.jsonl").write_text("\n".join(rows))
    job = tmp_path / "job"
    (job / "config").mkdir(parents=True)
    url = f"sqlite:///{job}/experiences.db"
    open_buffer(url).close()
    RunSpec(str(job), url, {}, 1, None, SyncSpec()).save(job / "config" / "run.json")
    translated = tmp_path / "translated.yaml"
    cli(["translate", str(SCRIPT), "-o", str(translated)], standalone_mode=False)
    shown = SimpleNamespace(lines=lambda: ["shown"], record=lambda: {"answers": []})
    monkeypatch.setattr(debug, "run_task", lambda *told, **more: shown)
    return {
        ("advise",): [SCRIPT],
        ("audit",): [SCRIPT],
        ("buffer", "export"): [job],
        ("compare",): [tmp_path / "a.jsonl", tmp_path / "b.jsonl"],
        ("debug",): [job, "-m", "workflow"],
        ("diff",): [SCRIPT, SCRIPT],
        ("export",): [SCRIPT, "--to", "slurm"],
        ("rules", "init"): [SCRIPT],
        ("to-verl",): [translated],
        ("translate",): [SCRIPT, "--env", "TOY_DIR=/toy"],
    }


def test_every_command_with_an_output_is_here(words):
    assert words.keys() == COMMANDS.keys()


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_a_command_s_output(path, words, unlike, tmp_path):
    def call(output):
        return cli.main([*path, *map(str, words[path]), COMMANDS[path], str(output)], standalone_mode=False)

    before = kind(unlike)
    assert call(unlike) in (None, 0)
    assert kind(unlike) == before
    (tmp_path / "link").symlink_to("file")
    call(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    piped = written_to_pipe(tmp_path / "pipe", lambda: call(tmp_path / "pipe"))
    same = (tmp_path / "file").read_text() == piped
    assert same and (piped or path == ("buffer", "export"))  # the buffer is empty
    with pytest.raises(UserError, match="nowhere: cannot write: No such file"):
        call(tmp_path / "none" / "nowhere")


def test_a_dash_is_stdout(words, capfdbinary):
    cli.main(["translate", str(SCRIPT), "--env", "TOY_DIR=/toy", "-o", "-"], standalone_mode=False)
    assert b"checkpoint_root_dir:" in capfdbinary.readouterr().out
    assert not Path("-").exists()
