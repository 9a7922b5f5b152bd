"""Collects an Audit from files and folders: reads and translates each, and goes on after a bad script."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trinity_compat.audit.ignored import directives, silenced
from trinity_compat.audit.model import NOT_TRANSLATED, OTHER_MAIN, REFUSED, Audit, LaunchAudit
from trinity_compat.audit.phrases import listed
from trinity_compat.common import limits, reading_process
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import sections_above
from trinity_compat.common.readable_files import named_start
from trinity_compat.common.releases import VERL
from trinity_compat.launch import read_script, read_text, refuse_broken_script, refuse_lost_arguments
from trinity_compat.launch.entrypoints import refusal
from trinity_compat.launch.environment import unused_variables
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.launch.model import Launch, Reading
from trinity_compat.launch.script_files import files_of
from trinity_compat.translate import forks
from trinity_compat.translate.edited_launch import apply_rules, with_assigned_keys
from trinity_compat.translate.frozen_variables import not_read_by_hydra
from trinity_compat.translate.model import Finding, Status, TranslateOptions, notice
from trinity_compat.translate.rows import MappingTable, load_rows
from trinity_compat.translate.self_defeating import self_defeating
from trinity_compat.translate.stock_verl import remark
from trinity_compat.translate.translator import PartialTranslation, as_ppo, translate_partially
from trinity_compat.translate.unknown import UNKNOWN, is_unknown, reason_of, reason_without_release
from trinity_compat.verl_config import config_from_yaml, effective_config, upgrade
from trinity_compat.verl_config.arguments import read_arguments
from trinity_compat.verl_config.model import EffectiveConfig, Setting, VersionChoice
from trinity_compat.verl_config.reads import ignored_keys, read_of
from trinity_compat.verl_config.releases import check_version

_Verdict = tuple[str, Status, str]  # code, status, reason
_DEFAULT = "left out by a rule, so veRL's default applies"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options with which every launch of an audit is read and translated.

    ``cwd`` is the directory in which bash would start (None: the current one), ``env`` the known environment,
    ``arguments`` the scripts' own arguments. ``environ``, the calling shell's environment, is not used: a
    variable of it that a script would use is a diagnostic.
    """

    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    options: TranslateOptions = field(default_factory=TranslateOptions)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def audit_sources(sources: Iterable[str], request: AuditOptions) -> Audit:
    """Audit every launch of every source: a script, a veRL YAML, ``-`` for stdin, a folder of scripts.

    A script in a folder that cannot be read becomes a problem of the audit, and the others go on.

    Raises OSError for a folder that cannot be read, and UserError for a file that the user named and that
    cannot be read, for a folder without scripts, and for an unknown veRL version.
    """
    if request.options.verl_version is not None:
        check_version(request.options.verl_version)
    launches: list[LaunchAudit] = []
    problems: dict[str, str] = {}
    empty: dict[str, str] = {}
    for source, named_by_user in files_of(sources):
        try:
            with reading_process.reading(source):
                audited, notes = _audit_source(source, request)
        except UserError as error:
            if named_by_user:
                raise
            problems[source] = str(error)
            continue
        launches += audited
        if not audited:
            empty[source] = notes
    reading_process.stop_clock()
    return Audit(tuple(launches), problems, empty)


def _audit_source(source: str, request: AuditOptions) -> tuple[list[LaunchAudit], str]:
    """Return the launches of one source, and the notes on a source without any."""
    notes = ""
    if is_configuration(source):
        config = config_from_yaml(
            source,
            request.options.verl_version,
            fork_config=request.options.fork_config,
            environ=request.env,
        )
        text = _text(source, request)
        results = [audit_config(config, request, source=source)]
    else:
        mains = request.options.mains
        how: dict[str, Any] = {
            "cwd": request.cwd,
            "env": request.env,
            "args": request.arguments,
            "mains": mains,
        }
        if source == "-":
            text = sys.stdin.buffer.read().decode(errors="surrogateescape")
            reading = read_text(text, name="-", **how)
        else:
            reading = read_script(source, **how)
            text = _text(source, request)
        unused = unused_variables(reading, request.environ, request.env)
        reading = replace(reading, diagnostics=(*reading.diagnostics, *unused))
        refuse_lost_arguments(reading)
        results = [audit_launch(x, request, source=source, reading=reading) for x in reading.launches]
        refuse_broken_script(reading)
        notes = "; ".join(f"{note.where}: {note.message}" for note in reading.diagnostics)
    found = directives(text)
    return [replace(x, silenced=silenced(found, x.findings, x.where)) for x in results], notes


def _text(source: str, request: AuditOptions) -> str:
    return named_start(source, limits.SCRIPT, request.cwd).decode(errors="replace")


def audit_launch(
    launch: Launch, request: AuditOptions, *, source: str | None = None, reading: Reading | None = None
) -> LaunchAudit:
    """Audit one launch. Never raises UserError: ``refused`` says why a launch cannot be translated."""
    reading_process.restart(source or launch.where.file)
    launch, options = with_assigned_keys(apply_rules(launch, request.options.rules), request.options)
    request = replace(request, options=options)
    try:
        config = effective_config(
            launch,
            version=request.options.verl_version,
            root=request.cwd,
            fork_config=request.options.fork_config,
        )
    except UserError as error:
        rows = load_rows(request.options.rules)
        given = {
            _spelled(word.text): (word.text.partition("=")[2], word.where)
            for word in launch.arguments
            if "=" in word.text or word.text[:1] in ("-", "~")
        }
        reasons = {key: reason_without_release(key, rows) for key in given}
        verdicts = {key: (UNKNOWN, Status.UNKNOWN, why) for key, why in reasons.items() if why}
        return _refused(launch, source, given, _one_line(error), reading, verdicts)
    return audit_config(config, request, source=source, reading=reading)


def audit_config(
    config: EffectiveConfig,
    request: AuditOptions,
    *,
    source: str | None = None,
    reading: Reading | None = None,
) -> LaunchAudit:
    """Audit a launch that has been composed. Never raises UserError."""
    unread = not_read_by_hydra(config.frozen(), request.environ)
    config = replace(config, diagnostics=(*config.diagnostics, *unread))
    why = refusal(config.launch.module, config.launch.main)
    try:
        known = as_ppo(config, root=request.cwd) if why else config
        if known is None:
            given = {key: (setting.value, setting.where) for key, setting in _given(config).items()}
            reason = refusal(config.launch.module)
            judged = dict.fromkeys(given, (OTHER_MAIN, Status.UNSUPPORTED, reason))
            found_none = _refused(config.launch, source, given, reason, reading, judged, config.version)
            notes = (*found_none.diagnostics, *config.diagnostics)
            return replace(found_none, fork=config.fork, diagnostics=notes)
        found = translate_partially(known, request.options, root=request.cwd)
    except UserError as error:
        places = {_spelled(word.text): word.where for word in config.launch.arguments}
        given = {key: (setting.value, places.get(key)) for key, setting in _given(config).items()}
        verdicts = _verdicts_of_refused(config, load_rows(request.options.rules))
        refused = _refused(config.launch, source, given, _one_line(error), reading, verdicts, config.version)
        return replace(refused, fork=config.fork, warnings=tuple(forks.caution(config)))
    return _audited(known, found, source, reading, why)


def _audited(
    config: EffectiveConfig, found: PartialTranslation, source: str | None, reading: Reading | None, why: str
) -> LaunchAudit:
    """Assemble the audit of a launch.

    ``config`` is the whole launch's; ``why`` says why its main is not translated, "" for one that is.
    """
    launch, translation = config.launch, found.translation
    unread = {} if why else ignored_keys(config)
    number = "1 key" if len(unread) == 1 else f"{len(unread)} keys"
    text = f"stock veRL {config.version.value} ignores {number} that this launch sets: {', '.join(unread)}"
    note = notice("TW028", text, launch.where, "trinity-compat ignored names the places in veRL")
    cautions = [*([note] if unread else ()), *self_defeating(config)]
    findings = tuple(
        replace(each, reason=_with_stock(config, each, unread[each.key])) if each.key in unread else each
        for each in _with_left_out(config, found)
    )
    _assert_accounted(config, {finding.key for finding in findings})
    broken = [f"{d.where}: {d.message}" for d in config.diagnostics if d.severity == "error"]
    refused = [why, listed(broken, between="; "), "; ".join(map(_one_line, found.refused))]
    return LaunchAudit(
        source=source or launch.where.file,
        where=launch.where,
        module=launch.module,
        version=config.version,
        findings=findings,
        refused=next(filter(None, refused), None),
        warnings=(*translation.warnings, *cautions),
        diagnostics=(*(reading.diagnostics if reading else ()), *config.diagnostics),
        fork=config.fork,
    )


def _with_stock(config: EffectiveConfig, finding: Finding, unread: str) -> str:
    """Return the finding's reason with what stock veRL does with the key, which it may say already."""
    said = remark(config, finding.key) if config.version.value == VERL else None
    if said is None or said not in finding.reason:
        return f"{finding.reason}; {unread}"
    read = read_of(finding.key, VERL, config.flavour)
    places = f" ({read.shown_places})" if read and read.places else ""
    return finding.reason.replace(said, said + places)


def _with_left_out(config: EffectiveConfig, found: PartialTranslation) -> tuple[Finding, ...]:
    """Return the findings, including those of keys whose value cannot be translated."""
    verdicts: dict[tuple[Where | None, str], _Verdict] = {
        (error.where, error.spelling): (REFUSED, Status.UNSUPPORTED, f"{NOT_TRANSLATED}{_one_line(error)}")
        for error in found.refused
    } | {
        (error.where, error.spelling): (row.code, row.status or Status.NO_EFFECT, f"{row.why}; {_DEFAULT}")
        for error, row in found.dropped
    }
    left_out = []
    for key, given in _given(config).items():
        if verdict := verdicts.get((given.where, given.spelling)):
            code, status, reason = verdict
            left_out.append(Finding(code, status, key, given.value, given.where, reason=reason))
    keys = {finding.key for finding in left_out}
    # Without its argument such a key has its default: that finding is not what the launch says.
    return (*left_out, *(finding for finding in found.translation.findings if finding.key not in keys))


def _assert_accounted(config: EffectiveConfig, found: set[str]) -> None:
    """Raise AssertionError unless each set key and argument has a finding, or an error that replaces it."""
    missing = set(config.set_keys) - found
    blamed = {d.where for d in config.diagnostics if d.severity == "error"}
    named = {key.lstrip("~").partition("@")[0] for key in found}
    nodes = {above for key in named for above in (key, *sections_above(key))}
    arguments = read_arguments(config.launch)
    later: set[str] = set()
    # Backwards: an argument is also accounted for by a later one that sets its key again or a section above.
    for given in reversed((*arguments.hydra, *arguments.overrides)):
        key = given.override.key
        accounted = key in nodes or not (named | later).isdisjoint((key, *sections_above(key)))
        if not accounted and given.where not in blamed:
            missing.add(given.override.line)
        later.add(key)
    if missing:
        raise AssertionError(f"{config.launch.where}: no finding for {', '.join(sorted(missing))}")


def _given(config: EffectiveConfig) -> dict[str, Setting]:
    """Return the keys that the launch itself sets, and its arguments that set none, by key."""
    keys = {key: config.settings[key] for key in config.set_keys if key in config.settings}
    return keys | {other.key: other for other in config.others}


def _refused(
    launch: Launch,
    source: str | None,
    given: Mapping[str, tuple[object, Where | None]],
    why: str,
    reading: Reading | None,
    judged: Mapping[str, _Verdict],
    version: VersionChoice | None = None,
) -> LaunchAudit:
    findings = []
    for key, (value, where) in given.items():
        otherwise = REFUSED, Status.UNSUPPORTED, f"{NOT_TRANSLATED}{why}"
        code, status, reason = judged.get(key, otherwise)
        findings.append(Finding(code, status, key, value, where, reason=reason))
    return LaunchAudit(
        source=source or launch.where.file,
        where=launch.where,
        module=launch.module,
        version=version or VersionChoice("unknown", "Hydra would refuse the launch"),
        findings=tuple(findings),
        diagnostics=reading.diagnostics if reading else (),
        refused=why,
    )


def _verdicts_of_refused(config: EffectiveConfig, rows: MappingTable) -> dict[str, _Verdict]:
    """Return the verdicts that hold even for a launch that cannot be translated.

    These are of keys that only the launch's fork reads, and of unknown keys.
    """
    own = (key for key in config.set_keys if forks.is_fork_key(key, config, rows))
    found: dict[str, _Verdict] = {key: (forks.CODE, *forks.fate(key, config)) for key in own}
    moved = {move.old for move in upgrade(config).moves} if config.unknown else set[str]()
    for key in config.unknown:
        if key not in moved and is_unknown(key, config.unknown, rows):
            found[key] = (UNKNOWN, Status.UNKNOWN, reason_of(key, config))
    return found


def _one_line(error: UserError) -> str:
    place = f"{error.where}: " if error.where else ""
    return " ".join(f"{place}{error.message}{f'; {error.hint}' * bool(error.hint)}".split())


def _spelled(text: str) -> str:
    """Return the key of an argument as findings name it: ``~key`` and flags keep their mark."""
    key = text.partition("=")[0]
    return key if key.startswith(("~", "-")) else key.lstrip("+")
