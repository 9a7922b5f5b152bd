"""Keys that only the fork of veRL knows which a script starts from, and how far that fork is from veRL."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.rows import Rows
from trinity_compat.translate.unknown import is_unknown
from trinity_compat.verl_config.merge import MISSING
from trinity_compat.verl_config.model import EffectiveConfig, Fork
from trinity_compat.verl_config.pinned import pinned_release

CODE = "TC090"
_SHOWN = 4


def is_fork_key(key: str, config: EffectiveConfig, rows: Rows) -> bool:
    """Whether only ``config``'s fork knows ``key``, and no rule of the user's speaks for it."""
    return config.fork is not None and config.fork.key(key) is not None and is_unknown(key, (key,), rows)


def by_default(config: EffectiveConfig) -> Iterator[str]:
    """The fork's keys that the launch doesn't set and whose default says something."""
    for key in config.fork.keys if config.fork else ():
        setting = config.settings.get(key)
        if setting is not None and setting.where is None and not says_nothing(setting.value):
            yield key


def says_nothing(value: object) -> bool:
    """Whether a value switches nothing on. False may: ``shuffle_train_dataloader``. ``???`` is not given."""
    return value is None or value in ("", MISSING, {}, [])


def idle(view: LaunchView, key: str) -> bool:
    """Whether ``key`` is a fork's that the YAML does not carry: a default, or one that the pinned veRL would
    hand to a dataclass without that field."""
    fork = view.origin.fork
    if fork is None or fork.key(key) is None:
        return False
    return view.where(key) is None or pinned_release(view.config.flavour).takes(key) is False


def fate(key: str, config: EffectiveConfig) -> tuple[Status, str]:
    """(status, reason) of a fork key."""
    setting = config.settings.get(key)
    if setting is not None and says_nothing(setting.value):
        return Status.NO_EFFECT, f"null or empty; {_reason(key, config)}"
    return Status.FORK_KEY, _reason(key, config)


def _reason(key: str, config: EffectiveConfig) -> str:
    """Where the fork defines ``key``, and what it says of it there."""
    assert config.fork is not None
    place = config.fork.key(key)
    assert place is not None
    told = f" (\u201c{place.comment}\u201d)" if place.comment else ""
    return (
        f"only the fork knows it, {'defined' if key in config.fork.added else 'found'} at {place.where}{told}"
    )


def caution(config: EffectiveConfig) -> Iterator[Caution]:
    """How far the fork is from veRL."""
    fork = config.fork
    if fork is None:
        return
    if not (fork.added or fork.removed or fork.changed):
        yield Caution(
            "TW019",
            f"the script starts from a fork of veRL: its configuration in {fork.folder} is that of"
            f" {config.version.value}, and its code reads keys that veRL does not: {_listed_keys(fork)}",
            config.launch.where,
            "--rules FILE says what becomes of them",
        )
        return
    told = [
        _listed("adds", list(fork.added)),
        _listed("lacks", list(fork.removed)),
        _listed("has other defaults for", [_changed(fork, key) for key in fork.changed]),
    ]
    yield Caution(
        "TW019",
        f"the script starts from a fork of veRL, whose configuration in {fork.folder} is composed; against "
        f"{config.version.value}, the nearest release, it {'; '.join(filter(None, told))}. What the fork's "
        "code does otherwise is not seen",
        config.launch.where,
        "audit lists the fork's own keys; --no-fork-config or --verl-version X composes a release's instead",
    )


def _listed_keys(fork: Fork) -> str:
    names = list(fork.keys)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {len(names)}: {', '.join(names[:_SHOWN])}{more}" if names else ""


def _changed(fork: Fork, key: str) -> str:
    own, other = fork.changed[key]
    return f"{key}={own} (not {other})"
