"""The arguments of a launch: Hydra's own flags apart from the overrides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import ARGUMENTS
from trinity_compat.launch import entrypoints
from trinity_compat.launch.model import Diagnostic, Launch, UnknownPiece, Word, WordPart
from trinity_compat.launch.unset_variables import missing
from trinity_compat.verl_config.grammar import (
    DELETE,
    Override,
    OverrideSyntaxError,
    SweepError,
    parse_override,
    split_key,
)

_VALUED = {
    "--config-path": "config_path",
    "-cp": "config_path",
    "--config-name": "config_name",
    "-cn": "config_name",
    "--config-dir": "config_dir",
    "-cd": "config_dir",
    "--cfg": "cfg",
    "-c": "cfg",
    "--package": "package",
    "-p": "package",
    "--experimental-rerun": "rerun",
}
_NAMING = ("config_path", "config_name", "config_dir")  # which name a file
_BARE = {
    "--resolve": "resolve",
    "--run": "run",
    "-r": "run",
    "--multirun": "multirun",
    "-m": "multirun",
    "--help": "help",
    "-h": "help",
    "--hydra-help": "hydra_help",
    "--version": "version",
    "--shell-completion": "shell_completion",
    "-sc": "shell_completion",
}
_QUOTES = re.compile("[\u2018-\u201f]")
_BLANKS = re.compile("[\u00a0\u2000-\u200b\u202f\u3000\ufeff]")
_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
_NO_ELEMENT = re.compile(r"^\[\s*,|^\[.*,\s*[],]")
_SECTIONS = "actor_rollout_ref|algorithm|critic|custom_reward_function|data|reward_model|reward|trainer"
_SECOND_KEY = (
    re.compile(rf"(\+\+|\+)?({_SECTIONS})(\.\w+)+="),
    re.compile(r"(\+\+|\+)?[A-Za-z_]\w*(\.\w+)+="),
    re.compile(r"(?<=[\w.])(~[A-Za-z][\w.]*|#)$"),  # a deletion, or a comment
)
_KEY = re.compile(r"(\+\+|\+)?[A-Za-z_][\w.@/-]*")
_OPTIONAL = {"--info": "info", "-i": "info"}
_LONG = [name for name in (*_VALUED, *_BARE, *_OPTIONAL) if name.startswith("--")]


@dataclass(frozen=True, slots=True)
class HydraFlags:
    """Hydra's own command line: ``values`` by name (config_path, cfg, …), bare ones hold ""."""

    values: dict[str, str] = field(default_factory=dict)
    words: dict[str, Word] = field(default_factory=dict)

    @property
    def multirun(self) -> bool:
        """Return True for ``--multirun``."""
        return "multirun" in self.values

    @property
    def cfg(self) -> str | None:
        """``job``, ``hydra`` or ``all`` of --cfg: print the configuration, run nothing."""
        return self.values.get("cfg")

    def get(self, name: str) -> str | None:
        """Return the value of a flag, None where it is not given."""
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class GivenOverride:
    """An override of the launch with the word that it was written as."""

    override: Override
    word: Word

    @property
    def where(self) -> Where:
        """Return the override's place."""
        return self.word.where

    @property
    def spelling(self) -> str:
        """The key as the user wrote it, with its operator."""
        return self.override.line.partition("=")[0]

    @property
    def value_word(self) -> Word:
        """The part of the word after the first ``=``."""
        _, equals, _ = self.word.text.partition("=")
        return (
            cut(self.word, self.word.text.index("=") + 1) if equals else cut(self.word, len(self.word.text))
        )


@dataclass(frozen=True, slots=True)
class LaunchArguments:
    """A launch's command line, read. ``hydra`` holds the overrides of Hydra's own node."""

    flags: HydraFlags
    overrides: tuple[GivenOverride, ...]
    hydra: tuple[GivenOverride, ...]
    diagnostics: tuple[Diagnostic, ...]


def cut(word: Word, start: int) -> Word:
    """Return ``word`` without its first ``start`` characters; origins of the rest are kept."""
    parts: list[WordPart] = []
    for part in word.parts:
        if start > 0 and start >= len(part.text):
            start -= len(part.text)
            continue
        parts.append(replace(part, text=part.text[start:]) if start else part)
        start = 0
    return Word(tuple(parts), word.where)


def hydra_flags(launch: Launch) -> HydraFlags:
    """Hydra's own flags among the arguments: ``--cfg job``, ``--multirun``, ``--config-name`` ….

    Raises UserError for a flag without its value or one that Hydra doesn't have.
    """
    return _split(launch.arguments)[0]


def read_arguments(launch: Launch) -> LaunchArguments:
    """Tell flags from overrides and read each override by Hydra's grammar.

    What Hydra would refuse becomes a diagnostic of severity ``error`` and is left out.
    Raises UserError for broken flags, which leave no configuration to speak of.
    """
    flags, words, notes = _split(launch.arguments)
    given: list[GivenOverride] = []
    if len(words) > ARGUMENTS:
        where = words[ARGUMENTS].where
        raise UserError(f"a launch of more than {ARGUMENTS} overrides is not read", where=where)
    explained = 0
    for at, word in enumerate(words):
        if at < explained:
            continue
        if note := _unreadable(word):
            notes.append(note)
            continue
        try:
            given.append(GivenOverride(_read(word), word))
        except OverrideSyntaxError as error:
            if isinstance(error, SweepError):
                notes.append(_sweep(word, multirun=flags.multirun))
            else:
                note, count = _refused(words, at, error)
                notes.append(note)
                explained = at + count
    own = tuple(item for item in given if not _is_hydras(item.override))
    hydra = tuple(item for item in given if _is_hydras(item.override))
    return LaunchArguments(flags, own, hydra, tuple(notes))


def _is_hydras(override: Override) -> bool:
    return override.key == "hydra" or override.key.startswith(("hydra.", "hydra/"))


def _read(word: Word) -> Override:
    """An override; a value that holds an open piece stays text, for it cannot be typed."""
    if not word.open:
        return parse_override(word.text)
    op, key, text = split_key(word.text)
    return Override(word.text, op, key, text, None, text is not None)


def _unreadable(word: Word) -> Diagnostic | None:
    """Refuse a word of which an open piece may hold the ``=``, or stand before it."""
    for part in word.parts:
        if isinstance(part.source, UnknownPiece):
            unknown = part.source.expression
            if word.text:
                message = f"the key of '{word.text}' depends on {unknown}, which is known only at run time"
            else:
                message = f"an argument is known only at run time: {unknown}"
            message += "; write out the key=value that it becomes"
            return Diagnostic("TP204", message, word.where, "error")
        if "=" in part.text:
            break
    return None


def _sweep(word: Word, *, multirun: bool) -> Diagnostic:
    """Several values: with Hydra's --multirun they are several runs, without it Hydra refuses them."""
    _, key, value = split_key(word.text)
    if multirun:
        message = (
            f"'{word.text}' is several runs (--multirun), a configuration is one; "
            f"write {key}=VALUE with one of them, and a command line for each combination"
        )
    else:
        message = (
            f"'{word.text}' asks for several runs, which needs --multirun; "
            f"write {key}=[{value}] for a list, {key}='\"{value}\"' for a text"
        )
    return Diagnostic("TP209", message, word.where, "error")


def _cause(word: Word) -> str | None:
    """Return what quotes around the value would not repair."""
    text = word.text
    if dash := entrypoints.OTHER_DASH.search(text):
        instead = entrypoints.with_hyphens(text)
        return f"{dash[0]} is U+{ord(dash[0]):04X}, which is not a minus sign: write {instead}"
    value = text.partition("=")[2].strip()
    joined = next(filter(None, (key.search(value) for key in _SECOND_KEY)), None)
    if joined and value[:1] not in tuple("[{'\""):
        return f"a blank is missing before {joined[0]}: does the line above end in a backslash without one?"
    if value.startswith("[") and not value.endswith("]"):
        return "the list continues in the next word: quote the whole argument, and the variable that holds it"
    if _NO_ELEMENT.search(value) and (names := [ref.name for ref in map(missing, word.parts) if ref]):
        given = " ".join(f"--env {name}=…" for name in names)
        listed = " and ".join(f"${name}" for name in names)
        are = "is" if len(names) == 1 else "are"
        return f"{listed} {are} not set, so that an element is empty: give {given}"
    if _NO_ELEMENT.search(value):
        return "an element of the list is empty: a comma too many, or a variable that is not set?"
    if value.endswith(",") and value.count(",") == 1:
        return f"remove the comma at its end: write {text.rstrip().rstrip(',')}"
    return None


def _refused(words: list[Word], at: int, error: OverrideSyntaxError) -> tuple[Diagnostic, int]:
    """Return what is wrong with the word at ``at``, and the number of words that this explains."""
    word, text, count = words[at], words[at].text, 1
    where = word.where
    if found := _blanks(words, at):
        message, count, where = found
    elif not text.strip(" \t\r\n\\"):
        why = "a line that ends in CR LF?" if "\r" in text else "a stray backslash or quotes in the script?"
        message = f"{text!r} is not an override: Hydra refuses it ({why})"
    elif slip := _slip(text, words[at + 1].text if at + 1 < len(words) else ""):
        message = f"'{text}' {slip}"
    elif cause := _cause(word):
        message = f"Hydra cannot read '{text}': {cause}"
        count = _words_of_list(words, at)
    elif "=" not in text and not text.startswith(DELETE):
        message = f"'{text}' has no '=': Hydra refuses it"
        message += f"; write {text.strip()}=VALUE" if _KEY.fullmatch(text.strip()) else ""
    else:
        _, key, value = split_key(text)
        message = f"Hydra cannot read '{text}' ({error}); quote the value: {key}='\"{value}\"'"
    return Diagnostic("TP204", message, where, "error"), count


def _blanks(words: list[Word], at: int) -> tuple[str, int, Where] | None:
    """Describe blanks around an ``=``, count the words that they make of one, and say where its key is.

    The value may come from a variable of another line.
    """
    before, key, after, value = (words[i].text if 0 <= i < len(words) else "" for i in range(at - 1, at + 3))
    if _KEY.fullmatch(before[:-1]) and before.endswith("=") and "=" not in key:
        message = f"'{key}' has a blank before it: write {before}{key}, with no blank around '='"
        return message, 1, words[at - 1].where
    if not _KEY.fullmatch(key) or not after.startswith("="):
        return None
    joined = f"{key}{after}{value if after == '=' else ''}"
    message = f"'{key}' has a blank before '=': write {joined}, with no blank around '='"
    return message, 2 + (after == "="), words[at].where


def _words_of_list(words: list[Word], at: int) -> int:
    """Return of how many words a list consists that bash has split, 1 for another word."""
    if not words[at].text.partition("=")[2].startswith("["):
        return 1
    ends = (i for i in range(at, len(words)) if words[i].text.endswith("]"))
    end = next(ends, at)
    return end - at + 1 if not any("=" in word.text for word in words[at + 1 : end + 1]) else 1


def _slip(text: str, following: str) -> str:
    """Describe an invisible mistake in a refused word, such as a space; "" for none."""
    if found := _QUOTES.search(text):
        return f"has the typographic quote '{found[0]}': write \" or '"
    if found := _BLANKS.search(text):
        return (
            f"has the character U+{ord(found[0]):04X}, which is not a blank to bash or Hydra: type it again"
        )
    if _NOT_UTF_8.search(text):
        return "is not UTF-8: save the script as UTF-8"
    key, _, value = text.partition("=")
    if value.startswith("~/"):
        return f"is refused by Hydra, and bash leaves a '~' after '=' as it is: write {key}=$HOME{value[1:]}"
    key, blank, value = text.strip().partition(" ")
    value = value.strip() if blank else following
    if "." in key and _KEY.fullmatch(key) and value and "=" not in value and not _KEY.fullmatch(value):
        return f"has a blank where '=' belongs: write {key}={value}"
    return ""


def _split(arguments: tuple[Word, ...]) -> tuple[HydraFlags, list[Word], list[Diagnostic]]:
    flags, notes = HydraFlags(), []
    blocks: list[list[Word]] = [[]]
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if word.text == "--":
            blocks[-1] += queue
            break
        if not word.text.startswith("-") or word.text == "-":
            blocks[-1].append(word)
            continue
        _take_flag(word, queue, flags)
        if blocks[-1]:
            blocks.append([])
    if len(blocks) > 1 and blocks[1]:
        word = blocks[1][0]
        message = (
            f"'{word.text}' follows a flag that follows overrides: Hydra's command line refuses it "
            "(unrecognized arguments); write the flags before all overrides"
        )
        notes.append(Diagnostic("TP212", message, word.where, "error"))
    return flags, [word for block in blocks for word in block], notes


def _take_flag(word: Word, queue: list[Word], flags: HydraFlags) -> None:
    """One flag in argparse's spellings: ``--name value``, ``--name=value``, ``-cnvalue``, a prefix."""
    spelled, equals, value = word.text.partition("=")
    name = _full_name(spelled, word)
    target = _VALUED.get(name) or _BARE.get(name) or _OPTIONAL[name]
    if name in _VALUED and not equals:
        value = "" if spelled.startswith("--") else spelled[len(name) :]
        if not value:
            if not queue or queue[0].text.startswith("-"):
                raise UserError(
                    f"{word.text} needs a value", where=word.where, hint=f"write {word.text} NAME"
                )
            value = queue.pop(0).text
    elif name in _OPTIONAL and not equals:
        value = "all"
    if word.open and target in _NAMING:
        unknown = word.open[0]
        raise UserError(
            f"{word.text} depends on {unknown.expression}, which is known only at run time",
            where=unknown.where,
            hint="give the arguments or variables on which it depends (-- ARGUMENTS, --env NAME=VALUE)",
        )
    flags.values[target] = value
    flags.words[target] = word


def _full_name(spelled: str, word: Word) -> str:
    known = (*_VALUED, *_BARE, *_OPTIONAL)
    if spelled in known:
        return spelled
    if spelled.startswith("--"):
        matches = [name for name in _LONG if name.startswith(spelled)]
    else:
        matches = [name for name in sorted(_VALUED, key=len, reverse=True) if spelled.startswith(name)][:1]
    if len(matches) == 1:
        return matches[0]
    raise UserError(
        f"{spelled} is not a flag of Hydra's command line",
        where=word.where,
        hint=f"overrides are written key=value; Hydra's flags are {', '.join(sorted(_LONG))}",
    )
