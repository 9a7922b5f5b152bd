"""The whole way from a launch to the YAML's text, for ``translate``, ``run`` and the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import referred, shown
from trinity_compat.common.releases import VERL
from trinity_compat.launch.model import Launch
from trinity_compat.translate import frozen_variables, verl_from_trinity
from trinity_compat.translate.edited_launch import apply_rules, with_assigned_keys
from trinity_compat.translate.env_references import resolved_launch
from trinity_compat.translate.launch_view import KeyRefused
from trinity_compat.translate.minimal import minimal
from trinity_compat.translate.model import Severity, TranslateOptions, Translation
from trinity_compat.translate.rows import load_rows, rules_of
from trinity_compat.translate.translator import (
    refusal_of_all,
    refuse_other_mains,
    translate,
    translate_partially,
)
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.trinity.config import dump
from trinity_compat.verl_config import effective_config
from trinity_compat.verl_config.arguments import hydra_flags
from trinity_compat.verl_config.from_yaml import config_from_tree
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.pinned import compose_pinned

_IDLE = {
    "help": "prints its help",
    "hydra_help": "prints its help",
    "version": "prints its version",
    "cfg": "prints the configuration",
    "info": "prints what it found",
    "shell_completion": "installs its completion",
}


def translate_launch(
    launch: Launch, options: TranslateOptions, *, root: Path | None = None
) -> tuple[Translation, str]:
    """Return the translation of ``launch`` and the YAML's text.

    Config files that the launch names are read inside ``root`` (its working directory if None). Raises
    UserError, with the place in the script, if there is no translation.
    """
    # With such a flag Hydra prints something and trains nothing.
    flags = hydra_flags(launch)
    for name, does in _IDLE.items():
        if name in flags.words:
            word = flags.words[name]
            value = f" {flags.values[name]}" if name == "cfg" and "=" not in word.text else ""
            raise UserError(
                f"{word.text}{value}: Hydra {does} and trains nothing",
                where=word.where,
                hint="remove the flag to translate the launch",
            )
    if options.resolve:
        launch = resolved_launch(launch, {**options.environ, **options.env})
    launch, options = with_assigned_keys(apply_rules(launch, options.rules), options)
    effective = effective_config(
        launch, version=options.verl_version, root=root, fork_config=options.fork_config
    )
    return translate_config(effective, options, root=root)


def translate_config(
    effective: EffectiveConfig, options: TranslateOptions, *, root: Path | None = None
) -> tuple[Translation, str]:
    """Translate a configuration that has been composed (a veRL YAML), like ``translate_launch``."""
    refuse_other_mains(effective)
    refuse_errors(effective, lambda: _refused_values(effective, options, root))
    found = translate_partially(effective, options, root=root)
    if found.refused:
        raise refusal_of_all(found.refused)
    translation = minimal(found.translation) if options.minimal else found.translation
    translation = replace(translation, notes=effective.diagnostics)
    facts = translation.facts
    header = [
        *([f"Written by: {options.command}"] if options.command else []),
        f"veRL {facts['verl_version']}: {facts['verl_version_why']}",
        f"trinity-rft {facts['target']}; one veRL step = {facts['updates_per_step']} Trinity step(s)",
        *frozen_variables.header(translation.config),
        *rules_of(options.rules).sources,
    ]
    comments = {path: shown(note) for path, note in translation.provenance.items()}
    written, _ = referred(translation.config)
    text = dump(written, comments, header=header, comments=options.comments)
    return translation, text


def refuse_unstartable(translation: Translation) -> None:
    """Raise UserError for what veRL itself would refuse to start.

    A run asks its plan instead: a profile or a ``--set`` may change it.
    """
    errors = [caution for caution in translation.warnings if caution.rank is Severity.ERROR]
    if errors:
        more = "".join(f"\n{found.where}: {found.message}" for found in errors[1:])
        hints = "; ".join(found.hint for found in errors if found.hint)
        raise UserError(f"{errors[0].message}{more}", where=errors[0].where, hint=hints)


def refuse_errors(effective: EffectiveConfig, others: Callable[[], Sequence[UserError]] = tuple) -> None:
    """Raise UserError for what Hydra would refuse: the launch cannot start under veRL either.

    ``others`` are errors that the message names too; they are asked for only then.
    """
    errors = [found for found in effective.diagnostics if found.severity == "error"]
    if errors:
        more = [f"{found.where}: {found.message} ({found.code})" for found in errors[1:]]
        more += ["; ".join(filter(None, (f"{it.where}: {it.message}", it.hint))) for it in others()]
        hints = [f"veRL {version.value}: {version.why}"] if (version := effective.version).stands_in else []
        if (main := effective.launch.main) and (module := effective.launch.module) != main:
            hints.append(f"{module} is not a main of veRL's: it is read as {main}, by its keys")
        exact = load_rows().exact
        hints += [f"{key}: {exact[key].why}" for key in effective.unknown if key in exact and exact[key].why]
        text = "\n".join([f"{errors[0].message} ({errors[0].code})", *more])
        raise UserError(text, where=errors[0].where, hint="; ".join(hints) or None)


def _refused_values(
    effective: EffectiveConfig, options: TranslateOptions, root: Path | None
) -> Sequence[KeyRefused]:
    """Return the values of a launch that cannot be translated, beside what Hydra refuses of it."""
    said = [found.message for found in effective.diagnostics if found.severity == "error"]
    try:
        refused = translate_partially(effective, options, root=root).refused
    except UserError:  # it follows from the other errors, or names no argument of its own
        return ()
    return [
        error
        for error in refused
        if not any(
            message.startswith((error.spelling, f"Hydra would refuse {error.spelling}:")) for message in said
        )
    ]


_MODEL = "explorer.rollout_model"


def as_translated(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the Trinity configuration that ``translate`` would write for a run of ``config``.

    Raises UserError if the way back or the translation does.
    """
    full = verl_from_trinity.completed_config(config)
    verl = compose_pinned(verl_from_trinity.verl_settings(full), verl_from_trinity.flavour_of(full.config))
    effective, options = config_from_tree(verl, VERL), _options_of(config)
    try:
        return translate(effective, options, report=False).config
    except UserError:  # the number of engines that the file has is one that --rollout-gpus refuses
        return translate(effective, replace(options, rollout_gpus=None), report=False).config


def _options_of(config: Mapping[str, object]) -> TranslateOptions:
    """Return the options under which translate wrote the file; the defaults for another file."""
    compat = verl_from_trinity.compat_of(config)
    if not compat:
        return TranslateOptions()
    reading = TrinityReader(config)
    sizes = [reading.get(f"{_MODEL}.{name}", 1) for name in ("engine_num", "tensor_parallel_size")]
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    gpus = sizes[0] * sizes[1] if known else None
    return TranslateOptions(as_published=compat.get("steps") == "verl", rollout_gpus=gpus)
