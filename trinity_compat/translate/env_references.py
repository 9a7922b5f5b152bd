"""Environment variables that stay symbolic: ``$HOME/models`` → ``${oc.env:HOME}/models``.

A variable that may be unset where the YAML is used gets what bash would put there as its default:
``$RUN`` → ``${oc.env:RUN,''}``, ``${RUN:-a}`` → ``${oc.env:RUN,a}``. OmegaConf refuses an unset one
without a default, so those where bash would stop too (``${RUN:?}``, ``set -u``) have none.

A variable is symbolic everywhere or nowhere: one whose default some value needs (``lr=${LR:-1e-6}``) has
that default in texts too (``name=lr${LR:-1e-6}``), so that a run is not called what it is not.

The launch is composed twice: once with real texts, once with a mark in place of each piece that
comes from the environment or that cannot be known. Where a mark turns up in a composed value, the
piece flows there, through lists, dictionaries and interpolations. Marks are plain words, so that
they survive Hydra's grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.redaction import is_secret, remember
from trinity_compat.launch.model import EnvRef, Launch, UnknownPiece, Word, WordPart
from trinity_compat.verl_config import recompose
from trinity_compat.verl_config.model import EffectiveConfig

_MARK = re.compile(r"TCmark(\d+)x")
_ALWAYS_SET = {"HOME"}  # by every login; a path without it would lead to the root directory
_EMPTY_DEFAULT = re.compile(r"(\$\{oc\.env:\w+),''\}")


@dataclass(frozen=True)
class EnvReferences:
    """The pieces behind the marks, in the order of their numbers.

    ``frozen``: variables whose known text is written everywhere, since some value needs it (a number, r, a
    list, the choice of a configuration's file). Unknown parts of their defaults (``$HOME``) stay symbolic.
    """

    pieces: list[tuple[WordPart, Where]] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)

    def mark(self, part: WordPart, where: Where) -> str:
        """Return a new mark for ``part``."""
        self.pieces.append((part, where))
        return f"TCmark{len(self.pieces) - 1}x"

    def marks(self, part: WordPart) -> bool:
        """Return True if ``part`` stays symbolic."""
        frozen = isinstance(part.source, EnvRef) and part.source.name in self.frozen
        return part.source is not None and not frozen

    def variables(self, value: object) -> set[str]:
        """Return the names of the variables whose marks ``value`` holds."""
        sources = (part.source for part, _ in self.within(value))
        return {source.name for source in sources if isinstance(source, EnvRef)}

    def within(self, value: object) -> list[tuple[WordPart, Where]]:
        """Return the pieces whose marks ``value`` holds."""
        return [self.pieces[int(number)] for number in _MARK.findall(str(value))]

    def leading(self, text: str) -> str:
        """Return the mark with which ``text`` begins, "" where it begins with a text."""
        found = _MARK.match(text)
        return found[0] if found else ""

    def written(self, value: object) -> Any:
        """Return ``value`` with each mark as the YAML writes it: ``${oc.env:NAME,default}``."""
        return _replaced(value, lambda number: _spell(self.pieces[number][0]))

    def plain(self, value: object) -> Any:
        """Return ``value`` with each mark as its text under the known environment."""
        return _replaced(value, lambda number: self.pieces[number][0].text)

    def in_effect(self, value: object) -> object:
        """Return ``value`` with each mark as its text; an unset variable, or a guess, stays as its name.

        ``${DATA:-$HOME/data}`` is ``${oc.env:HOME}/data``.
        """
        return _replaced(value, lambda number: _in_effect(self.pieces[number][0]))

    def is_known(self, value: object) -> bool:
        """Return True if every mark in ``value`` has a text that is not a guess."""
        return all(_has_text(part) for part, _ in self.within(value))


def _has_text(part: WordPart) -> bool:
    return not is_unknown(part) and not isinstance(part.source, UnknownPiece)


def _in_effect(part: WordPart) -> str:
    if _has_text(part):
        return part.text
    if isinstance(part.source, EnvRef) and part.source.parts:
        return "".join(map(_in_effect, part.source.parts))
    return str(named(_spell(part)))


def named(value: object) -> Any:
    """Return a YAML's ``value`` with ``${oc.env:NAME}`` for each variable whose default is the empty text."""
    return _mapped(value, lambda text: _EMPTY_DEFAULT.sub(r"\1}", text))


def recomposed(
    effective: EffectiveConfig, symbols: EnvReferences, root: Path | None
) -> EffectiveConfig | None:
    """Return the launch composed with marks; None if nothing in it is symbolic, or marks cannot be placed.

    Where a mark cannot replace a word (``optim=$BACKEND`` chooses a file by it), the word's variables are
    frozen, and so are those whose text makes another list (``[${NAMES:-a,b}]`` has two elements).
    """
    launch = effective.launch
    while (marked := marked_launch(launch, symbols)) is not None:
        try:
            composed = recompose(effective, marked, root)
            reshaped = _reshaping(composed, effective, symbols)
            if reshaped <= symbols.frozen:
                return composed
            symbols.frozen.update(reshaped)
        except UserError as error:
            there = {
                part.source.name
                for word in launch.arguments
                for part in word.parts
                if word.where == error.where and isinstance(part.source, EnvRef)
            }
            if there <= symbols.frozen:
                return None
            symbols.frozen.update(there)
    return None


def _reshaping(marked: EffectiveConfig, effective: EffectiveConfig, symbols: EnvReferences) -> frozenset[str]:
    """Return the variables with a known default in lists that differ from those with the default's text."""
    lists = [setting for setting in marked.settings.values() if isinstance(setting.value, list | dict)]
    return frozenset(
        part.source.name
        for setting in lists
        if setting.key in effective.settings
        and symbols.plain(setting.value) != effective.settings[setting.key].value
        for part, _ in symbols.within(setting.value)
        if isinstance(part.source, EnvRef) and part.source.default is not None and not is_unknown(part)
    )


def marked_launch(launch: Launch, symbols: EnvReferences) -> Launch | None:
    """Return the launch with marks; None when nothing in it is symbolic."""
    words = (*launch.arguments, *launch.env.values())
    if not any(part.source for word in words for part in word.parts):
        return None
    arguments = tuple(_marked(word, symbols) for word in launch.arguments)
    return replace(launch, arguments=arguments)


def marked_text(word: Word, symbols: EnvReferences) -> str:
    """Return the text of one word with marks."""
    return _marked(word, symbols).text


def resolved_launch(launch: Launch, env: Mapping[str, str]) -> Launch:
    """Return the launch with every environment variable filled in.

    What it exports under a secret's name stays as it is: no YAML holds it.

    Raises UserError for a variable that has neither a value nor a default, and for any piece that only a run
    of the script would give.
    """
    for name, value in env.items():
        remember(name, value)
    arguments = tuple(_resolved(word, env) for word in launch.arguments)
    own = {**launch.env, **{name: word for name, word in launch.assigned.items() if name in env}}
    return replace(
        launch,
        arguments=arguments,
        environ=env,
        env={name: word if is_secret(name) else _resolved(word, env) for name, word in own.items()},
    )


def _marked(word: Word, symbols: EnvReferences) -> Word:
    parts = (piece for part in word.parts for piece in _marked_pieces(part, word.where, symbols))
    return Word(tuple(parts), word.where)


def _marked_pieces(part: WordPart, where: Where, symbols: EnvReferences) -> Iterator[WordPart]:
    """Return a mark for the part; for a frozen one its text, with marks for unknown parts of its default."""
    source = part.source
    if symbols.marks(part):
        yield WordPart(symbols.mark(part, where), source)
    elif isinstance(source, EnvRef) and is_unknown(part):
        for piece in source.parts:
            yield from _marked_pieces(piece, where, symbols) if is_unknown(piece) else [piece]
    else:
        yield part


def is_unknown(part: WordPart) -> bool:
    """Return True if the part has no text here, or is a default that holds such a part."""
    source = part.source
    if isinstance(source, EnvRef) and source.parts:
        is_default = part.text == "".join(piece.text for piece in source.parts)
        return is_default and any(map(is_unknown, source.parts))
    return source is not None and not part.text


def _resolved(word: Word, env: Mapping[str, str]) -> Word:
    return Word(tuple(_filled(part, word.where, env) for part in word.parts), word.where)


def _filled(part: WordPart, where: Where, env: Mapping[str, str]) -> WordPart:
    source = part.source
    if isinstance(source, EnvRef):
        return WordPart(_variable(source, part.text, where, env))
    if isinstance(source, UnknownPiece) and not part.text:
        name = re.fullmatch(r"\$\{?(\w+).*", source.expression)
        raise UserError(
            f"{source.expression} can only be known by running the script",
            where=source.where,
            hint=f"give it: --env {name.group(1)}=…"
            if name
            else "translate without --resolve, or edit the value in",
        )
    return WordPart(part.text)


def _variable(source: EnvRef, known: str, where: Where, env: Mapping[str, str]) -> str:
    """Return a variable's value: the given one, else its default (its own pieces filled in too)."""
    if source.name in env:
        return env[source.name]
    if source.parts:
        return "".join(_filled(part, where, env).text for part in source.parts)
    value = known or source.default
    if value is None:
        raise UserError(f"${source.name} is not set", where=where, hint=f"give it: --env {source.name}=…")
    return value


def _replaced(value: object, text_of: Callable[[int], str]) -> object:
    return _mapped(value, lambda text: _MARK.sub(lambda match: text_of(int(match.group(1))), text))


def _mapped(value: object, change: Callable[[str], str]) -> object:
    """Return ``value`` with every text in it changed, those of keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value


def _spell(part: WordPart) -> str:
    source = part.source
    if isinstance(source, EnvRef):
        if source.default is None and (source.required or source.name in _ALWAYS_SET):
            return f"${{oc.env:{source.name}}}"
        default = "".join(map(_spell, source.parts)) if source.parts else _quoted(source.default or "")
        return f"${{oc.env:{source.name},{default}}}"
    if isinstance(source, UnknownPiece):
        # The YAML's reader shall see the expression, not resolve it.
        return source.expression.replace("${", "\\${")
    return part.text


def _quoted(default: str) -> str:
    """Return a default quoted so that OmegaConf's grammar reads back the same text."""
    if re.fullmatch(r"[\w/.@+-]+(?: [\w/.@+-]+)*", default) and _as_omegaconf_reads(default) == default:
        return default
    return "'" + default.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _as_omegaconf_reads(text: str) -> str:
    """Return a default without quotes as oc.env returns it.

    OmegaConf reads numbers and truth values: 1e-6 comes back as 1e-06 and false as False.
    """
    if text.lower() in ("true", "false", "null"):
        return text.lower().title()
    for read in (int, float):
        try:
            return str(read(text))
        except ValueError:
            continue
    return text
