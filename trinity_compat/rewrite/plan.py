"""Plan of the changes in a launch's arguments that keep their meaning under the target.

The meaning is ``verl_config.upgrade``'s: the launch's configuration carried to the target. A plan names for
each argument the keys that take its place, with the reason, and the keys that have to be added because a
default is another now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import leaves, nested, nodes, value_at
from trinity_compat.common.releases import VERL, VERL_RELEASES, VLLM_ON_GPU
from trinity_compat.job import vllm_arguments
from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.translate.micro_batch_sizes import MicroBatchSize, has_critic, sizes
from trinity_compat.verl_config import effective_config
from trinity_compat.verl_config.arguments import GivenOverride, cut, read_arguments
from trinity_compat.verl_config.grammar import ADD, DELETE, FORCE, SET, hydra_text
from trinity_compat.verl_config.interpolate import is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig, Setting
from trinity_compat.verl_config.pinned import Pinned, pinned_release
from trinity_compat.verl_config.reads import read_of, sentence
from trinity_compat.verl_config.upgrade import DERIVED_FROM, UpgradeResult, row_for, upgrade

_VLLM = vllm_arguments.SECTION + "."
_V1 = "trainer.use_v1"
_V1_WHY = "older releases have the v0 trainer alone; v1, the default now, makes mini-batches of other rows"
NO_FILES: Mapping[str, str] = MappingProxyType({})
_AS_BEFORE = "the default of veRL {old} is {value}, that of {target} {now}"
_NO_KEY = f"veRL {VERL} has no such key"


@dataclass(frozen=True, slots=True)
class NewWord:
    """A ``key=value`` of the target. ``value`` None: the text after the ``=`` stays as it is written.

    ``divisor``: by which the old value was divided, 0 where it was not. ``only``: the key takes no other
    value.
    """

    head: str  # the key with its operator
    value: str | None = None
    divisor: int = 0
    only: bool = False


@dataclass(frozen=True, slots=True)
class WordChange:
    """The argument at ``index`` becomes ``new``; nothing where that is empty."""

    index: int
    new: tuple[NewWord, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AddedWord:
    """A ``key=value`` that the launch needs besides. ``copied``: the argument whose value it repeats."""

    new: NewWord
    why: str
    copied: int | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A word on a place: what stays and has no effect, or what cannot be carried."""

    where: Where
    spelled: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.spelled}: {self.text}"


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A key whose value is not the carried one. ``why`` says why that is meant, "" where it is not."""

    key: str
    carried: object
    now: object
    why: str


def differences(old: EffectiveConfig, carried: EffectiveConfig, new: EffectiveConfig) -> Iterator[ChangedKey]:
    """Yield what differs between ``carried``, the old configuration under the target, and the new one."""
    for key, setting in carried.settings.items():
        there = new.settings.get(key)
        if there is None or type(there.value) is not type(setting.value) or there.value != setting.value:
            why = _deliberate(key, old, carried, new)
            yield ChangedKey(key, setting.value, there.value if there else None, why)


def _deliberate(key: str, old: EffectiveConfig, carried: EffectiveConfig, new: EffectiveConfig) -> str:
    if key.endswith("._target_"):
        return "the class behind a section belongs to its release"
    found = read_of(key, VERL, old.flavour)
    if found is not None and found.ignored:
        return f"veRL {VERL} ignores it"
    if key not in new.settings and key not in carried.set_keys:
        return f"a default that veRL {VERL} has no key for"
    if key.startswith("critic.") and not has_critic(new.get):
        return "no critic is trained"
    if key.endswith("_micro_batch_size_per_gpu") and old.get(key.removesuffix("_per_gpu")) is not None:
        return "a micro-batch over all GPUs became that of one"
    if key.startswith(_VLLM):
        return "an engine argument of older vLLM"
    if key == "trainer.use_v1" and key in old.settings:
        return "the release had the choice of a trainer itself"
    return ""


@dataclass
class LaunchPlan:
    """The changes of one launch.

    ``refused``: what a person must decide; ``kept``: what the target ignores.
    """

    changes: list[WordChange] = field(default_factory=list)
    added: list[AddedWord] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    kept: list[Remark] = field(default_factory=list)
    carried: EffectiveConfig | None = None  # the configuration that the new launch is to have

    def remaining(self, old: EffectiveConfig, new: EffectiveConfig) -> Iterator[Remark]:
        """Yield what the new launch has otherwise than it should, where nothing has been said of the key."""
        assert self.carried is not None
        said = {remark.spelled.lstrip("+") for remark in self.refused}
        for found in differences(old, self.carried, new):
            if not found.why and found.key not in said:
                text = f"would be {found.now} under veRL {VERL} and was {found.carried}: write it out"
                yield Remark(old.launch.where, found.key, text)


def plan(
    config: EffectiveConfig,
    root: Path | None,
    *,
    files: Mapping[str, str] = NO_FILES,
    add_defaults: bool = True,
) -> LaunchPlan:
    """Plan the upgrade of the launch that ``config`` was composed from.

    ``files``: new texts of config files, by absolute path, that are upgraded as well. Without
    ``add_defaults`` defaults that have changed are not made up for.
    """
    return _Planner(config, root, files).plan(add_defaults=add_defaults)


class _Planner:
    def __init__(self, config: EffectiveConfig, root: Path | None, files: Mapping[str, str]) -> None:
        self.files = files
        self.config, self.root, self.launch = config, root, config.launch
        self.result: UpgradeResult = upgrade(config)
        self.carried = self.result.config.settings
        self.target: Pinned = pinned_release(config.flavour or "ppo_trainer")
        self.out = LaunchPlan(carried=self.result.config)
        self.given = read_arguments(self.launch).overrides
        places = {id(word): index for index, word in enumerate(self.launch.arguments)}
        self.index = {id(given): places[id(given.word)] for given in self.given}
        self.groups = {setting.key.lstrip("~") for setting in config.others}
        self.implied = {
            move.new[0]: move.why
            for move in self.result.moves
            if not move.old and not (move.new[0] == _V1 and _V1 in config.settings)
        }
        self.older = VERL_RELEASES.index(config.version.value) < VERL_RELEASES.index(VERL)
        self.sizes = {size.all_gpus: size for size in sizes(lambda _: True)}  # those of every model
        self.last = {given.override.key: given for given in self.given}
        self.nodes = self._target_nodes()
        self.superseded = dict(self._superseded())

    def plan(self, *, add_defaults: bool) -> LaunchPlan:
        """Return the plan."""
        for given in self.given:
            if self._chooses_group(given) and given.override.op != DELETE:
                continue
            change = self._change(given)
            if change is not None:
                self.out.changes.append(change)
        # Name the keys of the user's config files that have to change: they are not in the script.
        for key in self.config.set_keys:
            setting = self.config.settings[key]
            if setting.where is None or setting.word is not None:
                continue
            if str(Path(setting.where.file).resolve()) in self.files:
                continue
            row = row_for(key, self.config.flavour)
            if row is not None and (row.targets(key) != (key,) or row.value(setting.value) != setting.value):
                became = " and ".join(row.targets(key)) or "nothing"
                text = f"became {became} ({row.why}), and stands in a file of its own: upgrade that too"
                self.out.refused.append(Remark(setting.where, key, text))
        if self.older and add_defaults:
            self._add_defaults()
        self._note_ignored()
        return self.out

    def _target_nodes(self) -> frozenset[str]:
        """Return the keys that the target's composition has before the command line's overrides.

        The user's own config files can have keys that veRL lacks: they take no ``+``.
        """
        arguments = read_arguments(self.launch)
        if not (arguments.flags.values or arguments.hydra):
            return self.target.nodes
        plain = {id(given.word) for given in self.given if not self._chooses_group(given)}
        words = tuple(word for word in self.launch.arguments if id(word) not in plain)
        bare = with_files(replace(self.launch, arguments=words), self.files)
        try:
            composed = effective_config(bare, version=VERL, root=self.root, fork_config=False)
        except UserError:
            return self.target.nodes  # said when the new script is composed
        return frozenset(nodes(nested(dict.fromkeys(composed.settings))))

    def _chooses_group(self, given: GivenOverride) -> bool:
        package = given.override.package
        return given.override.key + (f"@{package}" if package else "") in self.groups

    def _superseded(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield the arguments (by id) that go because another one sets the same key today.

        Each with the key of the other and the reason of the renaming. Two values of keys that have moved to
        another section stay for a person to choose from.
        """
        for old, given in self.last.items():
            row = row_for(old, self.config.flavour)
            (target, *more) = row.targets(old) or ("",) if row else ("",)
            other = self.last.get(target)
            if row is None or more or target == old or other is None:
                continue
            value = row.value(given.override.value)
            if _same(value, other.override.value):
                yield id(given), (target, row.why)
            elif value is not None and target.rpartition(".")[0] == old.rpartition(".")[0]:
                carried = self.carried.get(target)
                wins = carried is not None and _same(carried.value, value)
                yield (id(other), (old, row.why)) if wins else (id(given), (target, row.why))

    def _refuse(self, given: GivenOverride, text: str) -> None:
        self.out.refused.append(Remark(given.where, given.spelling, text))

    def _change(self, given: GivenOverride) -> WordChange | None:
        key, op, value = given.override.key, given.override.op, given.override.value
        index = self.index[id(given)]
        if op == DELETE:
            gone = key not in self.target.nodes
            return WordChange(index, (), f"{_NO_KEY} to delete") if gone else None
        if not self.older and key in self.target.nodes and _same(value_at(self.target.tree, key), value):
            return None  # the default of the target itself
        if id(given) in self.superseded:
            winner, why = self.superseded[id(given)]
            return WordChange(index, (), f"{winner}, which is set too, is the same key today ({why})")
        if isinstance(value, Mapping) and value:
            self._check_section(given, value)
            return self._renamed(index, given, (key,), value, value, "")
        if key.startswith(_VLLM):
            return self._engine_argument(index, given)
        size = self.sizes.get(key)
        over_all = size is not None and value is not None and self.config.get(size.per_gpu) is None
        if size is not None and over_all and not size.is_dynamic(self.config.get):
            return self._per_gpu(index, given, size)
        derived = [
            name
            for name in self.implied
            if DERIVED_FROM.get(name) == key and name != key and name not in self.last
        ]
        row = row_for(key, self.config.flavour)
        dropped = row is not None and not row.targets(key)
        if derived and (dropped or sentence(key, VERL, self.config.flavour)):
            return self._replaced(index, given, derived)
        if row is not None and dropped:
            if key in self.config.unknown and key in DERIVED_FROM.values():
                release = self.config.version.value
                self._refuse(given, f"{row.why}; veRL {release} has no such key: --verl-version says which")
                return None
            return WordChange(index, (), row.why)
        targets = row.targets(key) if row else (key,)
        now = row.value(value) if row else value
        why = row.why if row else ""
        for target in targets:
            if target in self.implied and target in self.carried:
                now, why = self.carried[target].value, self.implied[target]
        if row is not None and row.skip_null and value is None and targets != (key,):
            if key in self.target.nodes and value_at(self.target.tree, key) is None:
                return None  # the target has the old key, too, as null
            return WordChange(index, (), f"{why}; null set nothing")
        drops = next((drop.why for drop in self.result.dropped if drop.key == key and drop.given), "")
        if drops and op == SET and key in self.config.unknown:
            return None  # Hydra refuses it under its own release, too: misspelt, not gone
        if row is None and drops and (self.older or key not in self.target.nodes):
            return WordChange(index, (), drops)
        return self._renamed(index, given, targets, value, now, why)

    def _check_section(self, given: GivenOverride, value: Mapping[str, object]) -> None:
        """Refuse a whole section in one word, one key of which would have to change."""
        for key, item in leaves(value, f"{given.override.key}."):
            row = row_for(key, self.config.flavour)
            if row is not None and (row.targets(key) != (key,) or row.value(item) != item):
                became = " and ".join(row.targets(key)) or "nothing"
                self._refuse(given, f"{key} became {became} ({row.why}): write its keys one by one")

    def _renamed(
        self,
        index: int,
        given: GivenOverride,
        targets: tuple[str, ...],
        value: object,
        now: object,
        why: str,
    ) -> WordChange | None:
        """The same value, or ``now``, under ``targets``, each with the operator that Hydra wants today."""
        text = None
        if type(now) is not type(value) or now != value:
            text = hydra_text(now)
            if text is None:
                self._refuse(given, f"its value would be {now!r} today, for which Hydra has no spelling")
                return None
        row = row_for(given.override.key, self.config.flavour)
        only = row is not None and row.one_value
        new = tuple(NewWord(self._operator(given, target) + target, text, only=only) for target in targets)
        if len(new) == 1 and new[0].head == given.spelling and text is None:
            return None
        if not why:
            has = targets[0] in self.nodes
            why = f"veRL {VERL} {'has the key itself' if has else 'has no such key: Hydra wants a +'}"
        return WordChange(index, new, why)

    def _operator(self, given: GivenOverride, target: str) -> str:
        op, known = given.override.op, target in self.nodes
        if op == FORCE:
            return FORCE
        if target == given.override.key and given.override.key in self.config.unknown and op == SET:
            return SET  # Hydra refuses it under its own release, too: not ours to allow
        if op == ADD:
            return SET if known and not isinstance(given.override.value, Mapping | list) else ADD
        return SET if known else ADD

    def _engine_argument(self, index: int, given: GivenOverride) -> WordChange | None:
        key, value = given.override.key, given.override.value
        name, _, below = key.removeprefix(_VLLM).partition(".")
        if below:
            return self._renamed(index, given, (key,), value, value, "")
        found = vllm_arguments.fate(name, value, VLLM_ON_GPU)
        known = name in vllm_arguments.arguments_of(VLLM_ON_GPU)
        why = f"vLLM {VLLM_ON_GPU} has no argument {name}"
        why += "" if "explorer" in found.why or not found.why else f": {found.why}"
        if found.refused and not known:
            self._refuse(given, f"{why}; {found.refused}")
            return None
        if known or value is None:
            return self._renamed(index, given, (key,), value, value, "")
        if not found.written:
            return WordChange(index, (), why)
        ((target, now),) = found.written.items()
        return self._renamed(index, given, (_VLLM + target,), value, now, why)

    def _per_gpu(self, index: int, given: GivenOverride, size: MicroBatchSize) -> WordChange | None:
        """A micro-batch over all GPUs becomes that of one of them, as veRL divided it until 0.7."""
        value, ranks = given.override.value, self._ranks(size)
        why = f"veRL {VERL} reads the size of one GPU's micro-batch alone"
        if ranks is None or not isinstance(value, int) or value % ranks:
            among = "an unknown number of" if ranks is None else str(ranks)
            self._refuse(given, f"{why}; {value} cannot be divided by {among} ranks: write {size.per_gpu}")
            return None
        head = self._operator(given, size.per_gpu) + size.per_gpu
        change = NewWord(head) if ranks == 1 else NewWord(head, str(value // ranks), ranks)
        return WordChange(index, (change,), f"{why}: {value} over {ranks} rank{'s' * (ranks > 1)}")

    def _ranks(self, size: MicroBatchSize) -> int | None:
        """Return how many ranks share a batch; None where a number of them is not known."""
        world = 1
        for key in ("trainer.n_gpus_per_node", "trainer.nnodes"):
            setting = self.config.settings.get(key)
            if setting is None or not isinstance(setting.value, int):
                return None
            word = setting.word
            if word is not None and (word.open or any(ref.default is None for ref in word.env_refs)):
                return None
            world *= setting.value
        if self.config.flavour == "ppo_trainer":
            parts = [f"{size.role}.ulysses_sequence_parallel_size"]
        else:
            names = ("tensor_model", "pipeline_model", "context")
            parts = [f"{size.role}.megatron.{name}_parallel_size" for name in names]
        for key in parts:
            share = self.config.get(key, 1)
            if not isinstance(share, int) or not share or world % share:
                return None
            world //= share
        return world

    def _replaced(self, index: int, given: GivenOverride, derived: list[str]) -> WordChange | None:
        """Keys that follow from one that says nothing today stand in its place."""
        new = []
        for name in derived:
            now = self.carried[name].value
            text = None if now == given.override.value else hydra_text(now)
            new.append(NewWord(("" if name in self.target.nodes else ADD) + name, text))
        return WordChange(index, tuple(new), self.implied[derived[0]])

    # Defaults.

    def _add_defaults(self) -> None:
        """Add what the target's defaults say otherwise, until the composition is the carried one."""
        for _ in range(4):
            try:
                launch = with_files(new_launch(self.launch, self.out), self.files)
                composed = effective_config(launch, version=VERL, root=self.root)
            except UserError:
                return  # said when the new script is composed
            found = [item for item in self._differing(composed) if item not in self.out.added]
            if not found:
                return
            # one whose default refers to another key may follow that one
            plain = [item for item in found if not is_interpolated(value_at(self.target.tree, item.new.head))]
            self.out.added += plain or found

    def _differing(self, composed: EffectiveConfig) -> Iterator[AddedWord]:
        critic = has_critic(self.result.config.get)
        for key, setting in self.carried.items():
            there = composed.settings.get(key)
            if there is None or key not in self.result.explicit or _same(there.value, setting.value):
                continue
            if setting.where is not None and setting.word is None and key not in self.implied:
                continue  # of a config file, which is upgraded by itself
            if key in composed.set_keys or (key == _V1 and key in self.config.settings):
                continue
            if key.rpartition(".")[2] == "_target_" or (key.startswith("critic.") and not critic):
                continue
            found = read_of(key, VERL, self.config.flavour)
            if found is not None and found.ignored:
                continue
            yield self._added(key, setting)

    def _added(self, key: str, setting: Setting) -> AddedWord:
        old = self.config.settings.get(key)
        text = hydra_text(setting.interpolation or setting.value)
        why = _V1_WHY if key == _V1 else self.implied.get(key, "")
        source = self.last.get(DERIVED_FROM.get(key, ""))
        copied = None
        if source is not None and source.override.value == setting.value:
            copied, text = self.index[id(source)], None
        if not why:
            value = _plain(old and (old.interpolation or old.value))
            now = _plain(value_at(self.target.tree, key))
            now = "another" if now == value else now  # a reference that leads elsewhere
            why = _AS_BEFORE.format(old=self.config.version.value, value=value, target=VERL, now=now)
        return AddedWord(NewWord(key, text), why, copied)

    # Words on what the target ignores.

    def _note_ignored(self) -> None:
        changed = {change.index: change for change in self.out.changes}
        for given in self.given:
            if given.override.op == DELETE:
                continue
            change = changed.get(self.index[id(given)])
            keys = [given.override.key] if change is None else [new.head.lstrip("+") for new in change.new]
            for key in keys:
                setting = self.carried.get(key)
                why = sentence(key, VERL, self.config.flavour)
                if why and setting and not _same(setting.value, value_at(self.target.resolved, key)):
                    self.out.kept.append(Remark(given.where, given.spelling, why))


def _plain(value: object) -> str:
    return "null" if value is None else str(value)


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def new_words(launch: Launch, index: int, change: WordChange) -> list[Word]:
    """Return the words that an argument becomes."""
    return [_new_word(launch.arguments[index], new) for new in change.new]


def added_word(launch: Launch, added: AddedWord) -> Word:
    """Return the word of an addition."""
    if added.copied is not None:
        return _new_word(launch.arguments[added.copied], added.new)
    return Word((WordPart(f"{added.new.head}={added.new.value}"),), launch.where)


def _new_word(word: Word, new: NewWord) -> Word:
    if new.value is not None:
        return Word((WordPart(f"{new.head}={new.value}"),), word.where)
    rest = cut(word, word.text.index("="))
    return replace(rest, parts=(WordPart(new.head), *rest.parts))


def new_launch(launch: Launch, plan: LaunchPlan) -> Launch:
    """Return the launch with the plan's arguments."""
    changes = {change.index: change for change in plan.changes}
    words: list[Word] = []
    for index, word in enumerate(launch.arguments):
        words += new_words(launch, index, changes[index]) if index in changes else [word]
    words += [added_word(launch, added) for added in plan.added]
    return replace(launch, arguments=tuple(words))


def with_files(launch: Launch, files: Mapping[str, str]) -> Launch:
    """Return the launch as it would read config files with these texts, by absolute path."""
    return replace(launch, wrote={**launch.wrote, **files}) if files else launch
