"""The launch as derivations read it: values, texts that may be symbolic, r, the options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.plain_numbers import is_number
from trinity_compat.common.releases import TRINITY_OLD, VERL, VERL_RELEASES
from trinity_compat.common.training_engines import TrainingEngine, engine_of
from trinity_compat.launch.model import EnvRef, Launch, UnknownPiece
from trinity_compat.translate.env_references import EnvReferences
from trinity_compat.translate.micro_batch_sizes import USE_V1
from trinity_compat.translate.model import Status, TranslateOptions
from trinity_compat.translate.update_steps import BATCH, MINI, UpdatesPerStep, mini_batches, uneven
from trinity_compat.verl_config.interpolate import is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig, Setting

ARR = "actor_rollout_ref"
NODES, PER_NODE = "trainer.nnodes", "trainer.n_gpus_per_node"
GPUS_OF_A_NODE = 8  # veRL's default
_MOST_GPUS = 2**16
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
_LAST_UNEVEN = "0.7.0"  # the last release that takes a train batch which its mini-batches don't divide
_LAST_WITHOUT_CHECK = "0.2.0"  # the last that takes a mini-batch larger than the train batch as it is


@dataclass(frozen=True, slots=True)
class PathValue:
    """Write ``value`` at the dotted ``path``, because of ``sources`` (veRL keys).

    ``note`` replaces the comment that is made from the sources; ``join`` stands between them.
    """

    path: str
    value: object
    sources: tuple[str, ...] = ()
    note: str | None = None
    join: str = ", "


@dataclass(frozen=True, slots=True)
class Verdict:
    """The treatment of ``key`` in this launch, if it differs from its row's."""

    key: str
    status: Status
    reason: str
    code: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class AsyncLead:
    """The lead of the explorer over the trainer, as the launch's main defines it.

    ``interval`` and ``offset`` count steps; a step trains what the trainer takes at once. ``staleness`` and
    ``partial`` are trinity_compat's staleness_threshold and partial_rollout, None where the style has no use
    for them. ``in_turns``: both sides use the same GPUs, one after the other.
    ``sources``: the launch's keys for the interval, for ``staleness`` and for ``partial``.
    """

    style: str = "fixed"
    interval: int = 1
    offset: int = 0
    staleness: float | None = None
    partial: bool | None = None
    in_turns: bool = False
    sources: tuple[str, str, str] = ("", "", "")


class KeyRefused(UserError):
    """The value of one key prevents the translation; without that argument the rest could be translated.

    ``spelling`` is the user's spelling of the key.
    """

    def __init__(self, spelling: str, message: str, *, where: Where | None, hint: str | None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.spelling = spelling


@dataclass(frozen=True)
class LaunchView:
    """The launch in the vocabulary of the pinned veRL.

    ``config`` holds real values, ``symbolic`` the same keys with marks where an environment
    variable's text stands (see env_references.py).
    """

    config: EffectiveConfig
    symbolic: Mapping[str, Setting]
    symbols: EnvReferences
    options: TranslateOptions
    origin: EffectiveConfig
    async_schedule: AsyncLead | None = None  # None: as main_ppo, or as --sync-offset says
    reworded: Mapping[str, str] = field(default_factory=dict)  # key → what its value was made of
    verdicts: tuple[Verdict, ...] = ()  # of keys that the launch's main reads otherwise than main_ppo
    keys_given_explicitly: frozenset[str] = frozenset()  # by the launch or its own release

    @property
    def launch(self) -> Launch:
        """The launch that the configuration was composed from."""
        return self.origin.launch

    def value(self, key: str, default: object = None) -> Any:
        """Return the real value of ``key``; ``default`` if veRL has no such key or it is null."""
        value = self.config.get(key)
        return default if value is None else value

    def text(self, key: str, default: object = None) -> Any:
        """Return the value of ``key`` like ``value``, but keep environment variables in texts as marks."""
        setting = self.symbolic.get(key)
        real = self.value(key, default)
        if setting is None or type(setting.value) is not type(real):
            return real
        return setting.value

    def variable(self, key: str) -> str | None:
        """Return ``${oc.env:NAME}`` if the launch gives ``key`` as one unset variable and nothing else.

        OmegaConf converts its text to the field's type.
        """
        setting = self.config.settings.get(key)
        parts = setting.word.parts if setting is not None and setting.word is not None else ()
        sources = [part.source for part in parts if part.source is not None or part.text]
        if len(sources) == 1 and isinstance(sources[0], EnvRef) and sources[0].default is None:
            return None if parts[0].text else f"${{oc.env:{sources[0].name}}}"
        return None

    def refused(self, key: str, message: str, hint: str | None = None) -> KeyRefused:
        """Return the error for the value of ``key``, at its place in the launch."""
        return KeyRefused(self.spelling(key), message, where=self.where(key), hint=hint)

    def demand_known(self, key: str) -> None:
        """Raise UserError if ``key`` depends on a value that is not known here."""
        for source in unknown_sources(self.config.settings.get(key)):
            name = source.name if isinstance(source, EnvRef) else source.variable
            shown = source.expression if isinstance(source, UnknownPiece) else ""
            raise self.refused(
                key,
                f"{self.spelling(key)} depends on {shown or '$' + name}, which is known only at run time",
                f"give it: --env {name}=…"
                if name
                else f"write its value there, or give it: --set {self.spelling(key)}=VALUE",
            )
        # It may still be `${…}`: of a variable, or a resolver of the user's.
        value = self.config.get(key)
        if not isinstance(value, str) or not is_interpolated(value):
            return
        variable = _VARIABLE.fullmatch(value)
        raise self.refused(
            key,
            f"{self.spelling(key)} depends on {value}, which is known only at run time",
            f"give it: --env {variable[1]}=…" if variable else f"give it: --set {self.spelling(key)}=VALUE",
        )

    def integer(self, key: str, default: int | None = None) -> int:
        """Return the value of ``key`` as an int. Raises UserError naming the place and the spelling."""
        self.demand_known(key)
        value = self.value(key, default)
        if value is False:  # veRL compares it with numbers: test_freq=False is off
            return 0
        if not is_finite(value) or value != int(value):
            raise self.refused(key, f"{self.written(key)} should be a whole number")
        return int(value)

    def size(self, key: str, default: int = 1, *, least: int = 1) -> int:
        """Return the value of ``key`` as a count, ``default`` if veRL has no such key.

        Raises UserError below ``least``.
        """
        size = self.integer(key, default)
        if size < least:
            raise self.refused(key, f"{self.written(key)} should be {least} or more")
        return size

    def number(self, key: str, default: float | None = None) -> float:
        """Return the value of ``key`` as a number. Raises UserError naming the place and the spelling."""
        self.demand_known(key)
        value = self.value(key, default)
        if not is_finite(value):
            raise self.refused(key, f"{self.written(key)} should be a number")
        return float(value) if isinstance(value, float) else int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the value of ``key`` as a bool. Raises UserError naming the place and the spelling."""
        self.demand_known(key)
        value = self.config.get(key, default)
        if (truth := truth_of(value)) is None:
            raise self.refused(key, f"{self.written(key)} {not_a_truth(value)}")
        return truth

    def choice(self, key: str, among: Sequence[str]) -> str:
        """Return the value of ``key``, one of the words that veRL accepts; the first one for null.

        Raises UserError naming the place and the spelling for another, which veRL refuses too.
        """
        self.demand_known(key)
        value = str(self.value(key, among[0]))
        if value not in among:
            raise self.refused(key, f"{self.written(key)}: veRL takes {', '.join(among)}")
        return value

    def texts(self, key: str) -> list[str]:
        """Return the text or texts of ``key``, symbols kept; empty if it is null or empty.

        Raises UserError for numbers, dictionaries and lists in a list.
        """
        value = self.text(key)
        items = value if isinstance(value, list) else [value]
        items = [item for item in items if item not in (None, "")]
        for item in items:
            if not isinstance(item, str):
                raise self.refused(key, f"{self.written(key)} should be a text or a list of texts")
        return items

    def has(self, key: str) -> bool:
        """Return True if the composed configuration has ``key``."""
        return key in self.config.settings

    def is_set(self, key: str) -> bool:
        """Return True if the launch itself sets ``key`` (perhaps under an older name)."""
        setting = self.config.settings.get(key)
        return setting is not None and setting.where is not None

    def where(self, key: str) -> Where | None:
        """Return the place where the launch sets ``key``, or None if it has its default."""
        setting = self.config.settings.get(key)
        return setting.where if setting else None

    def spelling(self, key: str) -> str:
        """Return the key as the user wrote it."""
        setting = self.config.settings.get(key)
        return (setting.spelling if setting else "") or key

    def written(self, key: str) -> str:
        """Return ``key=value`` as the user wrote both; for a default, as Hydra writes the value."""
        return written(self.config, key)

    def default_of(self, *keys: str) -> str:
        """Name the release whose defaults apply to ``keys``, which the launch does not set.

        It is the launch's own release if that has one of them, else the pinned one.
        """
        own = self.keys_given_explicitly.union(self.reworded)
        return self.origin.default_of(*keys) if own.intersection(keys) else f"default of verl {VERL}"

    def note_text(self, key: str, value: object) -> str:
        """Format ``key=value`` for a note; for a value made of other keys, these keys."""
        return self.reworded.get(key) or f"{key}={value}"

    def below(self, prefix: str) -> dict[str, object]:
        """Return everything below ``prefix``: relative key → text."""
        keys = [key for key in self.config.settings if key.startswith(prefix + ".")]
        return {key[len(prefix) + 1 :]: self.text(key) for key in keys if not key.endswith("_target_")}

    @property
    def published(self) -> bool:
        """True if values are written as the published guide prints them."""
        return self.options.as_published

    @property
    def engine(self) -> TrainingEngine:
        """The engine that the launch trains with."""
        return engine_of(self.value(f"{ARR}.actor.strategy"))

    @property
    def megatron(self) -> bool:
        """True if the launch trains with Megatron."""
        return self.engine.is_megatron

    @property
    def critic(self) -> bool:
        """True if Trinity's algorithm for this launch trains a critic."""
        return str(self.value("algorithm.adv_estimator", "gae")) == "gae"

    @property
    def old_trinity(self) -> bool:
        """True for a YAML for trinity-rft 0.4.1, which lacks some fields and has others elsewhere."""
        return self.options.trinity == TRINITY_OLD

    @cached_property
    def cluster(self) -> tuple[int, int]:
        """(nodes, GPUs per node). Raises UserError for absurdly large numbers: each split is tried."""
        nodes, per_node = self.size(NODES), GPUS_OF_A_NODE
        if self.value(PER_NODE) is not None:
            per_node = self.size(PER_NODE)
        if nodes * per_node > _MOST_GPUS:
            key = NODES if self.where(NODES) else PER_NODE
            raise self.refused(key, f"{nodes} nodes of {per_node} GPUs are more than {_MOST_GPUS} GPUs")
        return nodes, per_node

    @cached_property
    def updates(self) -> UpdatesPerStep:
        """The optimizer updates of one veRL step.

        Raises UserError where train_batch_size ÷ ppo_mini_batch_size leaves a remainder that the launch's
        veRL refuses, or where no cut into equal parts comes near.
        """
        batch, mini = self.integer(BATCH), self.integer(MINI)
        if batch < 1 or mini < 1:
            key = BATCH if batch < 1 else MINI
            raise self.refused(key, f"{self.spelling(key)}={min(batch, mini)} must be positive")
        cut = uneven(batch, mini) if batch % mini and self._cuts_unevenly(batch, mini) else None
        # r is in every count of steps: without it no other key can be judged.
        return cut or UpdatesPerStep(mini_batches(batch, mini, self.where(BATCH) or self.where(MINI)), mini)

    @property
    def forked(self) -> bool:
        """True if the launch's trainer may differ from that of every release."""
        return bool(self.origin.unknown or self.origin.fork)

    def _cuts_unevenly(self, batch: int, mini: int) -> bool:
        """Return True if the launch's veRL accepts mini-batches that don't divide the train batch.

        Up to 0.7 no release checks that they divide (Megatron's workers do); from 0.3 on a mini-batch larger
        than the train batch is refused without use_dynamic_bsz (``_validate_config`` in ray_trainer.py, later
        ``ActorConfig.validate``). The trainer v1, of 0.9, fills the last one up (``_balance_batch`` in
        v1/trainer_base.py). The trainer of a fork is unknown: it may multiply its samples.
        """
        fills_up = bool(self.origin.get(USE_V1)) and mini < batch
        if self.forked or fills_up:
            return True
        if self.megatron:
            return False
        version = self.origin.version
        last = _LAST_WITHOUT_CHECK if mini > batch else _LAST_UNEVEN
        # Where releases fit equally well, it is one of those under which the launch can start.
        able = (version.value, *(version.candidates if mini > batch else ()))
        unchecked = any(VERL_RELEASES.index(name) <= VERL_RELEASES.index(last) for name in able)
        return unchecked or self.flag(f"{ARR}.actor.use_dynamic_bsz")

    @property
    def r(self) -> int:
        """Optimizer updates per veRL step and epoch. Raises UserError as ``updates`` does."""
        return self.updates.count

    @property
    def mini(self) -> int:
        """Prompts of one optimizer update. Raises UserError as ``updates`` does."""
        return self.updates.prompts

    @property
    def step(self) -> int:
        """The length of one veRL step in the YAML's steps: r, or 1 in the published guide's way."""
        return 1 if self.published else self.r


def written(config: EffectiveConfig, key: str) -> str:
    """Return ``key=value`` as the user wrote both, without the value of what is not known here.

    For a default, the value is as Hydra writes it.
    """
    setting = config.settings.get(key)
    spelling = (setting.spelling if setting else "") or key
    if setting is not None and setting.word is not None:
        return f"{spelling}={setting.word.named}"
    value = config.get(key)
    plain = {None: "null", True: "true", False: "false"}
    return f"{spelling}={plain[value] if value is None or isinstance(value, bool) else repr(value)}"


def unknown_sources(setting: Setting | None) -> Iterator[EnvRef | UnknownPiece]:
    """Yield what the value of ``setting`` depends on and is not known here."""
    for part in setting.word.parts if setting and setting.word else ():
        source = part.source
        if isinstance(source, EnvRef) and (part.text or source.default == ""):
            continue
        if source is not None:  # what a command would print is a guess even where it has a text
            yield source


def truth_of(value: object) -> bool | None:
    """Return ``value`` as ``if config.NAME`` reads it; None for a text, which nobody means as it is read."""
    if value is None or isinstance(value, bool | int) or value == "":
        return bool(value)
    return None


def not_a_truth(value: object) -> str:
    """Say what is wrong with a value that ``truth_of`` does not take."""
    reading = ": it is a text, and veRL takes each text but an empty one for true"
    return "should be true or false" + (reading if isinstance(value, str) else "")


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return True for a number that can be counted with: no bool, no inf, no nan, within 64 bits."""
    if not is_number(value):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
