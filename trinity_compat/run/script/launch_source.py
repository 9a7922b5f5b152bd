"""Translation of a caught launch to a Trinity YAML, with the line numbers of the script."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trinity_compat.audit import Audit, render
from trinity_compat.audit import AuditOptions as AuditRequest
from trinity_compat.audit.collect import audit_launch
from trinity_compat.audit.phrases import assignment
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.redaction import is_secret, masked, shown
from trinity_compat.common.releases import VERL
from trinity_compat.launch import EnvRef, Launch, Word, WordPart, entrypoints, read_argv, read_script
from trinity_compat.launch.unset_variables import missing
from trinity_compat.run.plan import run_length
from trinity_compat.run.plan.overlay import is_trinity_only
from trinity_compat.run.plan.source import LaunchRecord, RunOptions, Source
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.env_references import resolved_launch
from trinity_compat.translate.model import Finding, Status, TranslateOptions, Translation
from trinity_compat.translate.pipeline import translate_launch

_SEVERAL_FIT, _LOST_BY_STOCK = "TW018", "TW021"  # the cautions that a run repeats
_SHELL_OWN = {"PWD", "OLDPWD", "SHLVL", "_"}


def source_of(found: Invocation, call: ScriptCall) -> tuple[Source, RunOptions]:
    """Translate the caught launch.

    A ``--set`` of a veRL key is added to the launch's words, so that derived values follow it; the returned
    options hold the others in ``sets``.
    """
    words = [text for text in call.options.sets if not is_trinity_only(text)]
    launch, environ = launch_of(found, call)
    entrypoints.refuse(launch.module, launch.where, launch.main)
    added = [Word((WordPart(text),), Where("--set")) for text in words]
    # Last, as Hydra lets the last word win.
    launch = replace(launch, arguments=(*launch.arguments, *added))
    given = call.options.verl_version
    release = ["--verl-version", given] if given else []
    arguments = ["--", *masked(call.arguments)] if call.arguments else []
    translate_options = TranslateOptions(
        verl_version=call.options.verl_version,
        resolve=True,
        environ=environ,
        rules=call.options.rules,
        mains=call.options.mains,
        command=shlex.join(["trinity-compat", "translate", "--resolve", *release, call.script, *arguments]),
        folder=str(Path.cwd()),
    )
    translation, text = translate_launch(launch, translate_options)
    if not call.options.allow_fork_keys:
        _refuse_fork_keys(translation, launch.where)
    total = verl_from_trinity.to_verl(translation.config).get(run_length.STEPS)
    run_length.refuse_idle_epochs(words, translation.config, total)
    rest = tuple(item for item in call.options.sets if item not in words)
    source = Source(
        translation.config,
        text,
        _record(launch, call) | {"verl_version": str(translation.facts["verl_version"])},
        _audit(launch, environ, call.script, translate_options),
        (*_empty(launch, call.environ), *_notes(translation), *_left_out(found)),
        "".join(_cautions(translation, _SEVERAL_FIT)),
        environ=call.environ,
    )
    return source, replace(call.options, sets=rest, joined=tuple(words))


def launch_of(found: Invocation, call: ScriptCall) -> tuple[Launch, Mapping[str, str]]:
    """Return the launch, and the environment to resolve it with.

    The launch has the script's line numbers if static reading gives the same words, else the words alone.
    """
    for environ in ({}, call.environ):
        for launch in _static_launches(call, environ):
            if (same := _as_caught(launch, found, call.environ)) is not None:
                options = _options(found, launch.torchrun, Where(call.script))
                # where it starts may depend on the environment, too
                same = replace(same, torchrun=options, cwd=found.cwd or same.cwd)
                return same, {**call.environ, **dict.fromkeys(_unset(launch, call.environ), "")}
    words = ["python3", "-m", found.module, *found.arguments]
    launch = read_argv(words, mains=call.options.mains).launches[0]
    where = Where(call.script)
    exported, options = _exported(call, found), _options(found, (), where)
    made = replace(launch, env=exported, wrapper=found.wrapper, where=where, torchrun=options)
    return made, dict(os.environ)


def _options(found: Invocation, read: Sequence[Word], where: Where) -> tuple[Word, ...]:
    """Return torchrun's options with bash's values, at their lines where as many were read there."""
    places = [word.where for word in read] if len(read) == len(found.torchrun) else []
    return tuple(
        Word((WordPart(text),), place)
        for text, place in zip(found.torchrun, places or [where] * len(found.torchrun), strict=True)
    )


def _exported(call: ScriptCall, found: Invocation) -> dict[str, Word]:
    """Return the variables that the script added to its environment."""
    where = Where(call.script)
    now = {**os.environ, **found.env}
    changed = {name for name, value in now.items() if call.environ.get(name) != value} - _SHELL_OWN
    return {name: Word((WordPart(now[name]),), where) for name in sorted(changed)}


def _as_caught(launch: Launch, found: Invocation, environ: Mapping[str, str]) -> Launch | None:
    """Return ``launch`` with bash's values for its open words, None where it is another launch."""
    if launch.module != found.module or len(launch.arguments) != len(found.arguments):
        return None
    pairs = zip(launch.arguments, found.arguments, strict=True)
    words = tuple(_settled(word, text) for word, text in pairs)
    now = {**os.environ, **found.env}
    env = {
        name: _settled(word, now.get(name, "")) for name, word in launch.env.items() if not is_secret(name)
    }
    # the script has run up to here: what it wrote is on the disk
    unset = launch.unset | (environ.keys() - now.keys())
    settled = replace(launch, arguments=words, env={**launch.env, **env}, unread={}, unset=unset)
    try:
        known = resolved_launch(settled, {**environ, **dict.fromkeys(_unset(launch, environ), "")})
    except UserError:
        return None
    return settled if tuple(word.text for word in known.arguments) == found.arguments else None


def _settled(word: Word, text: str) -> Word:
    """Return an open word with bash's value, if the key is the one that was read."""
    key, equals, _ = word.text.partition("=")
    return Word((WordPart(text),), word.where) if word.open and text.startswith(f"{key}{equals}") else word


def _unset(launch: Launch, environ: Mapping[str, str]) -> list[str]:
    """Return the unset variables in the launch's words, which bash replaces by nothing."""
    parts = [part for word in (*launch.arguments, *launch.env.values()) for part in word.parts]
    return sorted({ref.name for ref in _references(parts, environ)})


def _references(parts: Iterable[WordPart], environ: Mapping[str, str]) -> Iterator[EnvRef]:
    """Return the references without a value and without a default, at any depth."""
    for part in parts:
        if not isinstance(part.source, EnvRef) or part.source.name in environ:
            continue
        yield from _references(part.source.parts, environ)
        if not part.source.parts and missing(part):
            yield part.source


def _static_launches(call: ScriptCall, environ: Mapping[str, str]) -> Sequence[Launch]:
    mains = call.options.mains
    try:
        data = Path(call.script).read_bytes()  # wherever a link leads: bash runs it
        return read_script(
            call.script, cwd=call.cwd, env=environ, args=call.arguments, mains=mains, content=data
        ).launches
    except (UserError, OSError):
        return ()


def _record(launch: Launch, call: ScriptCall) -> LaunchRecord:
    """Return the launch for config/launch.json, without the values of the environment."""
    return {
        "script": call.script,
        "script_arguments": list(masked(call.arguments)),
        "module": launch.module,
        "where": str(launch.where),
        "arguments": [{"text": shown(word.text), "where": str(word.where)} for word in launch.arguments],
        "exported": sorted(launch.env),
        "wrapper": list(masked(launch.wrapper)),
        "cwd": str(Path.cwd()),
        "started_in": call.cwd,
    }


def _notes(translation: Translation) -> tuple[str, ...]:
    """Return the counts of findings, and the names of keys that the run ignores."""
    left_out: dict[str, list[Finding]] = {}
    for finding in translation.findings:
        if finding.status in (Status.UNSUPPORTED, Status.FORK_KEY) and finding.where:
            left_out.setdefault(finding.reason, []).append(finding)
    warnings = []
    for reason, found in left_out.items():
        words = [f"{finding.where}: {finding.key}={finding.value}" for finding in found]
        listed = f"{words[0]} is" if len(words) == 1 else f"{len(words)} keys ({'; '.join(words)}) are"
        warnings.append(f"warning: {listed} left out: {reason}")
    counts = Counter(str(finding.status) for finding in translation.findings)
    summary = ", ".join(f"{counts[status]} {status}" for status in map(str, Status) if counts[status])
    return (
        f"{len(translation.findings)} keys: {summary}; each one with its reason: `trinity-compat audit`, or"
        " config/audit.json of the job",
        *warnings,
        *_cautions(translation, _SEVERAL_FIT, _LOST_BY_STOCK),
        *map(str, translation.notes),
    )


def _cautions(translation: Translation, *codes: str) -> Iterator[str]:
    for caution in translation.warnings:
        if caution.code in codes:
            yield str(caution)


def _empty(launch: Launch, environ: Mapping[str, str]) -> list[str]:
    """Return a warning about the variables of the launch that nothing sets."""
    unset = [
        f"{word.where}: ${name}"
        for word in launch.arguments
        for name in sorted({ref.name for ref in _references(word.parts, environ)})
    ]
    if len(unset) < 2:
        return [f"warning: {each} is not set: it is empty under bash" for each in unset]
    return [f"warning: {len(unset)} variables are not set ({'; '.join(unset)}): they are empty under bash"]


def _left_out(found: Invocation) -> list[str]:
    """Return the words before the launch that have no part in its run."""
    sent = [name for name in found.wrapper if name.startswith("ray job submit --address")]
    if sent:
        return [f"note: {sent[0]} runs this on that cluster; this plan is for the machine here"]
    dropped = [name for name in found.wrapper if name not in ("ray job submit", "uv run")]
    return [f"note: {', '.join(dropped)} is left out: the run starts processes of its own"] if dropped else []


def _audit(launch: Launch, environ: Mapping[str, str], script: str, options: TranslateOptions) -> str:
    """Return ``trinity-compat audit --format json`` of the launch."""
    found = audit_launch(resolved_launch(launch, environ), AuditRequest(options=options), source=script)
    return render(Audit((found,)), "json")


_SHOWN = 20


def _refuse_fork_keys(translation: Translation, where: Where) -> None:
    """Raise UserError naming the fork's keys that no user rule covers.

    Leaving such a key out would change the training.
    """
    uncovered = [finding for finding in translation.findings if finding.status is Status.FORK_KEY]
    if not uncovered:
        return
    listed = ""
    for finding in uncovered[:_SHOWN]:
        place = f"{finding.where}: " if finding.where else ""
        listed += f"\n  {place}{assignment(finding)}: {finding.reason}"
    more = f"\n  and {len(uncovered) - _SHOWN} more, which audit lists" if len(uncovered) > _SHOWN else ""
    raise UserError(
        f"the script starts from a fork of veRL, and veRL {VERL} lacks these keys of the fork's:"
        f"{listed}{more}",
        where=where,
        hint="leaving them out changes what is trained: --allow-fork-keys runs without them all, "
        "--rules FILE says what becomes of each",
    )
