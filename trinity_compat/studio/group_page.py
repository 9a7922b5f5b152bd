"""A group's page: the answers to one task, identical ones once, tokens loaded as they are scrolled to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import sqlalchemy as sa
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trinity_compat.buffer import codec, queries
from trinity_compat.buffer.groups import Row
from trinity_compat.buffer.model import TRUNCATED, Experience
from trinity_compat.buffer.queries import query
from trinity_compat.common.nested import value_at
from trinity_compat.studio import group_index, tokens
from trinity_compat.studio.differences import Part, differing
from trinity_compat.studio.experiences import images_of, index_of, read_about, read_answers
from trinity_compat.studio.group_index import RewardScale
from trinity_compat.studio.groups_page import group_query, selection_of, strip
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, group_of, job_of, page, reading, whole_number
from trinity_compat.trinity import stored_advantages
from trinity_compat.trinity.stored_advantages import GroupAdvantages

CHUNK = 256  # tokens that are loaded at once
CHUNK_TEXT = 1024  # characters, for a job without a tokenizer
MOST_ANSWERS = 128  # on one page
# What all answers of the page have in it, before anything is loaded.
_TOKENS_AT_FIRST, _TEXT_AT_FIRST, _REASONS = 1024, 32_768, 16_000
_LONGEST_PROMPT, _LONGEST_ROW = 16_000, 16_000  # characters
_FARTHEST = 1 << 28  # a token's place that a database can still multiply

Difference = tuple[list[Part], list[Part], bool]


@dataclass(slots=True)
class AnswerCard:
    """One answer and those identical to it, without its arrays.

    ``shown`` of ``total`` tokens are in the page; without a tokenizer both count characters.
    """

    id: int
    run: int
    reward: float
    length: int
    masked: int
    versions: tuple[int, int]
    turns: int
    truncated: bool
    text: str
    shown: int
    total: int
    why: Mapping[str, object]
    spans: Sequence[tokens.TokenSpan] | None = None
    advantage: float | None = None
    others: list[tuple[int, int]] = field(default_factory=list)  # (id, run)

    @property
    def ids(self) -> list[int]:
        """The ids of all answers of the card."""
        return [self.id, *(number for number, _ in self.others)]


@reading
def group(request: Request) -> Response:
    """Show the answers to one task side by side."""
    job, number = job_of(request), group_of(request)
    about = job.database().run(lambda conn: read_about(conn, number), write=False)
    if about is None:
        raise HTTPException(404, f"The job has no group {number}.")
    given = request.query_params
    if not selection_of(given):
        own = {"kind": str(about["kind"]), "step": str(about["step"])}
        given = QueryParams({**given, **own})
    wanted = group_query(given)
    size = int(str(about["size"]))
    pair = (given.get("a", ""), given.get("b", ""))
    prompt, cards, more, made, difference, scored = job.database().run(
        lambda conn: _read(conn, job, number, size, str(about["kind"]), pair), write=False
    )
    index, _, _ = index_of(job)
    with index.connected() as db:
        before, after = group_index.neighbours(db, wanted, number)
        figures = group_index.one(db, number)
        kinds = [str(about["kind"])]
        (kind,) = group_index.titles(kinds, group_index.validations(db, kinds)).values()
        scale = group_index.scale(db, str(about["kind"]))
    known = [value for value in made.values if value is not None]
    row = json.dumps(about["task"], indent=1, ensure_ascii=False, default=str)
    values = {
        "job": job,
        "number": number,
        "about": about,
        "figures": figures,
        "kind": kind,
        "scale": scale,
        "advantages": made,
        "advantage_scale": RewardScale(*(sign * max(map(abs, known), default=1.0) for sign in (-1, 1))),
        "strip_of": strip([card.reward for card in cards for _ in card.ids], scale),
        "answers": cards,
        "pair": pair if difference else (str(cards[0].id), str(cards[-1].id)) if cards else pair,
        "difference": difference,
        "count": sum(len(card.ids) for card in cards),
        "more": more,
        "scored": scored,
        "shades": tokens.SHADES,
        "prompt": _beginning(prompt, _LONGEST_PROMPT),
        "row": _beginning(row, _LONGEST_ROW),
        "images": images_of(about["task"]),
        "over_time": index.over_time(str(about["kind"]), str(about["name"])),
        "before": before,
        "after": after,
        "selection": selection_of(given),
        "kept": [each for each in given.multi_items() if each[0] not in ("id", "a", "b")],
        "truth": value_at(about["task"], "reward_model.ground_truth"),
        "is_step": {*given} - {"id", "a", "b"} <= {"kind", "step"},
        "sizes": (CHUNK, CHUNK_TEXT),
    }
    return page(request, "group.html", values)


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n… ({len(text) - most} more characters)"


def _read(
    conn: sa.Connection, job: Job, number: int, size: int, kind: str, pair: tuple[str, str]
) -> tuple[str, list[AnswerCard], bool, GroupAdvantages, Difference | None, list[int]]:
    """Return the prompt, a card for each different answer, whether there are more, and what they compare.

    The last are groups of the same train batch that have the trainer's scores; the group itself is the only
    one where it has them.
    """
    decode = tokens.decoder(job.spec.verl)
    known: dict[bytes, AnswerCard] = {}
    rows = list(read_answers(conn, number, MOST_ANSWERS + 1))
    more, rows = len(rows) > MOST_ANSWERS, rows[:MOST_ANSWERS]
    made = GroupAdvantages(why="the group has more answers than are read")
    if not more:
        made = stored_advantages.of_group(job.spec.verl, kind, [it for _, it in rows])
    bind, clip = {"group_id": number, "most": MOST_ANSWERS}, tokens.clip_range(job.spec.verl)
    scores = {run: parts for run, *parts in conn.execute(query(queries.SCORES_OF_GROUP), bind)}
    beside = () if scores else conn.execute(query(queries.SCORED_BESIDE), {"group_id": number}).scalars()
    for (place, it), advantage in zip_longest(rows, made.values):
        same = known.get(identity := _identity(it))
        if same is None:
            card = known[identity] = _card(place, it, decode is None, max(1, min(size, MOST_ANSWERS)))
            card.advantage = advantage
            if decode:
                arrays = (it.logprobs, *map(codec.unpack_floats, scores.get(it.run, ())))
                most = card.shown
                card.spans = tokens.spans(it.response_ids, it.response_mask, arrays, decode, 0, most, clip)
        else:
            same.others.append((place, it.run))
    cards = sorted(known.values(), key=lambda card: card.reward if math.isfinite(card.reward) else -math.inf)
    prompt = next((it.prompt_text for _, it in rows if it.prompt_text), "")
    chosen = [next((it for place, it in rows if str(place) == wanted), None) for wanted in pair]
    shown = None
    if chosen[0] and chosen[1]:
        shown = differing(chosen[0].response_text, chosen[1].response_text)
    return prompt, cards, more, made, shown, [number] if scores else list(beside)


def _identity(it: Experience) -> bytes:
    text = it.response_text.encode(errors="surrogatepass")
    parts = (text, it.response_ids.tobytes(), it.response_mask.tobytes())
    digest = hashlib.sha256(repr(it.reward).encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _card(number: int, it: Experience, as_text: bool, size: int) -> AnswerCard:
    length = len(it.response_ids)
    first = max(16, min(CHUNK, _TOKENS_AT_FIRST // size))
    text = it.response_text[: max(256, min(2000, _TEXT_AT_FIRST // size))] if as_text else ""
    return AnswerCard(
        id=number,
        run=it.run,
        reward=it.reward,
        length=length,
        masked=int((it.response_mask == 0).sum()),
        versions=(it.min_model_version, it.max_model_version),
        turns=it.num_turns,
        truncated=bool(it.metrics.get(TRUNCATED)),
        text=text,
        shown=len(text) if as_text else min(first, length),
        total=len(it.response_text) if as_text else length,
        why=dict(_reasons({**it.metrics, **it.info}, max(400, _REASONS // size))),
    )


def _reasons(why: Mapping[str, object], most: int) -> Iterator[tuple[str, object]]:
    for name, value in why.items():
        if most <= 0:
            yield "…", f"{len(why)} entries"
            return
        shown = value if isinstance(value, int | float) else _beginning(str(value), most)
        most -= len(name) + len(str(shown))
        yield name, shown


@reading
def answer_part(request: Request) -> Response:
    """Return the next tokens of an answer from ``from`` on, as spans; characters without a tokenizer.

    ``?whole=1``: the answer's text.
    """
    job = job_of(request)
    number = whole_number(request.query_params.get("id", ""), "id")
    if "whole" in request.query_params:
        text = _text(job, number, 0, None)
        return PlainTextResponse(text.encode(errors="replace"), headers={"content-disposition": "inline"})
    begin = min(_FARTHEST, whole_number(request.query_params.get("from", ""), "from"))
    decode = tokens.decoder(job.spec.verl)
    if decode is None:
        return as_json({"text": _text(job, number, begin, CHUNK_TEXT)})
    spans = [
        (True, [(token.text, token.classes, token.title) for token in span.tokens])
        if span.ours
        else (False, [span.text, len(span.tokens)])
        for span in _spans(job, number, begin, decode)
    ]
    return as_json({"spans": spans})


def _spans(job: Job, number: int, begin: int, decode: tokens.Decode) -> list[tokens.TokenSpan]:
    start = max(0, begin - tokens.BEFORE)
    count = begin - start + CHUNK + tokens.LONGEST
    found = _one(
        job, queries.PART_OF_TOKENS, {"id": number, "ints": 4 * start + 1, "bytes": start + 1, "count": count}
    )
    ids, scores = codec.unpack_ints(found[0] or b""), [codec.unpack_floats(each or b"") for each in found[2:]]
    mask, begin = codec.unpack_mask(found[1], len(ids)), begin - start
    clip = tokens.clip_range(job.spec.verl)
    return tokens.spans(ids, mask, scores, decode, begin, begin + CHUNK, clip)


def _text(job: Job, number: int, begin: int, count: int | None) -> str:
    found = _one(job, queries.PART_OF_TEXT, {"id": number, "begin": begin + 1, "count": count or 1 << 30})
    return str(found[0] or "")


def _one(job: Job, statement: str, bind: Mapping[str, int]) -> Row:
    found = job.database().run(lambda conn: conn.execute(query(statement), bind).one_or_none(), write=False)
    if found is None:
        raise HTTPException(404, f"The job has no answer {bind['id']}.")
    return found
