"""A launch said in main_ppo's words: the settings in the making, and what they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trinity_compat.translate.launch_view import AsyncLead, LaunchView, Verdict
from trinity_compat.translate.model import Status
from trinity_compat.verl_config import KeyMove
from trinity_compat.verl_config.model import Setting


@dataclass
class MainPpoSettings:
    """The settings of main_ppo that stand for ``origin``. ``own``: prefixes of keys that it doesn't have."""

    origin: LaunchView
    own: tuple[str, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)
    reworded: dict[str, str] = field(default_factory=dict)
    moves: list[KeyMove] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def put(self, key: str, value: object, *sources: str, join: str = " × ") -> None:
        """Set ``key`` to ``value``, from ``sources``; the first one in the launch gives its place."""
        view = self.origin
        known = [source for source in sources if view.has(source)]
        given = next((source for source in known if view.is_set(source)), key)
        base = view.config.settings.get(given, Setting(key, value))
        self.settings[key] = replace(base, key=key, value=value, interpolation=None)
        self.reworded[key] = join.join(f"{source}={view.value(source)}" for source in known)

    def move(self, old: str, new: str, why: str) -> None:
        """Rename a key to the one that main_ppo has in its place."""
        if self.origin.has(old):
            self.put(new, self.origin.value(old), old)
            self.moves.append(KeyMove(old, (new,), why, self.origin.is_set(old)))

    def every(self, key: str, source: str, times: int, unit: str) -> None:
        """Set the interval ``source``, which counts units of ``times`` steps each, as ``unit`` says."""
        count = self.origin.integer(source, -1)
        if count > 0:
            self.put(key, count * times, source, unit)
        elif source != key:
            self.put(key, -1, source)

    def idle(self, key: str, reason: str) -> None:
        """Record a key of main_ppo's that has no effect in the launch's main."""
        self.verdicts.append(Verdict(key, Status.NO_EFFECT, reason))

    def view(self, ahead: AsyncLead | None = None) -> LaunchView:
        """Return the launch in main_ppo's keys."""
        origin = self.origin
        return replace(
            origin,
            config=replace(origin.config, settings=self._laid_over(origin.config.settings)),
            symbolic=self._laid_over(origin.symbolic),
            ahead=ahead,
            reworded=self.reworded,
            verdicts=tuple(self.verdicts),
        )

    def _laid_over(self, settings: Mapping[str, Setting]) -> dict[str, Setting]:
        kept = {key: setting for key, setting in settings.items() if not key.startswith(self.own)}
        return kept | self.settings
