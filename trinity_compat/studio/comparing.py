"""Comparing runs: the verdict first, then curves, configurations, and answers to the same task."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.compare import inference
from trinity_compat.compare.axes import AXES, Axis
from trinity_compat.compare.conclusion import group_rows, headline, key_metrics
from trinity_compat.compare.configs import of_runs
from trinity_compat.compare.html import as_html, drawn
from trinity_compat.compare.model import Side
from trinity_compat.compare.options import CompareOptions
from trinity_compat.compare.sources import read_side
from trinity_compat.compare.verdict import Comparison, compare
from trinity_compat.errors import UserError
from trinity_compat.secret import hidden, shown
from trinity_compat.studio import job_files
from trinity_compat.studio.experiences import index_of, read_group
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, job_named, page, studio_of

_KEPT = 4
_TASKS = 12
Newest = tuple[int, float]  # step, mean reward


@dataclass(frozen=True, slots=True)
class Asked:
    """Two sides, each the seeds of one configuration."""

    a: tuple[Job, ...]
    b: tuple[Job, ...]
    axis: Axis

    @property
    def sides(self) -> str:
        """The query that names them."""
        return urlencode([("a", job.name) for job in self.a] + [("b", job.name) for job in self.b])

    @property
    def address(self) -> str:
        """The query that asks for it again."""
        return f"{self.sides}&axis={self.axis}"


class Comparisons:
    """The latest ones; made again when a run has moved on."""

    def __init__(self) -> None:
        self._kept: OrderedDict[object, Comparison] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, asked: Asked) -> Comparison:
        """Raises UserError where the sides cannot be compared. One at a time: it takes a core for a while."""
        key = (asked.address, tuple(job.signature() for job in (*asked.a, *asked.b)))
        with self._lock:
            if key not in self._kept:
                options = CompareOptions(axis=asked.axis)
                a, b = (_read(side) for side in (asked.a, asked.b))
                self._kept[key] = compare(a, b, options)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]


def _read(side: Sequence[Job]) -> Side:
    """The side's runs. The reader of `trinity-compat compare` opens files by their names, so that nothing
    but regular files may lie there."""
    for job in side:
        for name in ("config", "monitor"):
            try:
                job_files.refuse_links(job.dir.root / name)
            except OSError as error:
                raise UserError(f"{error.filename or job.dir.root / name} {error.strerror}") from error
    return read_side([job.dir.root for job in side], _label(side))


def _label(side: Sequence[Job]) -> str:
    return side[0].name if len(side) == 1 else f"{side[0].name} and {len(side) - 1} more"


def asked_of(request: Request) -> Asked | None:
    """None unless both sides name a job. Raises HTTPException 404 for one that is not there."""
    given = request.query_params
    names = (dict.fromkeys(given.getlist(side)) for side in "ab")
    a, b = (tuple(job_named(request, name) for name in side) for side in names)
    axis = given.get("axis") or "step"
    known = next((one for one in AXES if one == axis), None)
    if known is None:
        raise HTTPException(400, f"axis is one of {', '.join(AXES)}.")
    return Asked(a, b, known) if a and b else None


def comparison(request: Request) -> Response:
    """Choose two sides; what became of them."""
    studio, asked = studio_of(request), asked_of(request)
    values: dict[str, object] = {
        "rows": [studio.summaries.of(job) for job in studio.jobs.all().values()],
        "chosen": {side: request.query_params.getlist(side) for side in "ab"},
        "axes": AXES,
        "axis": asked.axis if asked else "step",
        "found": None,
        "problem": "",
    }
    if asked:
        try:
            values |= {"found": _found(studio.comparisons.of(asked), asked)}
        except UserError as error:
            values |= {"problem": str(error)}
    return page(request, "compare.html", values)


def _found(made: Comparison, asked: Asked) -> dict[str, object]:
    first, *rest = headline(made)
    return {
        "labels": {"a": made.a.label, "b": made.b.label},
        "first": first,
        "rest": rest,
        "groups": group_rows(made),
        "curves": key_metrics(made),
        "names": [metric.name for metric in made.metrics],
        "configuration": _differences(made),
        "tasks": _tasks(asked.a[0], asked.b[0]),
        "address": asked.address,
        "sides": asked.sides,
        "incomplete": inference.missing() or "",
    }


def _differences(made: Comparison) -> list[dict[str, object]] | None:
    """What differs in the configuration of the sides' first runs; None where it is not known."""
    found = of_runs(*(side.runs[0].meta for side in (made.a, made.b)))
    return None if found is None else [_masked(row) for row in found]


def _masked(row: dict[str, object]) -> dict[str, object]:
    key = str(row["key"])
    return row | {side: hidden(key, row[side]) for side in "ab"} | {"why": shown(str(row["why"]))}


def _tasks(a: Job, b: Job) -> list[tuple[str, Newest, Newest]]:
    """(task, A's newest answers, B's) of tasks that both have answered, the greatest difference first."""
    try:
        ours, theirs = (index_of(job)[0].newest_by_task("train") for job in (a, b))
    except UserError:
        return []
    rows = [(task, newest, theirs[task]) for task, newest in ours.items() if task in theirs]
    return sorted(rows, key=lambda row: -abs(row[1][1] - row[2][1]))[:_TASKS]


def curves(request: Request) -> Response:
    """``?name=…``: name → the metric, with what is drawn of it."""
    asked = asked_of(request)
    if asked is None:
        raise HTTPException(400, "The address names no two sides.")
    made = studio_of(request).comparisons.of(asked)
    wanted = set(request.query_params.getlist("name"))
    return as_json({metric.name: drawn(metric) for metric in made.metrics if metric.name in wanted})


def report(request: Request) -> Response:
    """The HTML report, to keep: one file without network. A download, never shown in the studio's origin."""
    asked = asked_of(request)
    if asked is None:
        raise HTTPException(400, "The address names no two sides.")
    made = studio_of(request).comparisons.of(asked)
    headers = {"content-disposition": 'attachment; filename="comparison.html"'}
    text = as_html(made, config_diff=_differences(made)).encode(errors="replace")
    return Response(text, media_type="text/html", headers=headers)


def same_task(request: Request) -> Response:
    """The newest answers of either side to one task."""
    asked = asked_of(request)
    task = request.query_params.get("task", "")
    if asked is None or not task:
        raise HTTPException(400, "The address names no two sides and a task.")
    sides = [_of_task(job, task) for job in (asked.a[0], asked.b[0])]
    return page(request, "same_task.html", {"task": task, "sides": sides, "address": asked.address})


def _of_task(job: Job, task: str) -> dict[str, object]:
    history = index_of(job)[0].over_time("train", task)
    if not history:
        return {"job": job, "group": None, "answers": [], "prompt": "", "step": None}
    number = int(str(history[-1]["group_id"]))
    found = job.database().run(lambda conn: read_group(conn, number), write=False)
    members = found[1] if found else []
    return {
        "job": job,
        "group": number,
        "step": history[-1]["step"],
        "prompt": members[0][1].prompt_text if members else "",
        "answers": [answer for _, answer in members],
    }
