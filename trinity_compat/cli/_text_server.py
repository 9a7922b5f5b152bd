"""Server over a web page's texts, which others may have written: it forks for each command, within limits.

The studio starts it (``studio/text_server.py``) and sends a socket for each request. A fork of the server,
which has imported everything already, reads the request from it, writes the texts to a folder of the
request's own, and answers. There the command line runs as a user would run it, or a function of the page
Configure (``translate/form/answers.py``), in a fork for each. The kernel ends these forks at their limits, so
that a hostile text costs no more than them, and changes nothing for another request.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trinity_compat.cli import main
from trinity_compat.common.process_limits import ProcessLimits, limit_memory, signal_group
from trinity_compat.common.python_command import working_directory
from trinity_compat.translate.form import defaults
from trinity_compat.translate.form.answers import ARGUMENTS, FUNCTIONS, answered

LIGHT = ("translate", "audit", "parse", "upgrade", "diff", "to-verl", "advise")
SECONDS = 10  # of processor time, for a command
SECONDS_OF = {"advise": 25}  # a simulation of thousands of answers
WALL_S = 300  # a machine that trains gives processor time slowly
MEMORY = 512 << 20  # bytes of data beyond those of the server
OUTPUT = 16 << 20  # bytes of a command's output
_MOST_OPEN = 1024  # files of a server
_MEMORY_CODE = 97  # of a fork without memory for its own message
_WARM = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8\n"
)


class _Ended(BaseException):
    """The studio asks the server to end."""


def serve(control: socket.socket) -> None:
    """Answer the requests whose sockets come by ``control``, each in a fork, until its end.

    A request is JSON up to the end of what the studio sends, an answer a line of JSON.
    """
    _warm()
    forks: set[int] = set()
    try:
        while (sent := socket.recv_fds(control, 1, 1))[0]:
            (descriptor,) = sent[1]
            with socket.socket(fileno=descriptor) as asked:
                forks = {fork for fork in forks if os.waitpid(fork, os.WNOHANG)[0] == 0}  # still at work
                if (fork := os.fork()) == 0:
                    control.close()
                    _answer(asked)
                forks.add(fork)
    finally:
        for fork in forks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork, signal.SIGTERM)
        for fork in forks:  # until it has removed its texts
            with contextlib.suppress(ChildProcessError):
                os.waitpid(fork, 0)


def _answer(asked: socket.socket) -> NoReturn:
    """Answer one request in this fork and end it."""
    code = 1
    try:
        asked.settimeout(WALL_S)
        with asked, asked.makefile("rwb") as stream:
            request = json.loads(stream.read())
            answer = _answered(request["files"], request["commands"])
            stream.write(json.dumps(answer).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def _warm() -> None:
    """Import and load what the commands need, so that each fork has it."""
    for name in LIGHT:
        importlib.import_module(f"trinity_compat.cli.{name.replace('-', '_')}")
    with tempfile.TemporaryDirectory() as folder, working_directory(folder):
        Path("run.sh").write_text(_WARM)
        names = ("translate", "audit", "parse", "upgrade", "advise")
        commands = [[name, "run.sh"] for name in names]
        with Path(os.devnull).open("w") as nowhere:
            for words in commands:
                with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                    _code_of(words)
    answered("files_of_form", [defaults()])
    answered("files_of_fields", [answered("fields_of_text", [_WARM])["texts"], _WARM])
    gc.freeze()


def _answered(files: Mapping[str, str], commands: Sequence[Sequence[str]]) -> list[dict[str, object]]:
    """Run each command of a request in a fork of its own, side by side; see ``_result``.

    ``files``: name → text. In place of a command there may be a function's name, as its only word: it prints
    its answer in JSON.
    """
    folder = Path(tempfile.mkdtemp(prefix="trinity-compat-"))
    forks: list[int] = []
    try:
        for name, text in files.items():
            (folder / "texts").mkdir(exist_ok=True)
            (folder / "texts" / name).write_bytes(text.encode(errors="surrogatepass"))
        for number, words in enumerate(commands):
            if (fork := os.fork()) == 0:
                _run(words, folder, number)
            forks.append(fork)
        codes = []
        for fork in forks:
            _, status = os.waitpid(fork, 0)
            signal_group(fork)  # the parser that a killed fork leaves
            codes.append(os.waitstatus_to_exitcode(status))
        ended = enumerate(zip(commands, codes, strict=True))
        return [_result(folder, number, words, code) for number, (words, code) in ended]
    except _Ended:
        for fork in forks:
            signal_group(fork)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _limits(words: Sequence[str]) -> ProcessLimits:
    return ProcessLimits(WALL_S, SECONDS_OF.get(words[0], SECONDS), file=OUTPUT)


def _result(folder: Path, number: int, words: Sequence[str], code: int) -> dict[str, object]:
    """Return a command's exit code and output; ``limit`` says which limit ended it, '' for none."""
    out, err = ((folder / f"{number}.{end}").read_bytes().decode(errors="replace") for end in ("out", "err"))
    limit = ""
    if code == _MEMORY_CODE:
        limit = f"it took more than {MEMORY >> 20} MiB of memory"
    elif code < 0:
        limit = _limits(words).broken_by(-code) or f"signal {-code}"
    return {"code": code, "out": out, "err": err, "limit": limit}


def _run(words: Sequence[str], folder: Path, number: int) -> NoReturn:
    """Run a command in this fork, within its limits, and end it."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder / "texts")
        names = (Path(os.devnull), folder / f"{number}.out", folder / f"{number}.err")
        for descriptor, name in enumerate(names):
            file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        os.closerange(3, _MOST_OPEN)  # the request's socket ends with the fork that answers
        for signum in (signal.SIGALRM, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, WALL_S)
        limit_memory(MEMORY)
        _limits(words).give(0)
        code = _code_of(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except MemoryError:
        code = _MEMORY_CODE
    except BaseException as error:
        os.write(2, f"error: {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _code_of(words: Sequence[str]) -> int:
    if words[0] in FUNCTIONS:
        print(json.dumps(answered(words[0], json.loads(Path(ARGUMENTS).read_text()))))
        return 0
    sys.argv = ["trinity-compat", *words]
    try:
        main(list(words))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _end(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut the end short
    raise _Ended


def serve_studio() -> None:
    """Answer the studio until it ends, or asks the server to: no fork and no text is left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the studio's
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(_Ended), socket.socket(fileno=os.dup(0)) as control:
        serve(control)


if __name__ == "__main__":
    serve_studio()
