"""Relocation of errors: the place in the user's own file, and its spelling there.

A run is checked on veRL's configuration, whose keys a Trinity YAML spells otherwise, and a script of an older
release too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import sections_above
from trinity_compat.common.releases import TRINITY, VERL, VERL_RELEASES
from trinity_compat.job.vllm_arguments import SECTION
from trinity_compat.run.plan.refusals import place
from trinity_compat.run.plan.source import LaunchRecord, Source
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.verl_from_trinity import COMPAT, compat_path, completed_config
from trinity_compat.trinity.config.read import lines_of
from trinity_compat.verl_config.infer import keys_of
from trinity_compat.verl_config.releases import FLAVOURS
from trinity_compat.verl_config.upgrade import row_for

_PATH = re.compile(r"[a-z]\w*(?:\.\w+)+")
_ENGINE = "explorer.rollout_model"
_SINGLE = "buffer.explorer_input.taskset"


@contextlib.contextmanager
def relocate_errors(source: Source, sets: Sequence[str] = ()) -> Iterator[None]:
    """A UserError from inside without a place says it in the words of the user's file, with the line.

    ``sets``: those of the command line, whose fields stand in no file.
    """
    try:
        yield
    except UserError as error:
        where, fields_set = error.where, {text.partition("=")[0] for text in sets}
        # The YAML as a whole is not a place yet.
        is_open = where is None or (not where.line and where.file == source.record.get("yaml"))
        if is_open and _head(error.message).partition(" ")[0] not in fields_set:
            error.message, error.where = in_file(error.message, source)
        raise


def in_file(message: str, source: Source) -> tuple[str, Where | None]:
    """Return the message in the spelling of the user's file, and the place that it is about.

    The place is None where a script has none.
    """
    if "yaml" not in source.record:
        key = _head(message)
        ours = _compat_paths(key)  # of a setting, which several of veRL's keys may be translated to
        keys = (key, *(row.key for row in load_rows().all() if not ours.isdisjoint(row.to)))
        names = [name for known in keys for name in words_about(source.record, known)]
        if not names:  # what the launch leaves to veRL's default is at the launch itself
            is_key = _PATH.fullmatch(key) and message[len(key) :].startswith("=")
            return message, place(source.record, (key,)) if is_key else None
        return message.replace(key, names[-1], 1), place(source.record, names[-1:])
    text = _in_user_spelling(message, source)
    return text, Where(str(source.record["yaml"]), _line_of(text, source))


def words_about(record: LaunchRecord, key: str) -> list[str]:
    """The names in a launch's words that are ``key`` of the pinned veRL, in whichever release's spelling."""
    words = [word["text"].partition("=")[0].lstrip("+~") for word in record.get("arguments", ())]
    return [name for name in words if key in pinned_names(name)]


def spelling(key: str, source: Source) -> str:
    """Return a key of the pinned veRL as the user's file has it, else as its release or a YAML spells it.

    "" for a key that the release lacks.
    """
    if said := words_about(source.record, key):
        return said[-1]
    if "yaml" in source.record:
        row, lines = load_rows().find(key), lines_in(source)
        fields = (*_in_trinity(key), *(row.paths(TRINITY) if row else ()))
        return next((field for field in fields if field in lines), (*fields[-1:], key)[0])
    bit = 1 << VERL_RELEASES.index(source.record.get("verl_version", VERL))
    for flavour in FLAVOURS:
        theirs = [name for name, (has, _) in keys_of(flavour).items() if has & bit]
        if found := [name for name in theirs if key in pinned_names(name)]:
            return key if key in found else found[0]
    return ""


def _compat_paths(name: str) -> set[str]:
    """The places in a file of a setting that a message spells as ``--set`` does."""
    return {compat_path(TRINITY).removesuffix(COMPAT) + name} if name.startswith(f"{COMPAT}.") else set()


def pinned_names(name: str) -> tuple[str, ...]:
    """The pinned release's names of a key that an older one may have."""
    row = row_for(name, "ppo_trainer")
    return (name, *(row.targets(name) if row else ()))


def _head(message: str) -> str:
    """The field that a message begins with."""
    return re.split("[=:]", message, maxsplit=1)[0]


def _in_user_spelling(message: str, source: Source) -> str:
    """Rewrite the message to the field that the user's file has.

    The message may name a field that was filled in from that one, or veRL's name of it.
    """
    path, lines = _head(message), lines_in(source)
    if path in lines:
        return message
    try:
        full = completed_config(source.config)
    except UserError:  # the very error that is told here
        return message
    found = (full.sources.get(name, name) for name in (path, *_in_trinity(path)))
    field = next((name for name in found if name in lines), None)
    return message.replace(path, field, 1) if field else message


def _in_trinity(key: str) -> Iterator[str]:
    """Fields that a veRL key is translated to, the nearest first."""
    row = load_rows().find(key)
    for path in row.paths(TRINITY) if row else ():
        yield f"{path}.{key.rpartition('.')[2]}"
        yield path
    if key.startswith(f"{SECTION}."):
        yield key.replace(SECTION, f"{_ENGINE}.extra_engine_args")
        yield key.replace(SECTION, _ENGINE)


def _line_of(message: str, source: Source) -> int:
    """Return the line of the first field that a message names; 0 where the file has none of them."""
    lines = lines_in(source)
    if (head := _head(message)) in lines:
        return lines[head]
    for path in _PATH.findall(message):
        for known in (path, *sections_above(path)):
            for name in (*_compat_paths(known), known, known.replace(f"{_SINGLE}s.0", _SINGLE)):
                if "." in name and name in lines:
                    return lines[name]
    return 0


def lines_in(source: Source) -> Mapping[str, int]:
    """Path → line of the YAML.

    Of the file itself: in ``yaml_text`` marks stand for its secrets, which YAML does not read.
    """
    try:
        lines = lines_of(Path(source.record["yaml"]).read_text()) if "yaml" in source.record else {}
    except OSError:  # it has gone since it was read
        return {}
    if not (stage := source.stage):
        return lines
    # Where the stage says it, else where the whole file does.
    own, replaced = f"stages.{stage.number}.", tuple(f"{name}." for name in stage.replaced)
    whole = {path: line for path, line in lines.items() if not path.startswith(replaced)}
    return whole | {path.removeprefix(own): line for path, line in lines.items() if path.startswith(own)}
