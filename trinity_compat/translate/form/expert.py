"""Every field of a Trinity YAML as one of a form, from the schema of the newest release.

An empty text is the release's default, and is not written.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args, get_origin

import yaml

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import copied, leaves, put, value_at
from trinity_compat.common.releases import TRINITY
from trinity_compat.job.settings import SECTION, SETTINGS
from trinity_compat.translate.defaults import same
from trinity_compat.translate.form.result import FormRemark, FormResult
from trinity_compat.translate.hand_written_yaml import TOOL_PARSERS
from trinity_compat.translate.replay import PRIORITY_ARGUMENTS
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.trinity_fields import fate_of
from trinity_compat.translate.verl_from_trinity import completed_config, from_launch, verl_settings
from trinity_compat.translate.verl_script import verl_script
from trinity_compat.trinity.algorithms import ALGORITHMS, FUNCTIONS, KINDS
from trinity_compat.trinity.config.complete import completed
from trinity_compat.trinity.config.emit import dump, scalar
from trinity_compat.trinity.config.read import load_value
from trinity_compat.trinity.config.schema import FieldType, Schema, SchemaField, schema
from trinity_compat.trinity.config.validate import validate

YAML = "trinity.yaml"
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Model": ("model",),
    "Buffer": ("buffer",),
    "Explorer and synchronizer": ("explorer", "synchronizer"),
    "Trainer": ("trainer",),
    "Algorithm": ("algorithm",),
    "Cluster, monitor and log": ("cluster", "monitor", "log", "service"),
    "Data processor": ("data_processor",),
    "Run and stages": (),  # what no other section has
}
# Sections that a YAML has any number of, each with the fields that most of them set.
REPEATED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("buffer.explorer_input.tasksets", "buffer.explorer_input.eval_tasksets"),
        (
            *("name", "path", "split", "subset_name", "format.prompt_key", "format.response_key"),
            *("default_workflow_type", "default_reward_fn_type", "repeat_times", "rollout_args.temperature"),
        ),
    ),
    "explorer.auxiliary_models": (
        *("model_path", "name", "engine_num", "tensor_parallel_size", "gpu_memory_utilization"),
        *("max_model_len", "max_prompt_tokens", "max_response_tokens", "temperature"),
    ),
}
_REPLAY = (
    "buffer.trainer_input.experience_buffer.replay_buffer.priority_fn",
    "buffer.explorer_output.replay_buffer.priority_fn",
)
_OURS = f"trainer.trainer_config.{SECTION}"
_FUNCTIONS = {f"algorithm.{kind}": FUNCTIONS[kind] for kind in KINDS}
_NAMES: Mapping[str, Iterable[str]] = {
    "algorithm.algorithm_type": ALGORITHMS,
    "algorithm.sample_strategy": ("default", "mix", "staleness_control"),  # those that a run here knows
    "explorer.rollout_model.tool_call_parser": TOOL_PARSERS,
    **dict.fromkeys(_REPLAY, PRIORITY_ARGUMENTS),
    **_FUNCTIONS,
}
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ExpertField:
    """One field: its dotted path, and ``default`` as the text that stands for it.

    ``kind`` is that of the schema; ``entries`` of a section in `REPEATED`; anything else that is not a scalar
    is ``yaml``. ``first`` and ``others``: the fields of an entry, whose paths begin there.
    """

    path: str
    kind: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    optional: bool = False
    of: tuple[str, ...] = ()  # of an argument: the functions that have it
    first: tuple[ExpertField, ...] = ()
    others: tuple[ExpertField, ...] = ()


@functools.cache
def expert_fields() -> Mapping[str, tuple[ExpertField, ...]]:
    """Return section → the fields of trinity-rft, our own settings behind the trainer's."""
    rules, found = schema(TRINITY), defaultdict[str, list[ExpertField]](list)
    titles = {root: title for title, roots in SECTIONS.items() for root in roots}
    helps = _helps()
    for path, field in _fields(rules, FieldType("class", class_name=rules.root), "", ()):
        title = titles.get(path.partition(".")[0], "Run and stages")
        found[title].append(_with_entries(_expert_field(path, field, helps.get(path, "")), field, helps))
        found[title] += _arguments(path)
    found["Trainer"] += _own_settings()
    return {title: tuple(found[title]) for title in SECTIONS}


@functools.cache
def by_path() -> Mapping[str, ExpertField]:
    """Return path → field."""
    return {field.path: field for fields in expert_fields().values() for field in fields}


def _with_entries(made: ExpertField, field: SchemaField, helps: Mapping[str, str]) -> ExpertField:
    """Return the field of a repeated section with those of an entry; another one as it is."""
    if made.path not in REPEATED or field.type.item is None:
        return made
    found = {
        name: replace(
            _expert_field(f"{made.path}.*.{name}", each, helps.get(f"{made.path}.0.{name}", "")), path=name
        )
        for name, each in _fields(schema(TRINITY), field.type.item, "", ())
    }
    first = tuple(found.pop(name) for name in REPEATED[made.path])
    return replace(made, kind="entries", first=first, others=tuple(found.values()))


def field_of(path: str) -> ExpertField | None:
    """Return the field of a path, also one of an entry, as ``SECTION.NUMBER.FIELD``; None for another."""
    for root in REPEATED:
        number, _, name = path.removeprefix(f"{root}.").partition(".")
        if path.startswith(f"{root}.") and number.isdecimal() and len(number) < 4:
            section = by_path()[root]
            return next((each for each in (*section.first, *section.others) if each.path == name), None)
    return by_path().get(path)


def numbers_of(paths: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Return repeated section → the numbers of its entries that have one of the paths."""
    found: dict[str, set[int]] = {root: set() for root in REPEATED}
    for path in paths:
        for root in REPEATED:
            if path.startswith(f"{root}.") and field_of(path):
                found[root].add(int(path.removeprefix(f"{root}.").partition(".")[0]))
    return {root: sorted(numbers) for root, numbers in found.items()}


def _fields(
    rules: Schema, kind: FieldType, path: str, inside: tuple[str, ...]
) -> Iterator[tuple[str, SchemaField]]:
    for name, field in rules.classes[kind.class_name].items():
        below = f"{path}.{name}" if path else name
        if field.type.kind != "class":
            yield below, field
        elif field.type.class_name not in inside:
            yield from _fields(rules, field.type, below, (*inside, kind.class_name))


def _expert_field(path: str, field: SchemaField, rows: str) -> ExpertField:
    kind = field.type.kind if field.type.kind in ("str", "int", "float", "bool", "enum") else "yaml"
    fate = fate_of(path)
    said = [f"deprecated: {field.deprecated}" if field.deprecated.lower() != "deprecated" else "deprecated"]
    parts = [*(said if field.deprecated else ()), rows]
    if fate is not None and fate.kind != "read":
        parts.append(f"{fate.kind} in a run here: {'; '.join(filter(None, (fate.why, fate.hint)))}")
    choices = ("true", "false") if kind == "bool" else field.type.values or tuple(_NAMES.get(path, ()))
    default = "" if field.default is None else text_of(field.default, kind)
    return ExpertField(path, kind, default, ". ".join(filter(None, parts)), choices, field.type.optional)


def _arguments(path: str) -> Iterator[ExpertField]:
    """Yield a field for each argument of the functions whose arguments are at ``path``."""
    functions = _signatures(path.removesuffix("_args")) if path.endswith("_args") else {}
    takers = defaultdict[str, dict[str, inspect.Parameter]](dict)
    for function, signature in functions.items():
        for name, parameter in signature.items():
            takers[name][function] = parameter
    for name, found in takers.items():
        yield _argument(f"{path}.{name}", found)


def _signatures(path: str) -> Mapping[str, Mapping[str, inspect.Parameter]]:
    """Return function → its arguments, of the functions that a field chooses from."""
    if path in _REPLAY:
        kind = inspect.Parameter.KEYWORD_ONLY
        return {
            function: {
                name: inspect.Parameter(name, kind, default=value, annotation=float)
                for name, value in arguments.items()
            }
            for function, arguments in PRIORITY_ARGUMENTS.items()
        }
    return {function: row.signature for function, row in _FUNCTIONS.get(path, {}).items()}


def _argument(path: str, takers: Mapping[str, inspect.Parameter]) -> ExpertField:
    """Return the field of an argument, by its annotation; ``takers``: function → its parameter.

    It has no default, since the functions' differ, and so do those of a YAML without any argument.
    """
    wanted = next(iter(takers.values())).annotation
    choices = tuple(map(str, get_args(wanted))) if get_origin(wanted) is Literal else ()
    kind = (
        "enum" if choices else next((each for each in ("bool", "int", "float") if each in str(wanted)), "str")
    )
    defaults = ", ".join(f"{text_of(each.default, 'yaml')} in {name}" for name, each in takers.items())
    choices = ("true", "false") if kind == "bool" else choices
    return ExpertField(path, kind, "", f"Default {defaults}", choices, "None" in str(wanted), tuple(takers))


def _helps() -> dict[str, str]:
    """Return path → the veRL keys behind it, with the reason of the mapping."""
    found = defaultdict[str, list[str]](list)
    for key, row in load_rows().exact.items():
        for path in row.paths(TRINITY):
            found[path].append(f"veRL's {key} ({row.why})")
    return {path: "; ".join(texts[:3]) for path, texts in found.items()}


def _own_settings() -> Iterator[ExpertField]:
    kinds = {"number": "float", "whole": "int", "flag": "bool", "choice": "enum"}
    for name, row in SETTINGS.items():
        choices = ("true", "false") if row.kind == "flag" else row.choices
        default = "" if row.default is None else text_of(row.default, kinds[row.kind])
        yield ExpertField(
            f"{_OURS}.{name}", kinds[row.kind], default, row.help, choices, row.no_limit == "null"
        )


def text_of(value: object, kind: str) -> str:
    """Return the text that stands for a value in a field of ``kind``."""
    if value is None:
        return "null"
    if isinstance(value, str) and kind != "yaml":
        return value
    if isinstance(value, str | bool | int | float):
        return scalar(value)
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip("\n") if value else str(value)


def texts_of(config: Mapping[str, object]) -> dict[str, str]:
    """Return path → text of every field that a configuration sets."""
    tree = copied(config)
    texts: dict[str, str] = {}
    for path, field in reversed(list(by_path().items())):  # parts before what holds them
        value = value_at(tree, path, tree)
        if value is not tree:
            holder, _, name = path.rpartition(".")
            if path.startswith(_OURS) or field.of:
                del value_at(tree, holder)[name]
            elif not value and value_at(config, path):
                continue  # its parts hold all of it
            is_list = isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
            if field.kind == "entries" and is_list:
                texts |= reversed(_texts_of_entries(field, value))
            else:
                texts[path] = text_of(value, "yaml" if field.kind == "entries" else field.kind)
    return dict(reversed(texts.items()))


def _texts_of_entries(section: ExpertField, entries: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    return [
        (f"{section.path}.{number}.{field.path}", text_of(value, field.kind))
        for number, entry in enumerate(entries)
        for field in (*section.first, *section.others)
        if (value := value_at(entry, field.path, entry)) is not entry
    ]


def config_of(texts: Mapping[str, str]) -> tuple[dict[str, object], list[FormRemark]]:
    """Return the configuration that the fields' texts mean, and a remark for each that has no meaning.

    A default is left out, unless ``translate`` wrote the file: there a field that is missing has veRL's.
    """
    remarks: list[FormRemark] = []
    config: dict[str, object] = {}
    for path, text in texts.items():
        if (field := field_of(path)) is None:
            remarks.append(FormRemark("error", f"trinity-rft {TRINITY} has no such field", name=path))
        elif text.strip():
            try:
                put(config, path, _value(text, field))
            except UserError as error:
                line = f"line {error.where.line}: " if error.where and error.where.line else ""
                remarks.append(FormRemark("error", f"{line}{error.message}", error.hint or "", path))
    # The numbers of entries only keep their order, since one may have been removed.
    for root in REPEATED:
        entries = value_at(config, root)
        if isinstance(entries, dict) and all(map(str.isdecimal, entries)):
            put(config, root, [entries[number] for number in sorted(entries, key=int)])
    shorter = config if from_launch(config) else _without_defaults(config)
    # Some rules of trinity-rft's ask whether a field is given, so that it may complete the two otherwise.
    if shorter is not config and _in_full(shorter) != _in_full(config):
        shorter = config
    return shorter, remarks


def _in_full(config: Mapping[str, object]) -> object:
    try:
        return completed(config, TRINITY).config
    except UserError as error:
        return str(error)


def _value(text: str, field: ExpertField) -> object:
    """Return the value of a text. Raises UserError."""
    text = text.replace("\r\n", "\n").strip()
    if field.kind in ("yaml", "entries"):
        return load_value(text, field.path)
    if "${" in text or field.kind in ("str", "enum"):
        return None if text == "null" and field.optional else text
    if text == "null":
        return None
    if field.kind == "bool":
        return _WORDS.get(text.lower(), text)
    with suppress(ValueError):
        return int(text) if field.kind == "int" else float(text)
    return text  # validate says what is expected


def _without_defaults(config: Mapping[str, object]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for path, field in by_path().items():
        value = value_at(config, path, kept)
        default = _value(field.default, field) if field.default else None
        if value is not kept and not same(default, value):
            put(kept, path, value)
    return kept


def made_of_fields(texts: Mapping[str, str]) -> FormResult:
    """Return the YAML of the fields' texts, its script if it has one, and the remarks."""
    config, remarks = config_of(texts)
    problems = [
        FormRemark("error", each.message, each.hint or "", each.path) for each in validate(config, TRINITY)
    ]
    problems += _of_own_settings(config)
    if remarks or problems:
        return FormResult(config=config, remarks=(*remarks, *problems))
    text = dump(config, header=["Written by the studio's page Configure", f"trinity-rft {TRINITY}"])
    script, said = _script(config)
    try:
        verl_settings(completed_config(config, TRINITY))
    except UserError as error:
        said = [FormRemark("error", f"a run here refuses it: {error.message}", error.hint or "")]
    return FormResult(text, script, config, (*said, *_fates(config)))


def _of_own_settings(config: Mapping[str, object]) -> Iterator[FormRemark]:
    for name, row in SETTINGS.items():
        path = f"{_OURS}.{name}"
        value = value_at(config, path, config)
        try:
            if value is not config:
                row.checked(value, path)
        except UserError as error:
            yield FormRemark("error", error.message, error.hint or "", path)


def _script(config: Mapping[str, object]) -> tuple[str, list[FormRemark]]:
    if not from_launch(config):
        why = "no script: a launch of veRL has no settings for tasksets and workflows of a YAML by hand"
        return "", [FormRemark("note", why)]
    try:
        script = verl_script(config, YAML)
    except (UserError, RunError) as error:
        return "", [FormRemark("decide", f"no script: {error.message}", error.hint or "")]
    return script.text, [FormRemark("decide", f"not in the script: {line}") for line in script.unsaid]


def _fates(config: Mapping[str, object]) -> Iterator[FormRemark]:
    """Yield what a run here makes of fields of a YAML by hand."""
    for path, value in () if from_launch(config) else leaves(config):
        fate = None if isinstance(value, list) else fate_of(path)
        if fate is not None and fate.kind != "read":
            rank = "error" if fate.kind == "refused" else "note"
            yield FormRemark(rank, f"{fate.kind} in a run here: {fate.why}", fate.hint, path)
