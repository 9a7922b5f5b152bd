"""The page Translate: a text becomes YAML, findings and messages, as the command line makes them.

The text goes to commands in processes of their own (``text_server.py``); the page shows the command line that
gives the same bytes.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trinity_compat.common.bounded_process import ProcessResult
from trinity_compat.common.redaction import shown
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.unset_variables import is_always_set
from trinity_compat.studio.pages import as_json, form_of, page, studio_of
from trinity_compat.studio.start_plan import MODES
from trinity_compat.trinity.config import TARGETS
from trinity_compat.verl_config.releases import FLAVOURS, key_index

LARGEST = 1 << 20  # characters of a text, as many as the reader takes
LARGEST_BODY = 12 * LARGEST  # bytes: two texts, each character at most nine bytes with its per cent signs
TOO_LARGE = f"A text of at most {LARGEST >> 20} MiB is translated."
_NAME = re.compile(r"\w[\w.@+-]{0,99}", re.ASCII)
_YAML = (".yaml", ".yml")
_OF_TRINITY = re.compile(r"^(?:buffer|explorer|synchronizer|cluster)\s*:|^ +algorithm_type\s*:", re.MULTILINE)
_OF_VERL = re.compile(r"^(?:actor_rollout_ref|data|trainer|algorithm|defaults)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PageText:
    """A text with the name that stands in comments and messages."""

    name: str
    text: str

    @property
    def is_yaml(self) -> bool:
        """True for a YAML, by its name."""
        return self.name.endswith(_YAML)

    @property
    def is_trinitys(self) -> bool:
        """True for a configuration of Trinity's, which is translated back."""
        of_verl = re.search(r"^actor_rollout_ref\s*:", self.text, re.MULTILINE)
        return self.is_yaml and not of_verl and _OF_TRINITY.search(self.text) is not None


async def translate_page(request: Request) -> Response:
    """Show the page on GET; on POST return the translation of the form's text as JSON."""
    studio = studio_of(request)
    if request.method != "POST":
        await run_in_threadpool(studio.text_server.warm)
        values = {
            "releases": VERL_RELEASES,
            "targets": TARGETS,
            "modes": MODES,
            "folder": str(studio.jobs.root.absolute()),
            "largest": LARGEST,
        }
        return page(request, "translate.html", values)
    try:
        form = await form_of(request, LARGEST_BODY)
        answer = _ANSWERS.get(_text(form, "view"), _translated)
        return as_json(await run_in_threadpool(answer, request, form))
    except HTTPException as error:
        text = TOO_LARGE if error.status_code == 413 else error.detail
        return JSONResponse({"problem": shown(text)}, error.status_code)


def keys(request: Request) -> Response:
    """Return veRL's keys of all releases, to complete what one types."""
    return as_json(keys_by_release())


def keys_by_release() -> dict[str, object]:
    """Return veRL's keys, each with a bit for each release that has it."""
    masks: dict[str, int] = {}
    for flavour in FLAVOURS:
        for key, (has, _) in key_index()[flavour].items():
            masks[key] = masks.get(key, 0) | has
    return {"releases": VERL_RELEASES, "keys": masks}


def _translated(request: Request, form: FormData) -> dict[str, object]:
    studio = studio_of(request)
    source = _source(form)
    if not source.text.strip():
        return {"name": source.name, "empty": True}
    files = {source.name: source.text}
    if source.is_trinitys:
        (result,) = studio.text_server.run(files, [["to-verl", source.name]])
        return {"name": source.name, "trinity": True, **_shown(["to-verl", source.name], result)}
    reading = list(_reading_options(request, form))
    options = [*reading, *_options(form)]
    words = ["translate", source.name, *options, *_translate_options(form)]
    commands = [words, ["audit", source.name, *options, "--format=json"]]
    if not source.is_yaml:
        commands.append(["parse", source.name, *reading, "--format=json"])
    result, audit, *parsed = studio.text_server.run(files, commands)
    return {
        "name": source.name,
        "trinity": False,
        **_shown(words, result),
        "audit": _data(audit),
        "open": list(_open_values(_data(parsed[0]))) if parsed else [],
    }


def _upgraded(request: Request, form: FormData) -> dict[str, object]:
    """Return the text in the newest spelling, and a message with the reason of each change."""
    return _answer(request, form, ["upgrade"], [*_reading_options(request, form), *_version(form)])


def _differing(request: Request, form: FormData) -> dict[str, object]:
    """Return the settings that differ in effect from another text, or from a release's defaults."""
    source, against = _source(form), _text(form, "against")
    files = dict[str, str]()
    if against in VERL_RELEASES:
        first = f"verl=={against}"
    else:
        other = page_text_of(form, "other", _text(form, "other-name"))
        first = other.name if other.name != source.name else f"other-{other.name}"
        files[first] = other.text
    options = [*_reading_options(request, form), "--format=json"]
    found = _answer(request, form, ["diff", first], options, files)
    data = found["data"]
    return {**found, "a": first, "comparison": data["comparisons"][0] if isinstance(data, dict) else None}


def _ignored(request: Request, form: FormData) -> dict[str, object]:
    """Return the settings that stock veRL accepts and does not use."""
    options = [*_reading_options(request, form), *_version(form), "--format=json"]
    return _answer(request, form, ["ignored"], options)


def _advised(request: Request, form: FormData) -> dict[str, object]:
    """Return the prediction of each mode of the launch."""
    gpus = _whole(form, "gpus")
    options = [f"--gpus={gpus}"] if gpus else []
    return _answer(request, form, ["advise"], [*options, *_version(form), "--json"])


def _answer(
    request: Request,
    form: FormData,
    before: list[str],
    after: list[str],
    more: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return what a command says of the form's text, whose name stands between its words."""
    source = _source(form)
    words = [*before, source.name, *after]
    (result,) = studio_of(request).text_server.run({**(more or {}), source.name: source.text}, [words])
    return {"name": source.name, **_shown(words, result), "data": _data(result)}


def _source(form: FormData) -> PageText:
    return page_text_of(form, "text", _text(form, "name"))


_ANSWERS = {"upgrade": _upgraded, "diff": _differing, "ignored": _ignored, "advise": _advised}


def _open_values(parsed: object) -> Iterator[dict[str, object]]:
    """Yield the open values of ``parse`` that a variable gives, each variable once."""
    launches = parsed["launches"] if isinstance(parsed, dict) else []
    found = {one["variable"]: one for launch in launches for one in launch["unresolved"]}
    for name, one in found.items():
        if name and not is_always_set(name):
            yield {"variable": name, "expression": one["expression"], "line": one["line"]}


def _shown(words: list[str], result: ProcessResult) -> dict[str, object]:
    return {
        "command": shlex.join(["trinity-compat", *words]),
        "code": result.code,
        "text": result.out,
        "messages": [line for line in result.err.splitlines() if line.strip()],
        "limit": result.limit,
    }


def _data(result: ProcessResult) -> object:
    try:
        return json.loads(result.out)
    except ValueError:
        return None


def page_text_of(form: FormData, field: str, name: str) -> PageText:
    """Return the form's text under a file's name. Raises HTTPException 400 and 413."""
    text = _text(form, field)
    if len(text) > LARGEST:
        raise HTTPException(413, TOO_LARGE)
    if name and not _NAME.fullmatch(name):
        raise HTTPException(400, f"name: {name[:60]!r} is not a file's name such as run.sh.")
    return PageText(name or _name_for(text), text)


def _name_for(text: str) -> str:
    """Return a name for a text without one, by what it looks like."""
    if text.startswith("#!") or not (_OF_VERL.search(text) or _OF_TRINITY.search(text)):
        return "run.sh"
    return "config.yaml"


def _reading_options(request: Request, form: FormData) -> Iterator[str]:
    """Yield the options of how a script is read. Raises HTTPException 400 for a folder that is not there."""
    given = _text(form, "folder") or str(studio_of(request).jobs.root.absolute())
    if not Path(given).is_absolute() or not Path(given).is_dir():
        raise HTTPException(400, f"folder: {given[:200]!r} is not the absolute path of a folder here.")
    yield f"--cwd={given}"
    yield from (f"--env={pair}" for pair in _texts(form, "env"))


def _options(form: FormData) -> Iterator[str]:
    """Yield the options that translate and audit share."""
    yield from _version(form)
    if target := _one_of(form, "target", TARGETS):
        yield f"--target={target}"
    if gpus := _whole(form, "gpus"):
        yield f"--set=trainer.n_gpus_per_node={gpus}"
    if mode := _one_of(form, "mode", MODES):
        yield f"--set=mode={mode}"
    yield from (f"--set={pair}" for pair in _texts(form, "set"))


def _version(form: FormData) -> list[str]:
    release = _one_of(form, "verl-version", VERL_RELEASES)
    return [f"--verl-version={release}"] if release else []


def _one_of(form: FormData, name: str, known: Sequence[str]) -> str:
    """Return a field's value, '' where none is given. Raises HTTPException 400 for another than the known."""
    value = _text(form, name)
    if value and value not in known:
        raise HTTPException(400, f"{name}: {value[:40]!r} is not one of {', '.join(known)}.")
    return value


def _translate_options(form: FormData) -> Iterator[str]:
    for name in ("rollout-gpus", "sync-offset", "launch"):
        if value := _whole(form, name):
            yield f"--{name}={value}"
    yield from (f"--{name}" for name in ("minimal", "no-comments", "as-published") if _text(form, name))


def _whole(form: FormData, name: str) -> str:
    """Return the digits of a number, '' where none is given. Raises HTTPException 400."""
    text = _text(form, name).strip()
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise HTTPException(400, f"{name}: {text[:40]!r} is not a whole number.")
    return text


def _texts(form: FormData, name: str) -> Iterator[str]:
    """Yield the non-empty texts of a repeated field."""
    yield from (value for value in form.getlist(name) if isinstance(value, str) and value.strip())


def _text(form: FormData, name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""
