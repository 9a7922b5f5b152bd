"""A launch composed as Hydra would compose it under one veRL release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import KEYS
from trinity_compat.common.nested import copied, nested, nodes, paired_leaves
from trinity_compat.common.paths import from_home
from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.launch.bash.files import absolute
from trinity_compat.launch.entrypoints import DAPO, PPO
from trinity_compat.launch.model import Diagnostic, Launch
from trinity_compat.verl_config.apply import AppliedOverrides, apply_overrides, lookup
from trinity_compat.verl_config.arguments import GivenOverride, LaunchArguments, read_arguments
from trinity_compat.verl_config.compose import Choices, CompositionError, compose, defaults_list, merge_parts
from trinity_compat.verl_config.config_folders import (
    ConfigFolder,
    readable_file,
    refuse_changed,
    starts_out_of_reach,
)
from trinity_compat.verl_config.config_search import (
    SUPERVISED,
    SearchPath,
    every_release_of,
    known_main,
    releases_of,
    search_path,
    searches,
    user_keys,
)
from trinity_compat.verl_config.fork_distance import compared, folder_of, sources_of, with_keys_of_code
from trinity_compat.verl_config.grammar import ADD, DELETE, FORCE, Override
from trinity_compat.verl_config.infer import ReleaseFit, choose, fit
from trinity_compat.verl_config.interpolate import Resolver, TooManyReferences, is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig, Fork, Setting, VersionChoice
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import FLAVOURS, MODEL_ENGINE, Tree, check_version, flavour_with
from trinity_compat.verl_config.source_tree import Checkout, find_checkout
from trinity_compat.verl_config.upgrade import is_well_known
from trinity_compat.verl_config.yaml_files import ConfigFile

# Sections whose dataclasses main_ppo builds in every launch; the critic's and the reference's only in some.
_BUILT = ("actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model.")


@dataclass(frozen=True, slots=True)
class ReadLaunch:
    """A launch with its arguments read, before a release is chosen."""

    launch: Launch
    arguments: LaunchArguments
    root: Path
    checkout: Checkout | None = None  # the tree of code that it starts from, where that counts

    def path(self, version: str) -> SearchPath:
        """Return the search path under a release."""
        return search_path(self.launch, version, self.arguments, self.root, self.checkout)


def effective_config(
    launch: Launch, *, version: str | None = None, root: Path | None = None, fork_config: bool = True
) -> EffectiveConfig:
    """Compose ``launch`` as Hydra would.

    The configuration is that of the veRL tree from which the script starts, if there is one; else of
    ``version``, else of the release that fits its keys best. ``version``, or ``fork_config`` false, ignores
    such a tree.

    Overrides that Hydra would refuse are diagnostics of severity ``error``; their keys have a value in
    ``settings`` all the same. Config files are read only inside ``root`` (the launch's working directory if
    None, where that may be read) and inside the script's own repository. An unknown main yields its given
    keys alone. Raises UserError where no configuration can be made: an unknown version, a missing config file
    or folder, a config group without that choice.
    """
    read = _read_launch(launch, root, fork_config and version is None)
    if not known_main(launch.taken_for) and not (read.checkout and read.checkout.main):
        # The overrides of a main whose configuration we don't know.
        applied = apply_overrides({}, tuple(_forced(given) for given in read.arguments.overrides), "")
        notes = [*read.arguments.diagnostics, *applied.diagnostics]
        settings = settings_of(applied.tree, {}, read.launch, notes, applied.origins)
        why = f"{read.launch.module} is not a main that trinity-compat knows"
        asked = asked_for(version)
        choice = replace(asked, why=f"{asked.why}; {why}") if asked else VersionChoice(VERL, why)
        others = _others(read.arguments, ())
        return EffectiveConfig(read.launch, choice, "", settings, tuple(settings), (), tuple(notes), others)
    return compose_best(read, asked_for(version))


def asked_for(version: str | None) -> VersionChoice | None:
    """Return the user's own choice of a release. Raises UserError for an unknown one."""
    if not version:
        return None
    known = check_version(version)
    if known == version:
        return VersionChoice(known, f"requested ({version})")
    return VersionChoice(known, f"used instead of {version}, which was requested", stands_in=True)


def compose_best(read: ReadLaunch, choice: VersionChoice | None) -> EffectiveConfig:
    """Compose under ``choice``; if None under the release that fits best.

    Config files of veRL's that the launch names or starts from are compared with the releases. Raises
    UserError.
    """
    own_tree = isinstance(read.path(VERL).tree, ConfigFolder)
    if choice is None and not own_tree:
        choice = choose(fit_releases(read))
    fork = None
    if own_tree or read.checkout:
        path = read.path(choice.value if choice else VERL)
        choices = _choices(_split_groups(read.arguments.overrides, path)[0])
        fork, nearest = compared(path, choices, read.launch.module, choice.value if choice else None)
        choice = choice or nearest
    assert choice is not None
    return compose_as(read, choice, fork)


def recompose(config: EffectiveConfig, launch: Launch, root: Path | None) -> EffectiveConfig:
    """Compose ``launch``, a variant of ``config``'s own, under the same release or fork. Raises UserError."""
    return compose_as(_read_launch(launch, root, config.from_tree), config.version, config.fork)


def infer_version(launch: Launch, *, root: Path | None = None) -> VersionChoice:
    """The release that takes all overrides of ``launch`` (the newest such), with the reason.

    When none takes all, the one that refuses the fewest. Raises UserError as effective_config does.
    """
    return choose(fit_releases(_read_launch(launch, root)))


def version_sensitive(
    launch: Launch, chosen: str, *, root: Path | None = None
) -> list[tuple[str, dict[str, object]]]:
    """Keys whose value depends on which of the equally fitting releases is meant.

    Each with its value per release, absent where the release has no such key. Keys that only
    some of the releases have are left out unless their value isn't null.
    """
    read = _read_launch(launch, root)
    best = fit_releases(read).best if known_main(launch.taken_for) else ()
    if chosen not in best or len(best) < 2:
        return []
    values = {version: compose_as(read, VersionChoice(version, "")).settings for version in best}
    out = []
    for key in values[chosen]:
        seen = {version: values[version][key].value for version in best if key in values[version]}
        if any(value != seen[chosen] for value in seen.values()):
            out.append((key, seen))
    return out


def as_tree(config: EffectiveConfig) -> dict[str, object]:
    """The configuration as nested plain containers, interpolations resolved."""
    return nested({key: setting.value for key, setting in config.settings.items()})


def _read_launch(launch: Launch, root: Path | None, fork_config: bool = False) -> ReadLaunch:
    if root is None:  # where no file of the working directory may be read, the folder of the reading
        root = Path(launch.roots[0] if starts_out_of_reach(launch) else launch.cwd)
    checkout = find_checkout(launch, root) if fork_config else None
    read = ReadLaunch(launch, read_arguments(launch), root, checkout)
    # DAPO's keys, by which a user's own main is taken for its recipe, are main_ppo's too since 0.9.
    if launch.main != DAPO or (checkout and checkout.main):
        return read
    as_ppo = replace(read, launch=replace(launch, main=PPO))
    return min(read, as_ppo, key=_fewest_refused)


def settled(launch: Launch, root: Path | None = None) -> Launch:
    """Return ``launch`` as taken for the main that it is composed as; as it is where that cannot be told."""
    try:
        return _read_launch(launch, root, fork_config=True).launch if launch.main else launch
    except UserError:
        return launch


def _fewest_refused(read: ReadLaunch) -> int:
    """Return how many keys the release that fits best refuses."""
    return min(len(keys) for keys in fit_releases(read).misfits.values())


def fit_releases(read: ReadLaunch) -> ReleaseFit:
    """Return how well each release takes the launch's overrides.

    Where none of the releases that have its main takes all, those that have it under another name count too.
    """
    main = read.launch.taken_for
    found = _fit_of(read, releases_of(main))
    others = every_release_of(main)
    return _fit_of(read, others) if others and all(found.misfits.values()) else found


def _fit_of(read: ReadLaunch, candidates: tuple[str, ...]) -> ReleaseFit:
    newest = read.path(candidates[-1])
    flavour, content = user_keys(newest)
    overrides = [given.override for given in read.arguments.overrides]
    if newest.primary in SUPERVISED:
        return fit(overrides, newest.primary, {}, candidates)
    known: Mapping[str, int] = {}
    if flavour is None:
        overrides += [Override(key, "", key, value) for key, value in nodes(content).items()]
    elif newest.places:
        known = _known(read, candidates)
    # model_engine=megatron (0.8 and later) makes ppo_trainer the megatron flavour, others likewise.
    engines = (flavour_with(each.value) for each in overrides if each.key == MODEL_ENGINE)
    return fit(overrides, next(engines, flavour or "ppo_trainer"), known, candidates)


def _known(read: ReadLaunch, candidates: tuple[str, ...]) -> dict[str, int]:
    """Return key → releases (as bits) whose files set it above veRL's own: a recipe's or the user's.

    A release without the file has no bit.
    """
    bits: dict[str, int] = {}
    for version in candidates:
        flavour, content = user_keys(read.path(version))
        for key in nodes(content) if flavour else ():
            bits[key] = bits.get(key, 0) | 1 << VERL_RELEASES.index(version)
    return bits


def compose_as(read: ReadLaunch, choice: VersionChoice, fork: Fork | None = None) -> EffectiveConfig:
    """Compose under a chosen release, or under ``fork``, whose nearest release it is. Raises UserError."""
    path = read.path(choice.value)
    groups, plain = _split_groups(read.arguments.overrides, path)
    choices = _choices(groups)
    hydra = [given for given in read.arguments.hydra if not searches(given)]
    notes = [*read.arguments.diagnostics, *map(_hydra_note, hydra)]
    tree, files = _composed(path, choices, groups)
    release = f"the fork's configuration ({fork.folder})" if fork else f"verl {choice.value}"
    applied = apply_overrides(tree, plain, release)
    notes += [*_path_notes(path), *applied.diagnostics]
    unread = _unread(applied, _flavour(path, choices))
    notes += [
        _misplaced_note(given, choice) or _unread_note(given, release)
        for given in unread
        if not is_well_known(given.override.key)
    ]
    settings = settings_of(applied.tree, files, read.launch, notes, applied.origins)
    _refuse_changed_files(settings, read.launch)
    set_keys = _set_keys(settings, applied)
    others = [*_others(read.arguments, groups)]
    # Empty dictionaries merged into sections that have keys: they change nothing.
    others += [
        Setting(key, {}, given.where, given.value_word, given.spelling)
        for key, given in applied.origins.items()
        if key not in settings and isinstance(lookup(applied.tree, key), dict)
    ]
    config = EffectiveConfig(
        read.launch,
        choice,
        _flavour(path, choices),
        settings,
        set_keys,
        tuple(key for key in set_keys if _below(key, [*applied.unknown, *(g.override.key for g in unread)])),
        tuple(notes),
        tuple(others) if read.launch.arguments else (),
        fork=fork,
        from_tree=read.checkout is not None,
    )
    sources = sources_of(path) if fork or read.checkout else None
    return with_keys_of_code(config, sources, folder_of(path)) if sources else config


def _others(arguments: LaunchArguments, groups: tuple[GivenOverride, ...]) -> tuple[Setting, ...]:
    """Return the arguments that set no key; of a repeated one the last."""
    found = {}
    for name, word in arguments.flags.words.items():
        flag = f"--{name.replace('_', '-')}"
        found[flag] = Setting(flag, arguments.flags.values[name], word.where, None, flag)
    deleted = [given for given in arguments.overrides if given.override.op == DELETE]
    for given in (*arguments.hydra, *groups, *deleted):
        override = given.override
        key = f"{override.key}@{override.package}" if override.package else override.key
        key = f"~{key}" if override.op == DELETE else key
        found[key] = Setting(key, override.value, given.where, None, given.spelling)
    return tuple(found.values())


def _hydra_note(given: GivenOverride) -> Diagnostic:
    message = f"{given.spelling} is Hydra's own setting, not part of veRL's configuration"
    return Diagnostic("TP210", message, given.where)


def _unread(applied: AppliedOverrides, flavour: str) -> list[GivenOverride]:
    """Added keys that neither this release's sections nor the pinned one's have a use for."""
    if not applied.added:
        return []
    pinned = pinned_release(SUPERVISED[1] if flavour in SUPERVISED else flavour)
    return [given for given in applied.added if not pinned.takes(given.override.key)]


def _unread_note(given: GivenOverride, release: str) -> Diagnostic:
    message = f"{given.spelling}: {release} has no such key; Hydra adds it, veRL's code may not read it"
    return Diagnostic("TP214", message, given.where)


def _misplaced_note(given: GivenOverride, choice: VersionChoice) -> Diagnostic | None:
    """Return the error for a key of the section above, added to one that veRL makes a dataclass of.

    Source: ``omega_conf_to_dataclass`` (utils/config.py, 0.9.1) passes every key of the section to its class,
    which ends with a TypeError for a name without a field. None for all other keys, and under older releases,
    where such a section may have been a plain dictionary.
    """
    key, pinned = given.override.key, pinned_release(FLAVOURS[0])
    section, _, name = key.rpartition(".")
    right = f"{section.rpartition('.')[0]}.{name}"
    built = key.startswith(_BUILT) and choice.value == VERL and pinned.takes(key) is False
    if not built or right not in pinned.nodes:
        return None
    message = (
        f"veRL ends at {given.spelling} with a TypeError: {section} becomes a dataclass without such a "
        f"field; write {right}="
    )
    return Diagnostic("TP215", message, given.where, "error")


def _refuse_changed_files(settings: Mapping[str, Setting], launch: Launch) -> None:
    """Raise UserError for a file that a program changed: one that it wrote by name, or that is here."""
    for setting in settings.values() if launch.unread else ():
        named = setting.value if setting.where is not None and isinstance(setting.value, str) else ""
        path = Path(launch.cwd).absolute() / from_home(named)
        is_read = named.endswith((".yaml", ".yml", ".py")) and "://" not in named
        if is_read and (absolute("/", str(path)) in launch.unread or readable_file(path, *launch.roots)):
            refuse_changed(path, launch.unread)


def _set_keys(settings: Mapping[str, Setting], applied: AppliedOverrides) -> tuple[str, ...]:
    """Keys of the user's config files first, then those of the overrides in their order."""
    files = [key for key, setting in settings.items() if setting.where and key not in applied.origins]
    return (*files, *(key for key in applied.origins if key in settings))


def _below(key: str, parents: list[str]) -> bool:
    return any(key == parent or key.startswith(parent + ".") for parent in parents)


def _split_groups(
    overrides: tuple[GivenOverride, ...], path: SearchPath
) -> tuple[tuple[GivenOverride, ...], tuple[GivenOverride, ...]]:
    """Overrides of config groups (``model_engine=megatron``) apart from those of values."""
    groups = tuple(
        given
        for given in overrides
        if path.has_group(given.override.key) and not isinstance(given.override.value, dict)
    )
    return groups, tuple(given for given in overrides if given not in groups)


def _choices(groups: tuple[GivenOverride, ...]) -> Choices:
    """Hydra's reading of group overrides. Raises CompositionError for values that are no choice."""
    choices = Choices()
    for given in groups:
        override = given.override
        key = f"{override.key}@{override.package}" if override.package else override.key
        if override.op == FORCE:
            raise CompositionError(
                f"'{override.line}': ++ cannot be used with a config group",
                where=given.where,
                hint=f"write +{key}=CHOICE",
            )
        if override.op == DELETE:
            choices.deleted[key] = override.value
        elif not isinstance(override.value, str | list):
            raise CompositionError(
                f"'{override.line}': {key} is a config group, its value names one of its files",
                where=given.where,
                hint=f"to set a value inside, write its full key: {key}.NAME=…",
            )
        elif override.op == ADD:
            choices.appended.append((override.key, override.package, override.value))
        else:
            choices.overrides[key] = override.value
    return choices


def _composed(
    path: SearchPath, choices: Choices, groups: tuple[GivenOverride, ...]
) -> tuple[dict[str, object], Mapping[str, Where | None]]:
    """The configuration that the values are set on, and which of its keys stand in the user's files."""
    # Without files or groups of the user's it is the release's own tree, composed once for all launches.
    tree = path.tree
    if isinstance(tree, ConfigFolder) or groups or path.places or not path.declares_tree:
        parts = _defaults(path, choices, groups)
        return merge_parts(parts), _file_origins(parts, path)
    try:
        known, config = _by_itself(tree, path.primary)
    except CompositionError as error:
        error.where = path.where
        raise _with_hint(error, path) from None
    choices.known.update(known)
    return copied(config), {}


def _with_hint(error: CompositionError, path: SearchPath) -> CompositionError:
    if not path.find(path.primary):
        error.hint = path.instead
    return error


@lru_cache(maxsize=64)
def _by_itself(tree: Tree, primary: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """(choices made, configuration) of a config file of veRL's own, to read only. Raises CompositionError."""
    choices = Choices()
    config = compose(tree.find, primary, choices)
    return choices.known, config


def _defaults(
    path: SearchPath, choices: Choices, groups: tuple[GivenOverride, ...]
) -> list[tuple[str, ConfigFile]]:
    """The final defaults list; an error carries the place of the group override that caused it."""
    try:
        return defaults_list(path.find, path.primary, choices)
    except CompositionError as error:
        if error.where is None:
            blamed = [given for given in groups if f"{given.override.key}" in error.message]
            error.where = blamed[0].where if blamed else path.where
        raise _with_hint(error, path) from None


def _flavour(path: SearchPath, choices: Choices) -> str:
    if path.primary in SUPERVISED:
        return path.primary
    chosen = flavour_with(choices.known.get("model_engine"))
    return FLAVOURS[1] if user_keys(path)[0] == FLAVOURS[1] else chosen


def _path_notes(path: SearchPath) -> list[Diagnostic]:
    if not path.from_tree_unasked:
        return path.notes
    message = (
        f"Hydra would not find veRL's own configs: add hydra.searchpath [pkg://verl.trainer.config] to "
        f"{path.primary}.yaml"
    )
    return [*path.notes, Diagnostic("TP208", message, path.where, "error")]


def _file_origins(parts: list[tuple[str, ConfigFile]], path: SearchPath) -> dict[str, Where | None]:
    """Dotted key → the line of the user's config file that sets it last; None where a default does."""
    out: dict[str, Where | None] = {}
    for package, file in parts:
        prefix = f"{package}." if package else ""
        sets = path.sets(file)
        if not sets and not out:
            continue
        if file.items is not None:
            out[package] = Where(file.source, 1) if sets else None
        for key in nodes(file.config):
            where = Where(file.source, file.lines.get(key, 0)) if sets else None
            out[prefix + key] = where
    return out


def settings_of(
    tree: Mapping[str, object],
    files: Mapping[str, Where | None],
    launch: Launch,
    notes: list[Diagnostic],
    origins: Mapping[str, GivenOverride] | None = None,
) -> dict[str, Setting]:
    """The leaves of ``tree`` resolved, each with its place: an override's, else its line in a file."""
    resolver = Resolver(tree, launch.environ, launch.env, launch.lacks, launch.assigned)
    origins = origins or {}
    try:
        resolved = resolver.resolve()
    except TooManyReferences as error:
        places = {**files, **{key: given.where for key, given in origins.items()}}
        error.where = error.place(places) or launch.where
        raise
    out: dict[str, Setting] = {}
    for key, raw, value in paired_leaves(tree, resolved):
        if len(out) == KEYS:
            where = _place_of(next(reversed(out.values()))) or launch.where
            raise UserError(f"a configuration of more than {KEYS} keys is not read", where=where)
        given = origins.get(key)
        shown = str(raw) if is_interpolated(raw) else None
        if given is None:
            out[key] = Setting(key, value, files.get(key), None, key, shown)
        else:
            spelling = given.spelling if given.override.key == key else key
            out[key] = Setting(key, value, given.where, given.value_word, spelling, shown)
    notes += _unresolved(resolver.errors, out, launch)
    for name, word in launch.assigned.items() if launch.assigned else ():
        read = (key for key, one in out.items() if f"oc.env:{name}" in (one.interpolation or ""))
        if name not in launch.env and (key := next(read, "")):
            said = f"{key} reads {name}, which the script sets without export"
            message = f"{said}: the launch has it only where the environment has it; write export {name}"
            notes.append(Diagnostic("TP119", message, word.where))
    return out


def _unresolved(
    errors: Mapping[tuple[str | int, ...], str], settings: Mapping[str, Setting], launch: Launch
) -> list[Diagnostic]:
    """One note per broken reference, at the key that the launch sets; those that refer to it are left out."""
    blamed: dict[str, str] = {}
    for path, text in errors.items():
        key = ".".join(map(str, path))
        # All that refers to a broken key fails with the same text; the user's own line is the one to blame.
        if text not in blamed or (key in settings and settings[key].where):
            blamed[text] = key
    return [
        Diagnostic("TP211", f"{key}: {text}", _place_of(settings.get(key)) or launch.where, "error")
        for text, key in blamed.items()
    ]


def _place_of(setting: Setting | None) -> Where | None:
    return setting.where if setting else None


def _forced(given: GivenOverride) -> GivenOverride:
    override = given.override
    return (
        given if override.op == DELETE else replace(given, override=replace(override, op=FORCE, package=None))
    )
