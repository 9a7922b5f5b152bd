"""The translation itself: an effective veRL configuration in, a Trinity configuration out."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.releases import VERL
from trinity_compat.common.resources import data_json
from trinity_compat.launch import entrypoints
from trinity_compat.launch.model import EnvRef, Launch, Machines, WordPart
from trinity_compat.translate.apply import Draft, apply_rows
from trinity_compat.translate.booleans import with_booleans
from trinity_compat.translate.edited_launch import is_verl_key
from trinity_compat.translate.env_references import EnvReferences, is_unknown
from trinity_compat.translate.findings import judge
from trinity_compat.translate.frozen_variables import with_frozen
from trinity_compat.translate.launch_view import NODES, PER_NODE, KeyRefused, LaunchView, is_finite
from trinity_compat.translate.launch_warnings import launch_cautions
from trinity_compat.translate.model import TranslateOptions, Translation
from trinity_compat.translate.passthrough import carry
from trinity_compat.translate.rows import MappingRow, load_rows
from trinity_compat.translate.sections.asynchronous import as_main_ppo
from trinity_compat.translate.sft import translate_sft
from trinity_compat.translate.start_folder import recomposed_seen_from, seen_from
from trinity_compat.translate.unknown import USER_RULE
from trinity_compat.translate.verl_from_trinity import compat_path
from trinity_compat.trinity.config import validate
from trinity_compat.verl_config import effective_config, recompose, upgrade
from trinity_compat.verl_config.model import EffectiveConfig, Setting
from trinity_compat.verl_config.pinned import pinned_tree
from trinity_compat.verl_config.upgrade import UpgradeResult


def translate(
    effective: EffectiveConfig, options: TranslateOptions, *, root: Path | None = None, report: bool = True
) -> Translation:
    """Return the Trinity configuration that means what ``effective`` means, and a finding per key.

    Without ``report`` findings and the launch's warnings, half of the work, are left out. Config files that
    the launch names are read inside ``root`` (its working directory if None). Raises UserError for a main
    that isn't translated, a batch size that doesn't divide, a requested GPU split that cannot run, and an
    unknown value that feeds a number.
    """
    refuse_other_mains(effective)
    effective = with_booleans(effective)
    if effective.launch.taken_for in entrypoints.SUPERVISED:
        made = translate_sft(effective, options)
        config, provenance = dict(made.config), dict(made.provenance)
        _assign(config, provenance, options)
        made = replace(made, config=config, provenance=provenance)
    else:
        symbols = EnvReferences(frozen=set(options.frozen))
        made, both_ways = _translated(effective, options, root, symbols, report=report)
        if both_ways:
            symbols = EnvReferences(frozen=set(options.frozen | both_ways))
            made, _ = _translated(effective, options, root, symbols, report=report)
    return with_frozen(made, effective, options)


def _translated(
    effective: EffectiveConfig,
    options: TranslateOptions,
    root: Path | None,
    symbols: EnvReferences,
    *,
    report: bool,
) -> tuple[Translation, frozenset[str]]:
    """Return the translation, and the variables that it writes inconsistently.

    These stand by their name in one place and by their default's text in another.
    """
    view, renamed = view_of(effective, options, root, symbols)
    if report:  # a YAML that is translated again has first to say which of two lines decides
        _refuse_out_of_range(view)
    rows = load_rows(options.rules)
    draft = apply_rows(view, rows)
    carry(view, draft)
    if report:
        draft.cautions += launch_cautions(view)
    findings = judge(view, rows, draft, renamed).findings() if report else ()
    config = symbols.written(draft.config)
    provenance = {path: str(symbols.written(note)) for path, note in draft.provenance.items()}
    _assign(config, provenance, options)
    given = {path for key, paths in draft.paths.items() if view.is_set(key) for path in paths}
    made = Translation(
        config,
        provenance,
        findings,
        tuple(draft.cautions),
        _facts(view, draft),
        frozenset(given.union(options.assignments)),
    )
    return made, _written_both_ways(view, draft)


def view_of(
    effective: EffectiveConfig, options: TranslateOptions, root: Path | None, symbols: EnvReferences
) -> tuple[LaunchView, UpgradeResult]:
    """Return the launch in main_ppo's keys of the pinned veRL, and the keys that had other names.

    Raises UserError for a value that veRL refuses too.
    """
    seen = seen_from(effective, options.folder)
    upgraded = upgrade(seen)
    view = LaunchView(
        config=upgraded.config,
        symbolic=symbolic_settings(effective, symbols, root, options.folder) or upgraded.config.settings,
        symbols=symbols,
        options=options,
        origin=seen,
        keys_given_explicitly=upgraded.explicit,
    )
    # A value where the pinned veRL has a section makes veRL's workers fail.
    sections = pinned_tree(view.config.flavour or "ppo_trainer")
    for key, setting in view.config.settings.items():
        section = value_at(sections, key) if setting.where is not None else None
        if section and isinstance(section, Mapping) and not isinstance(setting.value, Mapping | None):
            held = ", ".join(sorted(name for name in section if not name.startswith("_"))[:4])
            raise view.refused(
                key,
                f"{view.written(key)}: veRL {VERL} has a section there ({held}, …)",
                f"write a key of it: {key}.NAME=VALUE",
            )
    view, moves = as_main_ppo(view)
    return view, replace(upgraded, moves=(*upgraded.moves, *moves))


_LIMITS = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}


def _refuse_out_of_range(view: LaunchView) -> None:
    """Raise UserError for a number that vLLM or PyTorch refuses at the start."""
    for key, row in data_json("translators/by_hand/verl/value_ranges.json").items():
        value, limits = view.config.get(key), row["limits"]
        if not view.is_set(key) or not is_finite(value):
            continue
        if not all(_LIMITS[word](value, limit) for word, limit in limits.items()):
            allowed = " and ".join(f"{word} {limit}" for word, limit in limits.items())
            told = f"{view.written(key)}: {row['refused_by']} refuses it ({row['source']})"
            raise view.refused(key, told, f"write a number {allowed}")


def _written_both_ways(view: LaunchView, draft: Draft) -> frozenset[str]:
    """Return the variables that the YAML would write both by name and by their default's text.

    These are variables with a default that are in a text of the YAML and behind a value that is not a text
    any more, and those of such a value whose default holds an unknown part (a list of paths).
    """
    symbols = view.symbols
    if not symbols.pieces:
        return frozenset()
    as_names = symbols.variables(draft.config)
    as_text: set[str] = set()
    unknown: set[str] = set()
    for key, setting in view.symbolic.items():
        parts = {name: part for part, _ in symbols.within(setting.value) if (name := _with_default(part))}
        text = symbols.plain(setting.value)
        written = [draft.at(path) for path in draft.paths.get(key, ())]
        # A piece of a text that was taken apart (a folder of a path) holds no mark, and is no value of it.
        if any(
            value == text or not isinstance(value, str | None)
            for value in written
            if not symbols.within(value)
        ):
            as_text |= parts.keys()
        if type(setting.value) is not type(view.config.get(key)):
            unknown |= {name for name, part in parts.items() if is_unknown(part)}
    return frozenset(as_text & as_names | unknown)


def _with_default(part: WordPart) -> str | None:
    source = part.source
    return source.name if isinstance(source, EnvRef) and source.default is not None else None


def refuse_other_mains(effective: EffectiveConfig) -> None:
    """Raise UserError unless the launch's main is translated."""
    launch = effective.launch
    entrypoints.refuse(launch.module, launch.where, launch.main)


def symbolic_settings(
    effective: EffectiveConfig, symbols: EnvReferences, root: Path | None, folder: str | None = None
) -> Mapping[str, Setting] | None:
    """Return the settings carried forward with marks; None if none is symbolic or marks can't be placed."""
    composed = recomposed_seen_from(effective, symbols, root, folder)
    return upgrade(composed).config.settings if composed is not None else None


def _assign(config: dict[str, object], provenance: dict[str, str], options: TranslateOptions) -> None:
    """Apply ``--set``. Raises UserError for a key of veRL, or a value that trinity-rft would refuse."""
    draft = Draft(config, provenance)
    for path in options.assignments:
        if is_verl_key(path, options.trinity):  # of a launch's there is none left
            raise UserError(f"--set {path}: this is a veRL key", hint="set it in the veRL YAML")
    for path, value in options.assignments.items():
        try:
            given = safe_load(value) if isinstance(value, str) else value
            draft.put(path, given, f"--set {path}")
        except (IndexError, ValueError):
            raise UserError(f"--set {path}: a list on this path has no such position") from None
        except yaml.YAMLError:
            raise UserError(f"--set {path}: the value is not valid YAML") from None
    if not options.assignments:
        return
    for problem in validate(config, options.trinity):
        if any(
            problem.path == name or problem.path.startswith(name + ".") or name.startswith(problem.path + ".")
            for name in options.assignments
        ):
            raise UserError(f"--set {problem.path}: {problem.message}", hint=problem.hint)


def _facts(view: LaunchView, draft: Draft) -> dict[str, object]:
    rollout = draft.config.get("explorer", {}).get("rollout_model", {})
    return {
        "updates_per_step": view.r,
        "verl_version": view.origin.version.value,
        "verl_version_why": view.origin.version.why,
        "target": view.options.trinity,
        "engines": rollout.get("engine_num"),
        "compat": compat_path(view.options.trinity),
    }


_MOST = 24  # arguments that are left out, one after the other
_GIVE = "give it: "


@dataclass(frozen=True, slots=True)
class PartialTranslation:
    """The translation of a launch without the arguments that cannot be translated.

    ``refused`` are these arguments' errors; ``dropped`` those that a rule of the user's drops, with the rule.
    """

    translation: Translation
    refused: tuple[KeyRefused, ...]
    dropped: tuple[tuple[KeyRefused, MappingRow], ...] = ()


def translate_partially(
    effective: EffectiveConfig, options: TranslateOptions, *, root: Path | None = None
) -> PartialTranslation:
    """Translate ``effective``, leaving out the arguments whose value cannot be translated.

    Raises UserError if something else than an argument of the launch prevents the translation.
    """
    refused: list[KeyRefused] = []
    dropped: list[tuple[KeyRefused, MappingRow]] = []
    rows = load_rows(options.rules)
    while True:
        try:
            return PartialTranslation(
                translate(effective, options, root=root), tuple(refused), tuple(dropped)
            )
        except KeyRefused as error:
            launch = _without(effective.launch, error)
            if launch is None or len(refused) == _MOST:
                raise
            row = rows.find(error.spelling.lstrip("+"))
            if row is not None and row.how == "drop" and row.code == USER_RULE:
                dropped.append((error, row))
            else:
                refused.append(error)
        effective = recompose(effective, launch, root)


def _without(launch: Launch, error: KeyRefused) -> Launch | None:
    """Return ``launch`` without the argument that an error names; None if it names none."""
    left = tuple(
        word
        for word in launch.arguments
        if word.where != error.where or not word.text.startswith(f"{error.spelling}=")
    )
    if len(left) == len(launch.arguments):
        return None
    machines = launch.machines
    if error.spelling.lstrip("+") in (NODES, PER_NODE):  # nothing to compare the script's lines with
        machines = Machines(unsplit=machines.unsplit)
    return replace(launch, arguments=left, machines=machines)


def as_ppo(effective: EffectiveConfig, *, root: Path | None = None) -> EffectiveConfig | None:
    """Return a launch of a main that isn't translated as if it started main_ppo, to report on its keys.

    None if the keys aren't that main's. Raises UserError if it cannot be composed.
    """
    launch = effective.launch
    if not entrypoints.has_verl_keys([word.text for word in launch.arguments]):
        return None
    launch = replace(launch, main=entrypoints.PPO)
    if effective.flavour:  # composed from its own configuration
        return replace(effective, launch=launch)
    return effective_config(launch, root=root)


def refusal_of_all(refused: Sequence[KeyRefused]) -> UserError:
    """Return one error that names everything that prevents the translation, and what to give."""
    first, *others = refused
    more = "".join(f"\n{error.where}: {error.message}" for error in others)
    return UserError(f"{first.message}{more}", where=first.where, hint=_hint(refused))


def _hint(refused: Sequence[KeyRefused]) -> str | None:
    hints = list(dict.fromkeys(error.hint for error in refused if error.hint))
    if len(hints) > 1 and all(hint.startswith(_GIVE) for hint in hints):
        return "give them: " + " ".join(hint.removeprefix(_GIVE) for hint in hints)
    return "; ".join(hints) or None
