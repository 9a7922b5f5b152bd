"""The effective veRL configuration of a launch: every key, its value and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.common.nested import sections_above
from trinity_compat.launch.environment import is_named_apart
from trinity_compat.launch.model import Diagnostic, Launch, Word
from trinity_compat.verl_config.interpolate import defaults_of


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the configuration.

    ``value`` is the resolved Python value (int, float, str, bool, None, list, dict); interpolations
    are resolved. ``where`` is the override's place, None when the value is a default of ``version``.
    ``word`` is the override's value as written (it carries EnvRef and Open parts), None for defaults.
    ``spelling`` is the key as the user wrote it (``+a.b``), else the key itself.
    """

    key: str
    value: object
    where: Where | None = None
    word: Word | None = None
    spelling: str = ""
    interpolation: str | None = None  # "${data.max_prompt_length}" before it was resolved


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """The veRL release of a launch, with the reason.

    ``candidates``: the releases that fit equally well, oldest first; empty where nothing was inferred.
    ``stands_in``: the release that was asked for, of which there is no data.
    """

    value: str
    why: str
    candidates: tuple[str, ...] = ()
    stands_in: bool = False


@dataclass(frozen=True, slots=True)
class ForkKey:
    """A key that a fork's config file defines, with its place and comment."""

    where: Where
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Differences of the config files of a script's own tree from the nearest release.

    ``folder``: the tree's, as messages name it. ``added`` and ``removed``: keys against that release.
    ``changed``: key → (the fork's default, the release's) as written. ``keys``: those of the added that no
    release knows and for which the pinned one has no place, so that only the fork's code reads them.
    ``misfits``: defaults of another kind than the pinned release's (a text in place of a section), with which
    it cannot start.
    """

    folder: str
    added: Mapping[str, ForkKey]
    removed: tuple[str, ...]
    changed: Mapping[str, tuple[object, object]]
    keys: Mapping[str, ForkKey]
    misfits: Mapping[str, ForkKey] = field(default_factory=dict)

    def gives(self, key: str) -> bool:
        """Return whether the default of ``key`` is the fork's and not the nearest release's."""
        return key in self.changed or key in self.added

    def key(self, key: str) -> ForkKey | None:
        """The fork key that ``key`` is or lies below; None for what veRL knows."""
        return next((self.keys[name] for name in (key, *sections_above(key)) if name in self.keys), None)


def default_of(version: VersionChoice, fork: Fork | None, *keys: str) -> str:
    """Name the origin of the defaults of ``keys``: ``default of verl 0.5.0``, or the fork."""
    if fork and any(map(fork.gives, keys)):
        return f"default of the fork in {fork.folder}"
    return f"default of verl {version.value}"


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A launch composed as Hydra would compose it under one veRL release.

    ``settings`` holds every leaf by dotted key, defaults included; ``set_keys`` those that the
    launch itself sets (in order); ``unknown`` those among them that this release doesn't define.
    ``others`` are its arguments that set no key: ``~key``, choices of a config group, ``hydra.*`` and
    Hydra's flags, each once, with the spelling that tells which it is as its key. Of a ``fork`` the
    defaults are its own, and ``version`` is the release nearest to it.
    """

    launch: Launch
    version: VersionChoice
    flavour: str  # "ppo_trainer" | "ppo_megatron_trainer"
    settings: Mapping[str, Setting]
    set_keys: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    others: tuple[Setting, ...] = ()
    fork: Fork | None = None  # None: composed from config files that are a release's
    from_tree: bool = False  # with the config files of the tree that the script starts from

    def default_of(self, *keys: str) -> str:
        """``default_of`` for ``keys`` of this configuration."""
        return default_of(self.version, self.fork, *keys)

    def frozen(self) -> dict[str, tuple[str, Where]]:
        """Variables of the environment that a Hydra file or an argument reads with a default.

        Each with the text that stands in the variable's place, and the place of the key that has it.
        """
        own = self.launch.env
        given = self.launch.environ.keys() | {name for name, word in own.items() if not word.env_refs}
        texts = ((one.interpolation, one.where) for one in self.settings.values() if one.interpolation)
        return {
            name: (own[name].text if name in own else default, where or self.launch.where)
            for text, where in texts
            for name, default in defaults_of(text)
            if not (name in given or is_named_apart(name))
            and (name in self.launch.assigned or not self.launch.lacks(name))
        }

    def get(self, key: str, default: object = None) -> object:
        """Value of ``key``; ``default`` when this release has no such key."""
        setting = self.settings.get(key)
        return default if setting is None else setting.value
