"""The form for the tags and the note of a run."""

from __future__ import annotations

import re

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse

from trinity_compat.studio.pages import form_of, job_of, page_of, studio_of
from trinity_compat.studio.run_notes import RunNote

_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 12, 40, 2000  # characters


async def tags(request: Request) -> RedirectResponse:
    """Keep the tags and the note of one run."""
    form = await form_of(request)
    job = await run_in_threadpool(job_of, request)
    words = tuple(dict.fromkeys(re.findall(r"[^\s,]+", str(form.get("tags", "")))))
    text = str(form.get("note", "")).strip()
    if len(words) > _MOST_TAGS or any(len(word) > _LONGEST_TAG for word in words):
        raise HTTPException(400, f"A run has at most {_MOST_TAGS} tags of {_LONGEST_TAG} characters.")
    if len(text) > _LONGEST_NOTE:
        raise HTTPException(400, f"A note has at most {_LONGEST_NOTE} characters; this one has {len(text)}.")
    await run_in_threadpool(studio_of(request).notes.keep, job.dir.root, RunNote(words, text))
    return RedirectResponse(page_of(request, "run", job), 303)
