"""What a YAML says and a run of ours does not read: named before it starts, not ignored in silence.

A key is named where the user gave it: it differs from upstream's default and from what translate would write
for this very run. ``translators/unread.json`` lists those that have no effect on what a run does.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from trinity_compat.containers import Tree
from trinity_compat.data import data_path
from trinity_compat.dotted import sections_above
from trinity_compat.errors import UserError, Where
from trinity_compat.runtime.plan.options import RunOptions
from trinity_compat.runtime.plan.plan import RunPlan
from trinity_compat.runtime.plan.planning import make_plan
from trinity_compat.runtime.plan.refusals import place
from trinity_compat.runtime.plan.source import Source
from trinity_compat.translate.inverse import from_launch
from trinity_compat.translate.retranslated import as_translated
from trinity_compat.translate.trinity_fields import fate_of
from trinity_compat.trinity_config import TARGETS, schema
from trinity_compat.trinity_config.complete import completed
from trinity_compat.trinity_config.read import lines_of
from trinity_compat.trinity_config.release import release_of
from trinity_compat.trinity_config.stages import Stage
from trinity_compat.trinity_config.watch import values_of
from trinity_compat.verl_config.interpolate import resolved_alone

_PATH = re.compile(r"[a-z]\w*(?:\.\w+)+")
_SINGLE = "buffer.explorer_input.taskset"
_TRAINER = "trainer.trainer_config."
_AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
_UNSAID: tuple[object, ...] = (None, "", (), [], {})


def planned(source: Source, options: RunOptions, *, cwd: Path) -> RunPlan:
    """The plan of a source, with what it does not read. Raises UserError, of a YAML at the line of the field
    that it is about."""
    with blamed(source):
        return named(make_plan(source.config, options, cwd=cwd), source, options.sets)


@contextmanager
def blamed(source: Source) -> Iterator[None]:
    """Around what names a field and doesn't know where the user said it: a UserError gets its place."""
    try:
        yield
    except UserError as error:
        if error.where is None:
            error.message, error.where = in_file(error.message, source)
        raise


def in_file(message: str, source: Source) -> tuple[str, Where | None]:
    """What a message about a field says where the file has it, and the place. Of a script it stays, and has
    the line of the key that it begins with (``key=value: …``)."""
    if "yaml" not in source.record:
        head, equals, _ = message.partition("=")
        return message, place(source.record, (head,)) if equals and _PATH.fullmatch(head) else None
    said = _as_written(message, source)
    return said, Where(str(source.record["yaml"]), _line_of(said, source))


def _as_written(message: str, source: Source) -> str:
    """The message about the field that the file has, where the one that it names was filled in from there."""
    path = re.split("[=:]", message, maxsplit=1)[0]
    if path in (lines := _lines(source)):
        return message
    try:
        full = completed(source.config, source.target or release_of(source.config))
        said = full.sources.get(path, path)
    except UserError:  # the very error that is told here
        return message
    return message.replace(path, said, 1) if said in lines else message


def _line_of(message: str, source: Source) -> int:
    """Of the first field that a message names; 0 where it names none of the file's."""
    lines = _lines(source)
    if (head := re.split("[=:]", message, maxsplit=1)[0]) in lines:
        return lines[head]
    for found in _PATH.findall(message):
        for known in (found, *sections_above(found)):
            for path in (known, known.replace(f"{_SINGLE}s.0", _SINGLE)):
                if "." in path and path in lines:
                    return lines[path]
    return 0


def _lines(source: Source) -> Mapping[str, int]:
    """Of the file itself: in ``yaml_text`` marks stand for its secrets, which YAML does not read."""
    try:
        lines = lines_of(Path(source.record["yaml"]).read_text()) if "yaml" in source.record else {}
    except OSError:  # it has gone since it was read
        return {}
    return _of_stage(lines, source.stage) if source.stage else lines


def _of_stage(lines: Mapping[str, int], stage: Stage) -> Mapping[str, int]:
    """Path in the stage → line in the file: where the stage says it, else where the whole does."""
    own, replaced = f"stages.{stage.number}.", tuple(f"{name}." for name in stage.replaced)
    whole = {path: line for path, line in lines.items() if not path.startswith(replaced)}
    return whole | {path.removeprefix(own): line for path, line in lines.items() if path.startswith(own)}


def _refuse(given: Tree) -> None:
    """Raises UserError for the first field that a run here cannot follow."""
    for path, value in given.items():
        if _is_of_idle_buffer(path, given):
            raise UserError(
                f"{path}={_shown(value)}: nothing of this run reads that buffer",
                hint="leave it out, or write algorithm.sample_strategy: mix",
            )
        fate = fate_of(path)
        if fate and fate.kind == "refused":
            raise UserError(f"{path}={_shown(value)}: {fate.why}", hint=fate.hint)


def _is_of_idle_buffer(path: str, given: Tree) -> bool:
    """Whether a field stands in a further buffer whose path nobody has read."""
    buffer = ".".join(path.split(".")[: _AUXILIARY.count(".") + 2])
    return buffer.startswith(f"{_AUXILIARY}.") and f"{buffer}.path" in given


def named(made: RunPlan, source: Source, sets: Sequence[str] = ()) -> RunPlan:
    """The plan with a note for each key of the YAML, or of ``--set``, that changes nothing in it."""
    given = {path: value for path, value in made.unread.items() if not _is_known(path, value)}
    if not given:
        return made
    if "yaml" in source.record and not from_launch(source.config):
        return _without_effect(made, given, source, sets)
    written = _written(source)
    lines = _lines(source)
    set_here = {text.partition("=")[0]: text for text in sets}
    notes = [
        f"  {_place(path, source, lines, set_here)}{path}={_shown(value)}{_instead(written.get(path))}"
        for path, value in given.items()
        # What translate itself writes for upstream is no choice of the user's.
        if resolved_alone(value) != resolved_alone(written.get(path))
    ]
    head = ["note: a run here does not read these keys of the configuration; they change nothing:"]
    return replace(made, notes=(*made.notes, *head, *notes)) if notes else made


def _is_known(path: str, value: object) -> bool:
    """Whether the value is upstream's default, or the key is on the list."""
    # An empty value asks for nothing, whoever reads it.
    if value in _UNSAID or any(fnmatchcase(path, pattern) for pattern in known()):
        return True
    field = schema(TARGETS[0]).find(path)
    return field is not None and field.default == value


def _without_effect(made: RunPlan, given: Tree, source: Source, sets: Sequence[str]) -> RunPlan:
    """Of a YAML by hand: what nothing reads is refused, or has no effect for a reason that is said."""
    _refuse(given)
    lines = _lines(source)
    set_here = {text.partition("=")[0]: text for text in sets}
    notes = [
        f"  {_place(path, source, lines, set_here)}{path}={_shown(value)}: {_why(path)}"
        for path, value in given.items()
    ]
    return replace(made, notes=(*made.notes, "note: without effect here:", *notes))


def _why(path: str) -> str:
    fate = fate_of(path)
    if fate and fate.why:
        return fate.why
    if path.startswith(_TRAINER):
        return "trinity-rft's own trainer does not take it from there either"
    return "nothing of this run takes it"


@functools.cache
def known() -> Mapping[str, str]:
    """Pattern of a path → why a run may leave it unread without a word."""
    reasons: Mapping[str, str] = json.loads(data_path("translators/unread.json").read_text(encoding="utf-8"))
    return reasons


def _written(source: Source) -> Tree:
    """What translate writes for the run. Nothing where it refuses: then every key stands for itself."""
    if "yaml" not in source.record:
        return values_of(source.config)
    try:
        return values_of(as_translated(source.config, source.target))
    except UserError:
        return {}


def _place(path: str, source: Source, lines: Mapping[str, int], sets: Mapping[str, str]) -> str:
    if path in sets:
        return "--set "
    return f"{Where(str(source.record['yaml']), lines[path])}: " if path in lines else ""


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _instead(value: object) -> str:
    return "" if value in _UNSAID else f" (for this run translate writes {_shown(value)})"
