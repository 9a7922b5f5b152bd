"""The shell parser mvdan/sh: as the program shfmt, or compiled to WebAssembly in a web page.

``shfmt --to-json`` is the only process that reading starts, and it only parses. In a web page Python runs
under pyodide and starts no process. There the worker has defined ``trinityCompatParse(source: Uint8Array):
string`` before it starts Python (``web/parser/``). It answers JSON, ``{"tree": …}`` or ``{"error":
"LINE:COLUMN: MESSAGE"}``, with the same tree as shfmt; the page ends the worker at its limit of time.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trinity_compat.common import limits
from trinity_compat.common.errors import UserError
from trinity_compat.common.limits import Budget, BudgetExceeded

ERROR_PLACE = re.compile(r"(?:<standard input>:)?(\d+):(\d+): (.*)")
_TREE = '{"tree":'


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """Place and reason at which bash stops reading."""

    line: int
    message: str
    column: int = 1  # in bytes


def syntax_tree(source: bytes, budget: Budget) -> tuple[str, SyntaxProblem | None]:
    """Return the JSON of a script's tree, or '' and the syntax error. Raises BudgetExceeded."""
    with budget.parser():
        tree, error = _of_page(source) if sys.platform == "emscripten" else _of_shfmt(source)
    if not error:
        return tree, None
    match = ERROR_PLACE.search(error)
    if not match:
        raise BudgetExceeded("the parser gave up on this script")
    return "", SyntaxProblem(int(match[1]), match[3], int(match[2]))


def _of_page(source: bytes) -> tuple[str, str]:
    """Return the JSON of the tree and '', or '' and the error."""
    from js import trinityCompatParse
    from pyodide.ffi import to_js

    answer: str = trinityCompatParse(to_js(source))
    if answer.startswith(_TREE):
        return answer[len(_TREE) : -1], ""
    return "", json.loads(answer)["error"]


def _of_shfmt(source: bytes) -> tuple[str, str]:
    """Return the JSON of the tree and '', or '' and what shfmt says."""
    process = subprocess.Popen(
        [shfmt_path(), "--to-json", "-ln", "bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = _communicate(process, source)
    if process.returncode == 0:
        return output.decode(errors="surrogateescape"), ""
    return "", errors.decode(errors="replace") or "no answer"


@cache
def shfmt_path() -> str:
    """The parser's program: next to the interpreter, else on PATH."""
    import shutil  # here: it pulls in the compression libraries

    neighbour = Path(sys.executable).with_name("shfmt")
    found = str(neighbour) if neighbour.is_file() else shutil.which("shfmt")
    if not found:
        raise UserError("the shell parser shfmt is missing", hint="pip install shfmt-py")
    return found


def _communicate(process: subprocess.Popen[bytes], source: bytes) -> tuple[bytes, bytes]:
    """Feed the parser and read its answer, within limits on time and size.

    shfmt takes all of its input before it answers. A tree grows with the square of the nesting (it
    is indented), so no more than the limit is read.
    """
    assert process.stdin and process.stdout and process.stderr
    timer = threading.Timer(_wait_at_most(process), process.kill)
    with process:
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(source)
                process.stdin.close()
            output = process.stdout.read(limits.TREE + 1)
            if len(output) > limits.TREE:
                raise BudgetExceeded("a syntax tree that is too large")
            errors = process.stderr.read(4096)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    return output, errors


def _wait_at_most(process: subprocess.Popen[bytes]) -> float:
    """Seconds.

    Where the system can bound the process's own time, waiting may take longer than that: a busy machine
    doesn't change a reading.
    """
    try:
        from resource import RLIMIT_CPU, prlimit
    except ImportError:  # only Linux has prlimit
        return limits.PARSER_SECONDS
    limit = math.ceil(limits.PARSER_SECONDS)  # the system counts whole seconds
    with contextlib.suppress(OSError):  # it has ended already
        prlimit(process.pid, RLIMIT_CPU, (limit, limit))
    return limits.PARSER_WAIT
