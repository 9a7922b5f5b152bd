"""Variables of a script whose values a translated YAML holds, so that setting them has no effect there.

A text keeps its variable (``${oc.env:RUN,a}``). A number, a truth value, a list, and what the script has
computed or decided do not: the YAML names their variables under ``trinity_compat.frozen``, each with its
text, or null where the script alone knows what it did with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from trinity_compat.common.errors import Where
from trinity_compat.common.nested import copied, put, section_at
from trinity_compat.common.redaction import is_secret, shown
from trinity_compat.launch.environment import UNUSED, is_named_apart, not_used
from trinity_compat.launch.model import Diagnostic, EnvRef, WordPart
from trinity_compat.translate.model import TranslateOptions, Translation
from trinity_compat.translate.verl_from_trinity import compat_of
from trinity_compat.verl_config.model import EffectiveConfig

FROZEN = "frozen"
_NAMED = re.compile(r"\$\{oc\.env:(\w+)")
_OF_LIBRARIES = re.compile(  # which read them themselves, in a run of the YAML, too
    r"(CUDA|HF|HYDRA|MLFLOW|NCCL|OMP|PYTORCH|RAY|SWANLAB|TENSORBOARD|TRANSFORMERS|VERL|VLLM|WANDB)_|TORCH"
)


def named(text: str) -> frozenset[str]:
    """Return the variables whose values count when a YAML with this text is used."""
    return frozenset(_NAMED.findall(text))


def with_frozen(made: Translation, effective: EffectiveConfig, options: TranslateOptions) -> Translation:
    """Return the translation with the names of what it has frozen."""
    kept = named(json.dumps(made.config, default=str))
    launch = effective.launch
    references = list(_references(part for word in launch.arguments for part in word.parts))
    found: dict[str, str | None] = dict.fromkeys(options.surroundings)
    found |= {ref.name: ref.default for ref in references if ref.default is not None}
    of_files = {} if options.resolve else effective.frozen()
    own = {name for name, word in launch.env.items() if not word.env_refs}
    frozen = {
        name: None if is_secret(name) else text
        for name, text in sorted(found.items())
        if not (name in kept or name in own or is_named_apart(name) or _OF_LIBRARIES.match(name))
    }
    frozen |= {name: None if is_secret(name) else default for name, (default, _) in of_files.items()}
    made = replace(made, environment=of_files)
    if options.resolve or not frozen:
        return made
    config, path = copied(made.config), f"{made.facts['compat']}.{FROZEN}"
    put(config, path, frozen)
    why = "variables that the YAML replaces by their values: translate --env NAME=VALUE sets them"
    return replace(made, config=config, provenance={**made.provenance, path: why})


def header(config: Mapping[str, object]) -> list[str]:
    """Return the line of a YAML's header about them."""
    frozen = section_at(compat_of(config), FROZEN)
    listed = ", ".join(name if text is None else f"{name}={text}" for name, text in frozen.items())
    return [shown(f"Replaced by their values, no effect if set later: {listed}")] if frozen else []


def not_read_by_hydra(
    found: Mapping[str, tuple[str, Where]], environ: Mapping[str, str], also: str = ""
) -> Iterator[Diagnostic]:
    """Yield a warning for each variable of a Hydra file that the calling shell sets to something else.

    ``found`` as of `EffectiveConfig.frozen`, ``also`` as for `unused_variables`.
    """
    for name, (default, where) in found.items():
        if environ.get(name, default) != default:
            yield not_used(name, where, "Hydra", also)


def set_without_effect(
    config: Mapping[str, object], environ: Mapping[str, str], where: Where, known: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """Yield a warning for each frozen variable that the environment sets to something else."""
    for name, text in section_at(compat_of(config), FROZEN).items():
        if name in environ and name not in known and environ[name] != str(text):
            own = "the script's own value" if text is None else f"{text}, unless it was edited,"
            way = f'translate the script again, with --env {name}="${name}", or edit the YAML'
            message = (
                f"{name} is set in this shell, and has no effect: the YAML has {own} instead of it: {way}"
            )
            yield Diagnostic(UNUSED, message, where)


def _references(parts: Iterable[WordPart]) -> Iterator[EnvRef]:
    for part in parts:
        if isinstance(part.source, EnvRef):
            yield part.source
            yield from _references(part.source.parts)
