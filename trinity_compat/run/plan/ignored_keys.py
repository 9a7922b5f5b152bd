"""Keys of a YAML that a run does not read: they are named before it starts, or refused.

A key is named where the user gave it: it differs from upstream's default and from what translate would write
for this very run. ``translators/by_hand/ignored_yaml_fields.json`` lists those that have no effect on what a
run does. In a launch's configuration a key that asks for something and is not read is an error: what it says
is not what runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import Tree, copied, put
from trinity_compat.common.resources import data_json
from trinity_compat.run.plan import environment, error_locations
from trinity_compat.run.plan.overlay import is_trinity_only
from trinity_compat.run.plan.overruled_lines import overruled, overruling
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import Source
from trinity_compat.translate.pipeline import as_translated
from trinity_compat.translate.trinity_fields import fate_of
from trinity_compat.translate.verl_from_trinity import from_launch
from trinity_compat.trinity.config import TARGETS, schema
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.trinity.workflows.tasksets import has_chats
from trinity_compat.verl_config.interpolate import is_interpolated, resolved_alone

Planner = Callable[[Tree, Sequence[str]], RunPlan]

_TRAINER = "trainer.trainer_config."
_AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
_ALGORITHM = "algorithm.algorithm_type"
_THOUGHTS = "explorer.rollout_model.reasoning_parser"
_UNSAID: tuple[object, ...] = (None, "", (), [], {})


def refuse_overruled(source: Source, sets: Sequence[str], planned: Planner, written: Tree | None) -> None:
    """Refuse lines of a translated YAML, and sets over it, that another line overrules. Raises UserError.

    ``planned`` plans a configuration with some of the sets, ``written`` is of `written_for`.
    """
    if "yaml" not in source.record or not from_launch(source.config):
        return
    others = [text for text in sets if not is_trinity_only(text)]
    if written:
        found = overruled(source.config, written, lambda config: planned(config, others))
        _refuse_idle_lines(found, source, (), written)
    fields = _fields_set([text for text in sets if text not in others])
    changed = copied(source.config)
    for path, value in fields.items():
        put(changed, path, value)
    with_sets = replace(source, config=changed)
    if fields and (written := written_for(with_sets)):
        found = overruled(changed, written, lambda config: planned(config, others))
        given = {path: value for path, value in found.items() if path in fields}
        _refuse_idle_lines(given, with_sets, sets, written)


def _refuse(given: Tree) -> None:
    """Raises UserError for the first field that a run here cannot follow."""
    for path, value in given.items():
        # A further buffer whose path was not read is idle with all of its fields.
        buffer = ".".join(path.split(".")[: _AUXILIARY.count(".") + 2])
        if buffer.startswith(f"{_AUXILIARY}.") and f"{buffer}.path" in given:
            raise UserError(
                f"{path}={_shown(value)}: this run does not read that buffer",
                hint="leave it out, or write algorithm.sample_strategy: mix",
            )
        fate = fate_of(path)
        if fate and fate.kind == "refused":
            raise UserError(f"{path}={_shown(value)}: {fate.why}", hint=fate.hint)


def with_ignored_keys(plan: RunPlan, source: Source, sets: Sequence[str], written: Tree | None) -> RunPlan:
    """The plan with a note for each key of the YAML, or of ``--set``, that has no effect on any run.

    ``written`` is of `written_for`. Raises UserError for one that asks for what this run does not do.
    """
    by_hand = _is_by_hand(source)
    unread = {**plan.unread, **_read_in_vain(source, sets, by_hand=by_hand)}
    # The reasoning parser is for chat completions.
    parser = {**values_of(source.config), **_fields_set(sets)}.get(_THOUGHTS)
    unread |= {_THOUGHTS: parser} if parser and not has_chats(plan.spec.verl, plan.spec.mode) else {}
    given = {path: value for path, value in unread.items() if not _is_idle(path, value, written or {})}
    if by_hand or written is None:
        _refuse(given)
    else:
        asked = {p: value for p, value in given.items() if not _has_no_effect(p) and not _listed(p)}
        _refuse_idle_lines(asked, source, sets, written)
    if not given:
        return plan
    lines, set_here = error_locations.lines_in(source), _fields_set(sets)
    notes = [
        f"  {_place(path, source, lines, set_here)}{path}={_shown(value)}: {_why(path)}"
        for path, value in given.items()
    ]
    return replace(plan, notes=(*plan.notes, "note: without effect here:", *notes))


def _read_in_vain(source: Source, sets: Sequence[str], *, by_hand: bool) -> Tree:
    """Keys that are looked at and have no effect all the same.

    In a launch's configuration that is the algorithm's name: all that follows from it stands beside it, and
    counts.
    """
    config = environment.filled(source.config, os.environ) if by_hand else source.config
    values = {**values_of(config), **_fields_set(sets)}
    return {p: v for p, v in values.items() if (_has_no_effect(p) if by_hand else p == _ALGORITHM)}


def _is_idle(path: str, value: object, written: Tree) -> bool:
    """Return whether the value has no effect on any run.

    It does not where it is what translate writes for the run, upstream's default where translate writes none,
    or that of a listed key.
    """
    if value in _UNSAID:  # it asks for nothing, whoever reads it
        return True
    if _listed(path):  # a name that translate makes of a path is compared with it
        files = str(written.get(f"{path.rpartition('.')[0]}.path"))
        return not path.endswith(".name") or is_interpolated(files) or value == written.get(path, value)
    # Values that translate itself writes for upstream are no choice of the user's.
    if path in written:
        return resolved_alone(value) == resolved_alone(written[path])
    field = schema(TARGETS[0]).find(path)
    return field is not None and field.default == value


def _refuse_idle_lines(given: Tree, source: Source, sets: Sequence[str], written: Tree) -> None:
    """Refuse lines of a launch's configuration that ask for something that does not run. Raises UserError."""
    refused = list(given)
    if not refused:
        return
    lines, set_here = error_locations.lines_in(source), _fields_set(sets)
    first, *others = (
        f"{path}={_shown(given[path])}: without effect here{_instead(path, source, lines, written)}"
        for path in refused
    )
    places = [_place(path, source, lines, set_here) for path in refused[1:]]
    more = "".join(f"\n{place}{text}" for place, text in zip(places, others, strict=True))
    in_file = refused[0] in lines and refused[0] not in set_here
    raise UserError(
        f"{first}{more}",
        where=Where(str(source.record["yaml"]), lines[refused[0]]) if in_file else None,
        hint="write that, or leave it out" if refused[0] in written else "leave it out",
    )


def _has_no_effect(path: str) -> bool:
    fate = fate_of(path)
    return fate is not None and fate.kind == "no effect"


def _fields_set(sets: Sequence[str]) -> dict[str, object]:
    """Field → its value."""
    return {key: safe_load(value) for key, _, value in (text.partition("=") for text in sets)}


def _why(path: str) -> str:
    fate = fate_of(path)
    if fate and fate.why:
        return fate.why
    if path.startswith(_TRAINER):
        return "trinity-rft's own trainer does not read it there either"
    return _listed(path) or "no part of this run reads it"


def _listed(path: str) -> str:
    """Return why a run may leave the field unread without a word, "" for other fields."""
    return next(
        (
            why
            for pattern, why in known().items()
            if fnmatchcase(path, pattern)
            and ("*" in (pattern[0], pattern[-1]) or path.count(".") == pattern.count("."))
        ),
        "",
    )


def known() -> Mapping[str, str]:
    """Pattern of a path → why a run may leave it unread without a word."""
    return data_json("translators/by_hand/ignored_yaml_fields.json")


def _is_by_hand(source: Source) -> bool:
    return "yaml" in source.record and not from_launch(source.config)


def written_for(source: Source) -> Tree | None:
    """The fields that translate writes for the run, none for a YAML by hand; None where it refuses."""
    if "yaml" not in source.record:
        return values_of(source.config)
    if _is_by_hand(source):
        return {}
    try:
        return values_of(as_translated(source.config))
    except UserError:
        return None


def _place(path: str, source: Source, lines: Mapping[str, int], sets: Collection[str]) -> str:
    if path in sets:
        return "--set "
    return f"{Where(str(source.record['yaml']), lines[path])}: " if path in lines else ""


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _instead(path: str, source: Source, lines: Mapping[str, int], written: Tree) -> str:
    """The value that runs, and the line that decides it where that is one alone."""
    value = written.get(path)
    if value in _UNSAID:
        return ""
    other = overruling(source.config, path, written)
    if other is None:
        return f"; the other keys make it {_shown(value)}"
    said = values_of(source.config)[other]
    return f"; {_place(other, source, lines, ())}{other}={_shown(said)} makes it {_shown(value)}"
