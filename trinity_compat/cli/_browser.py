"""The light commands for a web page: `answer` takes and returns JSON, and runs the command line as it is.

The page's worker starts Python (pyodide) with the light wheel and calls `answer` for each text. No process is
started and nothing is sent: the files lie in memory. Before Python starts, the worker has defined
``trinityCompatParse`` (``launch/bash/shell_parser.py``, ``docs/web.md``).

A request: ``kind`` (a command, see KINDS), ``text`` and its file's ``name``, ``options`` (see OPTIONS), and
``files``, path → text, for the configurations beside it. ``name`` and the paths are relative to one folder,
which is the current one: a script ``examples/run.sh`` of a pasted folder has that name.

An answer: ``command`` (the command line that prints the same bytes), ``code`` (its exit code), ``text``
(stdout), ``messages`` (lines of stderr), ``data`` (what ``text`` says where it is JSON, else null) and, for
``upgrade``, ``diff``. Where the command refuses, ``error`` has ``where`` ("run.sh:3", or ''), ``message`` and
``hint``, and ``text`` is empty.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import click

from trinity_compat.cli import cli
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.python_command import working_directory
from trinity_compat.common.redaction import without_passwords
from trinity_compat.common.suggestions import nearest

TEXT = 1 << 20  # characters of the text
FILES = 2000
FILES_TEXT = 16 << 20  # characters of all files

# kind → words after the command's name
KINDS: Mapping[str, tuple[str, ...]] = {
    "translate": (),
    "audit": ("--format=json",),
    "upgrade": (),
    "ignored": ("--format=json",),
    "advise": ("--json",),
    "parse": ("--format=json",),
    "diff": ("--format=json",),
    "to-verl": (),
}
_READING = {"env": "--env"}
_RELEASE = {"release": "--verl-version"}
_CONFIGURED = {"gpus": "--set=trainer.n_gpus_per_node", "mode": "--set=mode", "set": "--set"}
_TRANSLATED = {**_READING, **_RELEASE, **_CONFIGURED, "target": "--target", "rules": "--rules"}
# kind → a request's option → the command's; a list gives it once for each value, true gives it without one
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "translate": {
        **_TRANSLATED,
        "launch": "--launch",
        "rollout_gpus": "--rollout-gpus",
        "sync_offset": "--sync-offset",
        "minimal": "--minimal",
        "no_comments": "--no-comments",
        "as_published": "--as-published",
    },
    "audit": _TRANSLATED,
    "upgrade": {**_READING, **_RELEASE},
    "ignored": {**_READING, **_RELEASE},
    "advise": {
        **_RELEASE,
        "gpus": "--gpus",
        "mode": "--set=mode",
        "set": "--set",
        "rules": "--rules",
        "card": "--card",
        "model_size": "--model-size",
        "answer_length": "--answer-length",
        "prompt_length": "--prompt-length",
    },
    "parse": _READING,
    "diff": _READING,
    "to-verl": {},
}


def answer(request: str, folder: str = "") -> str:
    """Answer a request in JSON; ``folder`` is the absolute path at which the script finds itself.

    It is made for the request and removed after it. Without one, the system makes up a name.
    """
    try:
        asked = _checked(json.loads(request))
        with _laid(asked, folder):
            return json.dumps(_ran(asked))
    except UserError as error:
        return json.dumps({**_NOTHING, "error": _error(error)})


_NOTHING: Mapping[str, object] = {"command": "", "code": 2, "text": "", "messages": [], "data": None}


def _checked(request: Any) -> dict[str, Any]:
    """Return the request with what it leaves out. Raises UserError."""
    if not isinstance(request, dict):
        raise UserError("a request is an object with kind, name and text")
    asked = {"kind": "", "name": "run.sh", "text": "", "options": {}, "files": {}, **request}
    if asked["kind"] not in KINDS:
        raise UserError(f"kind {asked['kind']!r} is not known", hint=f"one of {', '.join(KINDS)}")
    for name in ("name", "text"):
        if not isinstance(asked[name], str):
            raise UserError(f"{name} is not a text")
    for name in ("options", "files"):
        if not isinstance(asked[name], dict):
            raise UserError(f"{name} is not an object")
    if len(asked["text"]) > TEXT:
        raise UserError(f"the text has more than {TEXT >> 20} MiB")
    files = asked["files"]
    if not all(isinstance(text, str) for text in files.values()):
        raise UserError("files has something other than texts")
    if len(files) > FILES or sum(map(len, files.values())) > FILES_TEXT:
        raise UserError(f"more than {FILES} files, or more than {FILES_TEXT >> 20} MiB of them")
    for path in (asked["name"], *files):
        parts = PurePosixPath(path).parts
        plain = path == "/".join(parts) and not path.startswith(("/", "-")) and "\\" not in path
        if not parts or not plain or ".." in parts or not path.isprintable() or len(path) > 400:
            raise UserError(
                f"{path[:80]!r} is not the path of a file in a folder", hint="a path such as examples/run.sh"
            )
    return asked


@contextlib.contextmanager
def _laid(asked: dict[str, Any], folder: str) -> Iterator[None]:
    """Lay the text and the files in the folder, which is the current one inside."""
    root = Path(folder or tempfile.mkdtemp(prefix="trinity-compat-"))
    try:
        root.mkdir(parents=True, exist_ok=not folder)
        for path, text in {**asked["files"], asked["name"]: asked["text"]}.items():
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(text.encode(errors="surrogatepass"))
            except OSError as error:
                raise UserError(f"{path[:80]!r}: {error.strerror}") from None
        with working_directory(str(root)):
            yield
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _ran(asked: dict[str, Any]) -> dict[str, Any]:
    """Run the command and return the answer. Raises UserError."""
    words = [asked["kind"], *_sources(asked), *_option_words(asked), *KINDS[asked["kind"]]]
    printed, told = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(printed, "utf-8", write_through=True)
    err = io.TextIOWrapper(told, "utf-8", write_through=True)
    before, sys.argv = sys.argv, ["trinity-compat", *words]  # translate names them in its YAML
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code, error = _code_of(words)
    finally:
        sys.argv = before
    text, data = printed.getvalue().decode(), None
    if KINDS[asked["kind"]] and not error:
        with contextlib.suppress(ValueError):
            data = json.loads(text)
    found = {
        "command": shlex.join(["trinity-compat", *words]),
        "code": code,
        "text": "" if error else text,
        "messages": [line for line in told.getvalue().decode().splitlines() if line.strip()],
        "data": data,
    }
    if error:
        found["error"] = error
    elif asked["kind"] == "upgrade":
        found["diff"] = _diff(asked["name"], asked["text"], text)
    return found


def _sources(asked: dict[str, Any]) -> Iterator[str]:
    """Yield the names of what the command reads; ``diff`` has a first one, a file or ``verl==RELEASE``."""
    if asked["kind"] == "diff":
        against = asked["options"].get("against", "")
        if not isinstance(against, str) or (against not in asked["files"] and against[:6] != "verl=="):
            raise UserError("diff: option against names no file of the request and no release")
        yield against
    yield asked["name"]


def _option_words(asked: dict[str, Any]) -> Iterator[str]:
    known = OPTIONS[asked["kind"]]
    for name, value in asked["options"].items():
        if name == "against" and asked["kind"] == "diff":
            continue
        if name not in known:
            near = nearest(name, list(known))
            raise UserError(
                f"{asked['kind']} has no option {name[:40]!r}",
                hint=f"{near[0]}?" if near else f"one of {', '.join(known)}",
            )
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield known[name]
            elif one not in (False, None, ""):
                yield f"{known[name]}={one}"


def _code_of(words: list[str]) -> tuple[int, dict[str, str] | None]:
    """Return the exit code of a command, and its error."""
    try:
        code: Any = cli.main(args=words, standalone_mode=False)
    except UserError as error:
        return 2, _error(error)
    except RunError as error:
        return 1, {"where": "", "message": without_passwords(error.message), "hint": error.hint or ""}
    except click.ClickException as error:
        return error.exit_code, {"where": "", "message": error.format_message(), "hint": ""}
    except click.exceptions.Exit as done:
        code = done.exit_code
    except RecursionError:
        return 2, {"where": "", "message": "the text is nested too deeply", "hint": "shorten it"}
    return (code if isinstance(code, int) else 0), None


def _error(error: UserError) -> dict[str, str]:
    return {
        "where": str(error.where or ""),
        "message": without_passwords(error.message),
        "hint": without_passwords(error.hint or ""),
    }


def _diff(name: str, before: str, after: str) -> str:
    """Return a unified diff, '' for none."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, name, name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
