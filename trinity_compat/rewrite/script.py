"""Upgrades the text of a shell script: each launch is planned, each word edited at its place.

The result is read again: it counts only if every launch has exactly the arguments that were planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trinity_compat.common import limits
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.readable_files import named_content
from trinity_compat.common.redaction import masked
from trinity_compat.common.releases import VERL
from trinity_compat.launch import read_script, read_text, refuse_lost_arguments
from trinity_compat.launch.model import Diagnostic, Launch, Reading, Word
from trinity_compat.rewrite.bash_text import BashText, Edit, NotEditable, Place, applied
from trinity_compat.rewrite.plan import (
    LaunchPlan,
    NewWord,
    Remark,
    WordChange,
    added_word,
    new_words,
    plan,
    with_files,
)
from trinity_compat.verl_config import effective_config
from trinity_compat.verl_config.config_search import releases_of
from trinity_compat.verl_config.grammar import ADD, DELETE, FORCE, hydra_text, parse_value
from trinity_compat.verl_config.model import EffectiveConfig, VersionChoice
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.releases import FLAVOURS
from trinity_compat.verl_config.upgrade import DERIVED_FROM, KeyChange, row_for

_OTHERS = (".py", ".ipynb", ".yaml", ".yml")  # files that are read, and not as bash


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """The way in which sources are read, as for ``read_script`` and ``effective_config``.

    ``of_scripts``: config files with a ``defaults`` list are files of scripts that are upgraded with them;
    these get the defaults that have changed. ``is_command``: the text is a command's, which no file holds.
    """

    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    version: str | None = None
    fork_config: bool = True
    files: Mapping[str, str] = field(default_factory=dict)  # as for `plan.plan`
    of_scripts: bool = False
    is_command: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a text with its reason. ``after`` is empty for what goes, ``before`` for what comes."""

    where: Where
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        if not self.after:
            return f"{self.where}: {self.before} is removed: {self.why}"
        if not self.before:
            return f"{self.where}: {self.after} is added: {self.why}"
        return f"{self.where}: {self.before} becomes {self.after}: {self.why}"


@dataclass
class Upgraded:
    """A source before and after. ``refused`` cannot be carried; ``kept`` has no effect under the target.

    ``releases``: those that its launches are taken for, with the reasons.
    """

    path: str
    before: bytes
    after: bytes
    changes: list[Change] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    kept: list[Remark] = field(default_factory=list)
    launches: int = 0
    releases: list[Remark] = field(default_factory=list)
    notes: str = ""  # of the reading of a script without launches

    def take_for(self, where: Where, choice: VersionChoice) -> None:
        """Note the release that a launch is upgraded from; each reason once."""
        if all(remark.text != choice.why for remark in self.releases):
            self.releases.append(Remark(where, f"taken for veRL {choice.value}", choice.why))

    def refuse(self, where: Where, spelled: str, text: str) -> None:
        """Note what cannot be carried, once."""
        remark = Remark(where, spelled, text)
        if remark not in self.refused:
            self.refused.append(remark)

    def note(self, where: Where, before: str, after: str, why: str) -> None:
        """Note a change, once, with secrets masked."""
        texts = list(masked([before, after]))
        change = Change(where, texts[0], texts[1], why)
        if change not in self.changes:
            self.changes.append(change)

    def give_up(self, what: str, why: str) -> None:
        """Leave the source as it is."""
        self.changes.clear()
        self.refused.append(Remark(Where(self.path), what, f"is not changed: {why}"))

    @property
    def changed(self) -> bool:
        """Return whether the text differs."""
        return self.before != self.after


def upgrade_script(path: str, options: UpgradeOptions) -> Upgraded:
    """Upgrade a shell script; one without launches stays. Raises UserError for one that cannot be read."""
    if path.endswith(_OTHERS):
        raise UserError("upgrade changes shell scripts and YAML configurations only", where=Where(path))
    reading = _read(path, options)
    return _upgraded(path, named_content(path, limits.SCRIPT, options.cwd), reading, options)


def upgrade_command(name: str, command: str, options: UpgradeOptions) -> Upgraded:
    """Upgrade a command that stands in no script; ``name`` is what messages call it."""
    text, options = command.encode(errors="surrogateescape"), replace(options, is_command=True)
    return _upgraded(name, text, _read(name, options, text), options)


def _upgraded(path: str, before: bytes, reading: Reading, options: UpgradeOptions) -> Upgraded:
    refuse_lost_arguments(reading)
    out = Upgraded(path, before, before, launches=len(reading.launches))
    if not reading.launches:
        out.notes = "; ".join(f"{note.where}: {note.message}" for note in reading.diagnostics)
        return out
    try:
        text = BashText(before)
    except NotEditable as problem:
        out.give_up("this script", str(problem))
        return out
    session = _Session(text, path, options, out)
    for launch in reading.launches:
        session.launch(launch)
    session.finish(reading)
    return out


def _read(path: str, options: UpgradeOptions, text: bytes | None = None) -> Reading:
    if options.is_command and text is not None:
        return read_text(text.decode(errors="surrogateescape"), name=path, cwd=options.cwd, env=options.env)
    return read_script(path, cwd=options.cwd, env=options.env, args=options.arguments, content=text)


class _Session:
    """The edits of one text, launch by launch."""

    def __init__(self, text: BashText, path: str, options: UpgradeOptions, out: Upgraded) -> None:
        self.text, self.path, self.options, self.out = text, path, options, out
        self.edits: list[Edit] = []
        self.behind: dict[int, tuple[Place, list[bytes]]] = {}
        self.expected: list[list[str]] = []
        self.uses: dict[tuple[str, str], set[int]] = {}  # (variable, new value) → words
        self.planned: list[tuple[EffectiveConfig, LaunchPlan] | None] = []
        self.faults: set[tuple[str, str]] = set()  # what Hydra refuses of the old launches

    def launch(self, launch: Launch) -> None:
        """Plan and place the changes of one launch."""
        self.expected.append([word.text for word in launch.arguments])
        self.planned.append(None)
        root = self.options.cwd
        if VERL not in releases_of(launch.taken_for):
            why = f"is not part of veRL {VERL}: what became of its keys is not known"
            self.out.refuse(launch.where, launch.module, why)
            return
        config = effective_config(
            launch, version=self.options.version, root=root, fork_config=self.options.fork_config
        )
        if config.fork is not None:
            self.out.refuse(
                launch.where,
                launch.module,
                f"starts from the copy of veRL in {config.fork.folder}, whose code is not veRL {VERL}'s;"
                " --no-fork-config takes it for the release that its keys fit",
            )
            return
        self.out.take_for(launch.where, config.version)
        self.faults |= {_fault(note) for note in config.diagnostics if note.severity == "error"}
        planned = plan(config, root, files=self.options.files)
        self.planned[-1] = config, planned
        for kind, found in ((self.out.refused, planned.refused), (self.out.kept, planned.kept)):
            kind += [remark for remark in found if remark not in kind]
        words: list[str] = []
        changes = {change.index: change for change in planned.changes}
        self._count_uses(launch, planned.changes)
        for index, word in enumerate(launch.arguments):
            change = changes.get(index)
            if change is None or not self._change(launch, change):
                words.append(word.text)
            else:
                words += [new.text for new in new_words(launch, index, change)]
        self.expected[-1] = words + self._add(launch, planned, changes)

    def _place(self, launch: Launch, index: int) -> Place:
        """Find the place of an argument. Raises NotEditable."""
        word = launch.arguments[index]
        head = _head_of(word)
        places = _places_of(self.text, word, self.path)
        if not places:
            raise NotEditable("it is not written out in this file as key=value")
        same = [
            number
            for number, other in enumerate(launch.arguments)
            if _head_of(other) == head and other.where == word.where
        ]
        nearest = sorted(places[: len(same)], key=lambda place: place.start)
        return nearest[min(same.index(index), len(nearest) - 1)]

    def _count_uses(self, launch: Launch, changes: list[WordChange]) -> None:
        """Count the words that are one variable and all get the same new value."""
        for change in changes:
            if len(change.new) != 1 or change.new[0].value is None:
                continue
            try:
                place = self._place(launch, change.index)
            except NotEditable:
                continue
            name = self.text.variable_of(place)
            self.uses.setdefault((name, change.new[0].value), set()).add(place.start)

    def _change(self, launch: Launch, change: WordChange) -> bool:
        """Make the edits of one argument; name it where that cannot be."""
        word = launch.arguments[change.index]
        head, _, value = word.text.partition("=")
        try:
            edits = self._edits(self.text, self._place(launch, change.index), head, value, change.new)
        except NotEditable as problem:
            became = " and ".join(map(shown, change.new)) if change.new else "nothing"
            self.out.refuse(word.where, head, f"is {became} now ({change.why}): {problem}")
            return False
        self.edits += edits
        after = " ".join(map(shown, change.new))
        revalued = not change.new or any(new.value is not None for new in change.new)
        self.out.note(word.where, word.text if revalued else head, after, change.why)
        return True

    def _edits(
        self, text: BashText, place: Place, head: str, value: str, new: Sequence[NewWord]
    ) -> list[Edit]:
        """Return the edits that make a word ``new``. Raises NotEditable."""
        if not new:
            return [text.removed(place)]
        first, *others = new
        edits = []
        if first.head != head:
            edits.append(text.renamed(place, first.head, head))
        if first.value is not None:
            edits.append(self._revalued(text, place, value, first))
        if others:
            copies = [text.copy(place, other.head, head, other.value) for other in others]
            edits.append(text.inserted(place, copies))
        return edits

    def _revalued(self, text: BashText, place: Place, old: str, new: NewWord) -> Edit:
        try:
            uses = self.uses.get((text.variable_of(place), new.value or ""), ())
            return text.revalued(place, old, new.value or "", max(1, len(uses)))
        except NotEditable:
            if new.only:
                return text.rewritten(place, new.value or "")
            divided = text.divided(place, new.divisor) if new.divisor else None
            if divided is None:
                raise
            return divided

    def _add(self, launch: Launch, planned: LaunchPlan, changes: Mapping[int, WordChange]) -> list[str]:
        """Write the additions behind the last argument that stays; return their texts."""
        if not planned.added:
            return []
        anchor = self._anchor(launch, changes)
        out = []
        for added in planned.added:
            text = added_word(launch, added).text
            try:
                if anchor is None:
                    raise NotEditable("no argument of the launch is written out in this file")
                place, where = anchor
                if added.copied is None:
                    word = self.text.word(added.new.head, added.new.value or "", place)
                else:
                    source = self._place(launch, added.copied)
                    head = launch.arguments[added.copied].text.partition("=")[0]
                    word = self.text.copy(source, added.new.head, head, None)
            except NotEditable as problem:
                self.out.refuse(launch.where, text, f"is needed now ({added.why}): {problem}")
                continue
            words = self.behind.setdefault(place.start, (place, []))[1]
            if word not in words:
                words.append(word)
            self.out.note(where, "", text, added.why)
            out.append(text)
        return out

    def _anchor(self, launch: Launch, changes: Mapping[int, WordChange]) -> tuple[Place, Where] | None:
        """The last argument that stays, best one that stands in the command itself."""
        found = []
        for index, word in enumerate(launch.arguments):
            if (
                "=" not in word.text
                or word.text.startswith("-")
                or (index in changes and not changes[index].new)
            ):
                continue
            try:
                place = self._place(launch, index)
            except NotEditable:
                continue
            found.append(
                (place.token.kind == "argument" and place.alone, place.alone, index, place, word.where)
            )
        if not found:
            return None
        best = max(found, key=lambda item: item[:3])
        return best[3], best[4]

    def finish(self, reading: Reading) -> None:
        """Apply the edits, read the script again, and keep the result only if it is what was planned."""
        edits = list(self.edits)
        try:
            edits += [self.text.inserted(place, words) for place, words in self.behind.values()]
            after = applied(self.text.source, edits)
        except NotEditable as problem:
            self.out.give_up("this script", str(problem))
            return
        again = reading
        if after != self.text.source:
            again = _read(self.path, self.options, after)
            if not _has_launches(again, reading, self.expected):
                self.out.give_up("this script", "its launches would not get the arguments that are meant")
                return
        carried = all(self.planned)  # keys beside a launch that stays as it is may be its fork's
        if carried:
            after, again = self._with_unreached(after, again)
        self.out.after = after
        # Name what veRL's target would refuse of the new script.
        for launch, planned in zip(again.launches, self.planned, strict=True):
            if planned is None:
                continue
            launch = with_files(launch, self.options.files)
            composed = effective_config(launch, version=VERL, root=self.options.cwd)
            for note in composed.diagnostics:
                if note.severity != "error":
                    continue
                before = " (its own release refuses it, too)" if _fault(note) in self.faults else ""
                self.out.refuse(note.where, launch.module, note.message + before)
            said = {remark.spelled.lstrip("+").partition("=")[0] for remark in self.out.refused}
            for remark in planned[1].remaining(planned[0], composed):
                if remark.spelled not in said:
                    self.out.refuse(remark.where, remark.spelled, remark.text)
        text = BashText(after)
        for at, key, _, row in self._unreached(text, again) if carried else ():
            became = " and ".join(row.targets(key)) or "nothing"
            became = f"{key} with another value" if became == key else became
            why = f"is {became} now ({row.why}); no launch takes it here as the script is read"
            self.out.refuse(Where(self.path, text.line_of(at)), key, f"{why}: change it by hand")

    def _with_unreached(self, after: bytes, reading: Reading) -> tuple[bytes, Reading]:
        """Return the text with its unreached keys changed, if its launches stay as they are."""
        text = BashText(after)
        changed = list(self._unreached_changes(text, reading))
        words = [[word.text for word in launch.arguments] for launch in reading.launches]
        try:
            new = applied(after, [edit for edits, _ in changed for edit in edits])
            BashText(new)
            again = _read(self.path, self.options, new) if changed else reading
        except (NotEditable, UserError):
            return after, reading
        if not _has_launches(again, reading, words):
            return after, reading
        self.out.changes += [change for _, change in changed]
        return new, again

    def _unreached(self, text: BashText, reading: Reading) -> Iterator[tuple[int, str, str, KeyChange]]:
        """Yield place, key, plain value and row of older releases' keys that no launch takes."""
        known = {
            place.key + len(_head_of(word)) - len(_head_of(word).lstrip("+~"))
            for launch in reading.launches
            for word in launch.arguments
            for place in _places_of(text, word, self.path)
        }
        flavour = next((planned[0].flavour for planned in self.planned if planned), FLAVOURS[0])
        for at, key, value in text.dotted_keys():
            row = row_for(key, flavour)
            if at in known or row is None or row.forks:
                continue
            known_value = parse_value(value) if value else ""
            if row.targets(key) != (key,) or row.value(known_value) != known_value:
                yield at, key, value, row

    def _unreached_changes(self, text: BashText, reading: Reading) -> Iterator[tuple[list[Edit], Change]]:
        """Yield the edits of the unreached words whose new ones do not depend on the rest of the launch."""
        for at, key, old, row in self._unreached(text, reading):
            head = text.operator_at(at) + key
            start, line = at + len(key) - len(head), text.line_of(at)
            place = next((place for place in text.places(head, line) if place.key == start), None)
            new = _unreached_words(head, key, old, row)
            if place is None or new is None:
                continue
            try:
                edits = self._edits(text, place, head, old, new)
            except NotEditable:
                continue
            revalued = not new or new[0].value is not None
            texts = list(masked([f"{head}={old}" if revalued and old else head, " ".join(map(shown, new))]))
            why = f"{row.why}; no launch takes it as the script is read"
            yield edits, Change(Where(self.path, line), texts[0], texts[1], why)


def _has_launches(new: Reading, old: Reading, words: Sequence[Sequence[str]]) -> bool:
    """Return whether the new text has the old one's launches, with these arguments in any order."""
    return [launch.module for launch in new.launches] == [launch.module for launch in old.launches] and (
        [Counter(word.text for word in launch.arguments) for launch in new.launches]
        == list(map(Counter, words))
    )


def _unreached_words(head: str, key: str, old: str, row: KeyChange) -> list[NewWord] | None:
    """Return what a word in a branch that is not taken becomes; None where that depends on the launch.

    ``head``: the key with its operator; ``old``: its value where that is a plain word, else "".
    """
    operator = head.removesuffix(key)
    if operator == DELETE or key in DERIVED_FROM.values() or (row.values and not old):
        return None
    value = parse_value(old) if old else old
    if row.skip_null and value is None:
        return []
    now = row.value(value)
    text = hydra_text(now) if type(now) is not type(value) or now != value else None
    nodes = pinned_release(FLAVOURS[0]).nodes
    heads = [
        (operator if operator == FORCE else "" if target in nodes else ADD) + target
        for target in row.targets(key)
    ]
    return [NewWord(new, text) for new in heads]


def _head_of(word: Word) -> str:
    """Return an argument's key with its operator."""
    return word.text if word.text.startswith("~") else word.text.partition("=")[0]


def _places_of(text: BashText, word: Word, path: str) -> list[Place]:
    return text.places(_head_of(word), word.where.line) if word.where.file == path else []


def shown(new: NewWord) -> str:
    """Return a new word as messages show it."""
    return new.head if new.value is None else f"{new.head}={new.value}"


def _fault(note: Diagnostic) -> tuple[str, str]:
    """Code and subject of an error, without what the release has to say on it."""
    return note.code, note.message.partition(": ")[0]
