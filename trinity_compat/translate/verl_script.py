"""The way back as a script: a Trinity YAML as a launch of veRL's main_ppo.

The script sets what differs from the pinned veRL's defaults. A reference to the environment is the shell's
(``${oc.env:RUN,one}`` is ``${RUN:-one}``); everything else is quoted, so that no text of the YAML is
a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import copied, leaves, sections_above, value_at
from trinity_compat.common.output_text import OBEYED, plain, visible
from trinity_compat.common.releases import TRINITY, VERL
from trinity_compat.launch.entrypoints import PPO
from trinity_compat.translate.defaults import same, trainer_config
from trinity_compat.translate.micro_batch_sizes import ACTOR, CRITIC, REF, ROLLOUT
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.sections.asynchronous import USE_V1
from trinity_compat.translate.supervised import schema_in
from trinity_compat.translate.verl_from_trinity import (
    compat_of,
    completed_config,
    flavour_of,
    from_launch,
    passed,
    verl_settings,
)
from trinity_compat.trinity.config.stages import stages_of
from trinity_compat.verl_config.grammar import OverrideSyntaxError, hydra_text, parse_override
from trinity_compat.verl_config.interpolate import Resolver, is_interpolated
from trinity_compat.verl_config.pinned import pinned_release, put
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, MODEL_ENGINE

_GPU_MEMORY = "actor_rollout_ref.rollout.gpu_memory_utilization"
_ENV_VARS = "explorer.env_vars"
_NAME = re.compile(r"[A-Za-z_][\w-]*", re.A)
_OPENING = "${oc.env:"
_MARK = re.compile(r"TCref(\d+)x")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class VerlScript:
    """A script, and the settings that it cannot hold, each as ``key=value``."""

    text: str
    unsaid: tuple[str, ...]


def verl_script(config: Mapping[str, object], source: str) -> VerlScript:
    """Return the script of a Trinity configuration; ``source`` is its name in the first line.

    Raises UserError as the way back does, and RunError for a training that main_ppo does not do.
    """
    if stages_of(config):
        raise RunError(f"{source}: it has several stages, and a launch of veRL is one training")
    schema = schema_in(config)
    if schema != "experience":
        raise RunError(f"{source}: it trains on rows of files ({schema}), which {PPO} does not")
    if not from_launch(config):
        raise RunError(
            f"{source}: translate did not write it, and {PPO} has no settings for its tasksets and workflows"
        )
    flavour = flavour_of(config)
    told = verl_settings(completed_config(config))
    if not compat_of(config).get("trainer"):
        told.pop("trainer.use_v1", None)  # the launch did not choose: written, it would be a choice
    references: list[str] = []
    marked = {key: _marked(value, references) for key, value in told.items()}
    words, unsaid = [], []
    for key, value in _written(marked, flavour, _always(config)):
        try:
            words.append(_word(key_in_launch(key, flavour), value, references))
        except ValueError:
            unsaid.append(f"{key}={value!r}")
    if flavour != FLAVOURS[0]:
        words.insert(0, f"{MODEL_ENGINE}={ENGINE_FLAVOURS.get(flavour, 'megatron')}")
    exports = [
        f"export {name}={_in_shell(_with_marks(str(value), references), references)}"
        for name, value in (value_at(config, _ENV_VARS) or {}).items()
    ]
    launch = [f"python3 -m {PPO}", *words, '"$@"']
    head = [
        "#!/usr/bin/env bash",
        f"# {visible(' '.join(source.split()))} as a launch of veRL {VERL}",
        *exports,
    ]
    return VerlScript("\n".join([*head, " \\\n    ".join(launch)]) + "\n", tuple(unsaid))


def with_sizes_of_one_gpu(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the configuration without micro-batch sizes over all GPUs, which the pinned veRL refuses.

    Those of one GPU, which trainer_config has beside them, take their place.
    """
    config = copied(config)
    sizes = value_at(config, "trainer.trainer_config")
    compat = compat_of(config)
    given, stands_for = compat.get("verl", {}), compat.get("stands_for", {})
    for key in (ACTOR, ROLLOUT, REF, CRITIC):
        if key in given and value_at(sizes, f"{key}_per_gpu") is not None:
            del given[key]
            stands_for.pop(f"{key}_per_gpu", None)
    return config


def _always(config: Mapping[str, object]) -> frozenset[str]:
    """Return the keys that the script sets to a default, too.

    These are the ones of veRL that the YAML has by their own names, and those for which translate takes
    another value than the default where a launch leaves them out. A carried key that would stand in
    trainer_config if the launch had set it is a default of the launch's release.
    """
    compat, in_trainer_config = compat_of(config), passed(config)
    megatron = flavour_of(config) == "ppo_megatron_trainer"
    known = trainer_config(TRINITY, "megatron" if megatron else "fsdp")
    sections = {key.partition(".")[0] for key in in_trainer_config}
    own = {*in_trainer_config, _GPU_MEMORY, USE_V1}
    for key in compat.get("verl", {}):
        row = load_rows().find(key)
        passes = row is not None and row.passes(TRINITY)
        if not (passes and known.takes(key) and key.partition(".")[0] in sections):
            own.add(key)
    return frozenset(own.difference(compat.get("stands_for", {})))


def _written(
    told: Mapping[str, object], flavour: str, always: frozenset[str]
) -> Iterator[tuple[str, object]]:
    """Yield the settings that the script needs: those in ``always``, and those that differ from a default.

    A default may refer to another setting, so those without come first, and this repeats until nothing
    differs.
    """
    tree = copied(pinned_release(flavour).tree)
    follows = {key for key, value in leaves(tree) if is_interpolated(value)}
    pending = {key: value for whole, held in told.items() for key, value in _parts(whole, held)}
    written: dict[str, object] = {}
    while True:
        resolved = Resolver(tree).resolve()
        differing = [
            key
            for key, value in pending.items()
            if key in always or not same(value_at(resolved, key, _MISSING), value)
        ]
        if not differing:
            break
        for key in [key for key in differing if key not in follows] or differing[:1]:
            written[key] = pending.pop(key)
            put(tree, key, written[key])
    yield from written.items()


def _parts(key: str, value: object) -> list[tuple[str, object]]:
    """Return a section's leaves as settings of their own, as far as Hydra can name them."""
    if not isinstance(value, Mapping):
        return [(key, value)]
    parts = list(leaves(value, f"{key}."))
    names = (name for path, _ in parts for name in path.split("."))
    return parts if parts and all(map(_NAME.fullmatch, names)) else [(key, value)]


def key_in_launch(key: str, flavour: str) -> str:
    """Return ``key`` with the operator that sets it.

    A section that refers to another has that one's additions, too: ``++`` sets a key that may be there.
    """
    pinned = pinned_release(flavour)
    if key in pinned.nodes:
        return key
    refers = any(isinstance(value_at(pinned.tree, section), str) for section in sections_above(key))
    return f"++{key}" if refers else f"+{key}"


def _word(key: str, value: object, references: Sequence[str] = ()) -> str:
    """Return ``key=value`` for a shell. Raises ValueError for what Hydra's grammar cannot hold."""
    spelled = hydra_text(value)
    # The latter is what bash has computed in the script that was translated.
    if spelled is None or "\\${" in spelled:
        raise ValueError(key)
    text = f"{key}={spelled}"
    try:
        found = parse_override(text)
    except OverrideSyntaxError:
        raise ValueError(text) from None
    if found.key != key.lstrip("+"):
        raise ValueError(text)
    return _in_shell(text, references)


def _marked(value: object, references: list[str]) -> object:
    """Return ``value`` with a plain word for each reference to the environment, which joins the list."""
    if isinstance(value, str):
        return _with_marks(value, references)
    if isinstance(value, Mapping):
        return {key: _marked(item, references) for key, item in value.items()}
    return [_marked(item, references) for item in value] if isinstance(value, list) else value


def _with_marks(text: str, references: list[str]) -> str:
    pieces: list[str] = []
    at = 0
    while (start := _reference_at(text, at)) >= 0 and (end := _end_of(text, start)):
        variable = _as_variable(text[start:end])
        if variable not in references:
            references.append(variable)
        pieces += [text[at:start], f"TCref{references.index(variable)}x"]
        at = end
    return "".join([*pieces, text[at:]])


def _reference_at(text: str, at: int) -> int:
    """Return the position of the next reference; -1 without one. After a backslash it is text."""
    start = text.find(_OPENING, at)
    while start > 0 and text[start - 1] == "\\":
        start = text.find(_OPENING, start + 1)
    return start


def _end_of(text: str, start: int) -> int:
    """Return the position behind the reference that begins at ``start``; 0 where it does not end."""
    depth, quoted = 0, False
    for at in range(start, len(text)):
        if text[at] == "'" and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted and text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return at + 1
    return 0


def _as_variable(reference: str) -> str:
    """Return ``${oc.env:NAME,default}`` as bash writes it between double quotes."""
    name, comma, default = reference[len(_OPENING) : -1].partition(",")
    if not comma:
        return f"${name}" if name == "HOME" else f"${{{name}:?}}"
    if default.startswith("'"):
        default = re.sub(r"\\(['\\])", r"\1", default[1:-1])
        return f"${{{name}:-{_escaped(default)}}}" if default else f"${{{name}}}"
    inner: list[str] = []
    text = _escaped(_with_marks(default, inner))
    return f"${{{name}:-{_filled(text, inner)}}}"


def _escaped(text: str) -> str:
    """Escape a text between double quotes, and inside braces there."""
    return re.sub(r'([\\"$`}])', r"\\\1", text)


def _filled(text: str, references: Sequence[str]) -> str:
    return _MARK.sub(lambda mark: references[int(mark[1])], text)


def _in_shell(text: str, references: Sequence[str]) -> str:
    """Return one word for bash, with the references in place of their marks."""
    if not _MARK.search(text) and ("'" not in text or "!" in text):
        return _readable(shlex.quote(text), "'")  # an interactive bash expands a ! between double quotes
    escaped = re.sub(r'([\\"$`])', r"\\\1", text)
    return _readable(f'"{_filled(escaped, references)}"', '"')


def _readable(word: str, quote: str) -> str:
    """Return a quoted word with its control characters, and what a workflow's log obeys, in ``$'…'``."""

    def escaped(found: re.Match[str]) -> str:
        octets = found[0].encode(errors="surrogateescape")
        return f"{quote}$'{''.join(f'{chr(92)}x{octet:02x}' for octet in octets)}'{quote}"

    if plain(word) == word:
        return word
    return re.sub(r"\n|(?<=#)#(?=\[)", escaped, OBEYED.sub(escaped, word))
