"""The page Which mode: the modes of a pasted launch side by side, as `trinity-compat advise` predicts them.

The text goes to that command in a process of its own (``text_server.py``); the page draws its JSON.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.advise.cards import CARDS, DEFAULT
from trinity_compat.common.redaction import shown
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.studio.pages import form_of, page, studio_of, texts_in
from trinity_compat.studio.timeline import MARGIN, ROW, WIDTH, shared_span_s, timeline
from trinity_compat.studio.translate_page import LARGEST_BODY, TOO_LARGE, page_text_of

_NOTHING: Mapping[str, Any] = {"problem": "", "advice": None, "command": ""}
_FIGURES = ("explorer_gpus", "trainer_gpus", "in_turns", "step_s", "gpu_time_used", "staleness_mean")
_LONGEST = 60  # characters of a field


@dataclass(frozen=True, slots=True)
class AdviceField:
    """A control of the page, which is an option of the command."""

    name: str
    label: str
    placeholder: str
    help: str


FIELDS = (
    AdviceField("gpus", "GPUs", "the launch’s", "of both sides together"),
    AdviceField("answer-length", "Answer length", "mean,99th percentile", "tokens, as 900,6000"),
    AdviceField("prompt-length", "Prompt length", "half of the longest", "tokens in the mean"),
    AdviceField("tokens-per-s", "Engine’s tokens/s", "by the card", "of one GPU with all slots in use"),
    AdviceField("train-tokens-per-s", "Trainer’s tokens/s", "by the card", "of one GPU"),
    AdviceField("model-size", "Model size", "by its name", "parameters, as 7B"),
    AdviceField("card-gb", "Card’s memory", "the card’s", "GiB"),
)


async def advise(request: Request) -> Response:
    """Show the form on GET; on POST with the advice on its text."""
    texts = _new_texts()
    if request.method != "POST":
        await run_in_threadpool(studio_of(request).text_server.warm)
        return _page(request, texts, None)
    try:
        form = await form_of(request, LARGEST_BODY)
    except HTTPException as error:
        if error.status_code != 413:
            raise
        return _page(request, texts, {"problem": TOO_LARGE}, status=413)
    texts = {name: texts_in(form).get(name, default) for name, default in texts.items()}
    if not texts["text"].strip():
        return _page(
            request, texts, {"problem": "The text is empty: paste a launch script or a Trinity YAML."}
        )
    return _page(request, texts, await run_in_threadpool(_advised, request, texts))


async def figures(request: Request) -> Response:
    """Show the figures of a YAML that the page Configure made."""
    texts = _new_texts() | {"text": texts_in(await form_of(request, LARGEST_BODY)).get("text", "")}
    found = await run_in_threadpool(_advised, request, texts)
    return page(request, "configure_figures.html", {**_NOTHING, **found})


def _new_texts() -> dict[str, str]:
    return {field.name: "" for field in FIELDS} | {"card": DEFAULT, "verl-version": "", "text": ""}


def _advised(request: Request, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the command, and its advice with each mode's timeline, or the ``problem``."""
    source = page_text_of(FormData({"text": texts["text"]}), "text", "")
    words = ["advise", source.name, *_options(texts)]
    (result,) = studio_of(request).text_server.run({source.name: source.text}, [[*words, "--json"]], "advise")
    found: dict[str, Any] = {"command": shlex.join(["trinity-compat", *words])}
    if result.limit:
        return found | {"problem": f"This was ended: {result.limit}. The command line has no such limit."}
    if result.code != 0:
        return found | {"problem": shown(result.err.strip().removeprefix("error: "))}
    advice = json.loads(result.out)
    span_s = shared_span_s(advice["modes"])
    alike = dict[tuple[object, ...], list[dict[str, Any]]]()  # those of the same figures are one card
    for mode in advice["modes"]:
        mode["timeline"] = timeline(mode, span_s) if mode.get("lanes") else None
        if mode["timeline"]:
            alike.setdefault(tuple(mode[name] for name in _FIGURES), []).append(mode)
    fastest = next((mode for mode in advice["modes"] if mode["name"] == advice["fastest"]), None)
    names = list(dict.fromkeys(name for split in advice["splits"] for name in split["step_s"]))
    return found | {
        "advice": advice,
        "fastest": fastest,
        "cards": list(alike.values()),
        "span_s": span_s,
        "split_modes": names,
    }


def _options(texts: Mapping[str, str]) -> Iterator[str]:
    for name in (*(field.name for field in FIELDS), "card", "verl-version"):
        value = texts[name].strip()
        if len(value) > _LONGEST:
            raise HTTPException(400, f"{name}: {value[:_LONGEST]!r}… is too long.")
        if value and (name, value) != ("card", DEFAULT):
            yield f"--{name}={value}"


def _page(
    request: Request, texts: Mapping[str, str], found: Mapping[str, Any] | None, *, status: int = 200
) -> Response:
    values: dict[str, object] = {"fields": FIELDS, "cards": list(CARDS), "texts": texts}
    values |= {"found": None if found is None else {**_NOTHING, **found}}
    values |= {"width": WIDTH, "margin": MARGIN, "row_height": ROW, "releases": VERL_RELEASES[::-1]}
    return page(request, "advise.html", values, status=status)
