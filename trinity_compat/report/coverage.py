"""Coverage: prompts that were trained, skipped and repeated, from the ledger. Lost and twice must be 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer import live_tasks, queries
from trinity_compat.buffer.key_value import TransactionState
from trinity_compat.buffer.report import Row, one, rows
from trinity_compat.buffer.stream_position import FIRST_TASK, adopted
from trinity_compat.common.nested import value_at
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.report.model import Section, counted

_LOST = ("steps_missing", "prompts_missing_in_steps", "prompts_not_trained", "groups_not_whole")
_TWICE = ("prompts_twice", "uses_twice")
_FILTERS = ("filter_overlong_prompts", "train_max_samples")
_STEP = ("step", "prompts", "answers", "tokens", "reward", "least_lag", "most_lag", "lag")


def trained_steps(conn: sa.Connection) -> list[dict[str, Any]]:
    """Return the steps of the ledger; lags in veRL steps."""
    found = [dict(zip(_STEP, row, strict=True)) for row in rows(conn, queries.TRAINED_STEPS)]
    return [{**step, "tokens": int(step["tokens"] or 0), "lag": float(step["lag"])} for step in found]


def coverage(conn: sa.Connection, spec: RunSpec) -> Section:
    """Return the section on prompts; broken where the ledger lacks something or has it twice."""
    if spec.rows is not None:
        why = "the run trained rows of files, which no ledger records"
        return Section("Coverage", "open", why, {"steps": []}, [why])
    steps = trained_steps(conn)
    tasks, uses, groups, texts, last = rows(conn, queries.PROMPTS_TRAINED)[0]
    upto = 0 if last is None else last + 1
    missing = sum(1 for _ in live_tasks.live(conn, live_tasks.TRAIN, first=0, upto=upto).missing(upto))
    finished = bool(FINISHED.get(TransactionState(conn)))
    faults = {
        **_of_steps(conn, spec, steps),
        "prompts_not_trained": missing if finished else 0,
        "groups_not_whole": one(conn, queries.NOT_WHOLE),
        "prompts_twice": one(conn, queries.TASKS_TWICE),
        "uses_twice": 0 if spec.replay else uses - groups,
    }
    lost, twice = (sum(faults[name] for name in names) for names in (_LOST, _TWICE))
    found = (
        "nothing lost, nothing trained twice" if not lost + twice else f"{lost} lost, {twice} trained twice"
    )
    data = {
        "lost": lost,
        "twice": twice,
        "faults": faults,
        "prompts_trained": tasks,
        "prompts_repeated": tasks - texts,
        "uses_repeated": uses - groups,
        "skipped": _skipped(conn, steps, tasks),
        "under_way": 0 if finished else missing,
        "filters": dict(_filters(spec)),
        "steps": steps,
        "answer_lengths": _by_length(rows(conn, queries.ANSWER_LENGTHS)),
        "prompt_lengths": _by_length(rows(conn, queries.PROMPT_LENGTHS)),
    }
    return Section(
        "Coverage",
        "broken" if lost + twice else "proven" if steps else "open",
        f"{counted(tasks, 'prompt')} trained in {counted(len(steps), 'step')}: {found}",
        data,
        [] if steps else ["no step is in the ledger yet"],
    )


def _of_steps(conn: sa.Connection, spec: RunSpec, steps: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return steps that the ledger lacks, and prompts that its steps lack."""
    base = adopted(conn).step  # of another database
    numbers, counts = [each["step"] for each in steps], [each["prompts"] for each in steps]
    whole = int(value_at(spec.verl, "data.train_batch_size") or max(counts, default=0))
    return {
        "steps_missing": len(set(range(base + 1, max(numbers, default=0) + 1)).difference(numbers)),
        "prompts_missing_in_steps": sum(max(0, whole - count) for count in counts),
    }


def _skipped(conn: sa.Connection, steps: Sequence[dict[str, Any]], trained: int) -> dict[str, int]:
    """Return groups that were made and not trained, by reason."""
    states = [(kind.split(":")[0], state, count) for kind, state, count in rows(conn, queries.STATES)]

    def of(wanted: str, *among: str) -> int:
        return sum(count for kind, state, count in states if kind == wanted and state in among)

    drawn = FIRST_TASK.at(steps[-1]["step"] + 1 if steps else 1).get(TransactionState(conn))
    return {
        "waiting": of("train", "ready", "claimed"),
        "void_at_a_restart": of("train", "void"),
        "too_old": of("train", "stale"),
        "filtered": of("draw", "void") if drawn is None else max(0, drawn - trained),
        "dropped_by_a_pipeline": of("dropped", "ready"),
        "answers_dropped_by_a_pipeline": one(conn, queries.ANSWERS_DROPPED),
    }


def _filters(spec: RunSpec) -> Iterator[tuple[str, object]]:
    """Yield the launch's settings that leave prompts out."""
    found = {name: value_at(spec.verl, f"data.{name}") for name in _FILTERS}
    yield from ((name, value) for name, value in found.items() if value not in (None, False, -1))
    if value_at(spec.verl, "algorithm.filter_groups.enable"):
        yield "filter_groups", value_at(spec.verl, "algorithm.filter_groups.metric")
    if spec.max_staleness is not None:
        yield "max_staleness", spec.max_staleness


def _by_length(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Return answers trained and not, by ranges of tokens that end at powers of two."""
    ranges: dict[int, dict[str, Any]] = {}
    for tokens, is_trained, count, reward in found:
        upto = 1 << max(0, int(tokens or 0) - 1).bit_length()
        each = ranges.setdefault(upto, {"upto_tokens": upto, "trained": 0, "not_trained": 0, "reward": 0.0})
        each["trained" if is_trained else "not_trained"] += count
        each["reward"] += reward
    for each in ranges.values():
        each["reward"] /= each["trained"] + each["not_trained"]
    return [ranges[upto] for upto in sorted(ranges)]
