"""Applies the rows to one launch: writes the configuration, remembers why, collects verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.nested import put, value_at
from trinity_compat.common.releases import TRINITY_OLD
from trinity_compat.translate.defaults import TrainerConfig, pinned_defaults, trainer_config
from trinity_compat.translate.launch_view import LaunchView, PathValue, Verdict, is_finite
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.rows import MappingRow, MappingTable
from trinity_compat.translate.sections import DERIVATIONS
from trinity_compat.trinity.config import schema
from trinity_compat.trinity.config.validate import problems_at

_TC = "trainer.trainer_config"
_NAMELESS = ("actor_rollout_ref.",)
# Upstream hard-codes the critic's optimizer unless trainer_config says otherwise: what it lists as default
# is not what it trains with.
_IN_FULL = ("critic.optim.lr", "critic.optim.weight_decay", "critic.optim.min_lr_ratio")


@dataclass
class Draft:
    """A translation in progress. ``sources`` and ``paths`` say which key wrote which path."""

    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)  # veRL key → paths it wrote
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    cautions: list[Caution] = field(default_factory=list)

    def put(self, path: str, value: object, note: str | None, sources: Iterable[str] = ()) -> None:
        """Write one value, creating the sections above it."""
        put(self.config, path, value)
        if note:
            self.provenance[path] = note
        for key in sources:
            self.paths.setdefault(key, []).append(path)

    def at(self, path: str) -> object:
        """Return the value at a dotted path (list positions as numbers); None if there is none."""
        return value_at(self.config, path)


def apply_rows(view: LaunchView, rows: MappingTable) -> Draft:
    """Return the draft of ``view``'s translation: every row applied once, derivations included."""
    draft = Draft()
    named = [row.by for row in rows.all() if row.by]
    # The script's exported variables are not keys, so no row names their derivation.
    for name in dict.fromkeys((*named, "environment")):
        for found in DERIVATIONS[name](view):
            _take(view, draft, found, rows)
    for key, setting in view.config.settings.items():
        row = rows.find(key)
        if row is None:
            continue
        if row.passes(view.options.trinity):
            _pass(view, draft, key)
        elif row.how in ("copy", "scale") and setting.value is not None:
            _copy(view, draft, row, key)
    return draft


def _take(view: LaunchView, draft: Draft, found: PathValue | Verdict | Caution, rows: MappingTable) -> None:
    if isinstance(found, Caution):
        draft.cautions.append(found)
    elif isinstance(found, Verdict):
        draft.verdicts.setdefault(found.key, found)
    elif schema(view.options.trinity).find(found.path) is None:
        _no_such_field(view, draft, found.path, found.sources)
    else:
        _refuse_open_numbers(
            view, [key for key in found.sources if not _is_free(rows, key, found.path, view)]
        )
        _refuse_wrong_kind(view, found.path, found.value, found.sources)
        note = found.note or _note(view, found.sources, found.join)
        draft.put(found.path, found.value, note, found.sources)


def _is_free(rows: MappingTable, key: str, path: str, view: LaunchView) -> bool:
    """Return True if ``path`` takes the text of ``key`` as it is, a variable included."""
    row = rows.find(key)
    return row is not None and row.free and path in row.paths(view.options.trinity)


def _copy(view: LaunchView, draft: Draft, row: MappingRow, key: str) -> None:
    value = view.text(key) if row.free or isinstance(view.value(key), str) else view.value(key)
    note = _note(view, (key,), "")
    if row.how == "scale":
        steps = view.integer(key)
        value = steps * view.step if steps > 0 else steps
        if steps > 0 and view.step > 1:
            note = f"{_short(key)}={steps} × updates_per_step={view.step}"
    symbol = view.variable(key) if row.how == "copy" and not row.free else None
    if not row.free and symbol is None:
        _refuse_open_numbers(view, (key,))
    value = value if symbol is None else symbol
    for path in row.paths(view.options.trinity):
        if schema(view.options.trinity).find(path) is None:
            _no_such_field(view, draft, path, (key,))
        else:
            _refuse_wrong_kind(view, path, value, (key,))
            draft.put(path, value, note, (key,))


def _no_such_field(view: LaunchView, draft: Draft, path: str, keys: Iterable[str]) -> None:
    """A field of a later trinity-rft: the key is carried for our runtime."""
    reason = f"trinity-rft {view.options.trinity} has no {path}"
    for key in keys:
        draft.verdicts.setdefault(key, Verdict(key, Status.UNSUPPORTED_UPSTREAM, reason))


def _pass(view: LaunchView, draft: Draft, key: str) -> None:
    """Write ``key`` under trainer_config where upstream takes it and it changes something there."""
    if key in draft.verdicts and draft.verdicts[key].status is Status.NO_EFFECT:
        return
    if key.startswith("critic.") and not view.critic:
        return
    takes = trainer_config(view.options.trinity, "megatron" if view.megatron else "fsdp")
    name = spelled(view.options.trinity, key)
    if not takes.takes(name):
        if view.is_set(key):
            reason = f"trinity-rft {view.options.trinity}'s veRL has no such key: kept for trinity-compat"
            draft.verdicts.setdefault(key, Verdict(key, Status.UNSUPPORTED_UPSTREAM, reason, "TC082"))
        return
    value = view.text(key)
    # The old trinity-rft types its fields without null; an empty dictionary says nothing in either.
    if _differs_from_default(view, takes, key, name, value) and not (
        value == {} or (value is None and view.old_trinity)
    ):
        _refuse_open_numbers(view, (key,), free=isinstance(value, str))
        draft.put(f"{_TC}.{name}", value, _note(view, (key,), ""), (key,))


def spelled(target: str, key: str) -> str:
    """Return the name of a pinned veRL key in the veRL of trinity-rft ``target``."""
    return key.replace("critic.fsdp.", "critic.model.fsdp_config.") if target == TRINITY_OLD else key


def _differs_from_default(view: LaunchView, takes: TrainerConfig, key: str, name: str, value: object) -> bool:
    """Return True if the launch sets ``key``, or upstream would behave otherwise without it."""
    if view.is_set(key) or key in _IN_FULL:
        return True
    if name not in takes.defaults:  # inside a dictionary that is empty upstream
        setting = view.config.settings[key]
        return setting.interpolation is None and value != pinned_defaults(view.config.flavour).get(key, value)
    return bool(value != takes.default(name))


def _refuse_open_numbers(view: LaunchView, keys: Iterable[str], *, free: bool = False) -> None:
    """Refuse a value that isn't text and holds something that cannot be known here."""
    for key in keys:
        setting = view.config.settings.get(key)
        if free or setting is None or setting.word is None or _texts(view.text(key)):
            continue
        view.demand_known(key)


def _refuse_wrong_kind(view: LaunchView, path: str, value: object, keys: Iterable[str]) -> None:
    """Refuse at the launch's line what trinity-rft would refuse in the YAML, and numbers without an end."""
    problems = (
        problems_at(path, view.symbols.written(value), view.options.trinity) if value is not None else []
    )
    endless = isinstance(value, float) and not is_finite(value)
    if not problems and not endless:
        return
    key = next((key for key in keys if view.is_set(key)), next(iter(keys), path))
    problem = problems[0].message if problems else f"{value!r} where a finite number is expected"
    raise view.refused(key, f"{view.written(key)}: {problem} ({path})")


def _texts(value: object) -> bool:
    """Yield free texts: a string with marks, or a list that holds one."""
    if isinstance(value, list):
        return any(map(_texts, value))
    return isinstance(value, str) and "TCmark" in value and ("/" in value or not value.startswith("TCmark"))


def _note(view: LaunchView, keys: Iterable[str], join: str) -> str | None:
    """Format a comment: ``data.train_batch_size=1024 ÷ actor.ppo_mini_batch_size=256 (run.sh:12,18)``."""
    keys = [key for key in keys if key in view.config.settings]
    if not keys:
        return None
    told = join.join(_told(view, key) for key in keys)
    return f"{told} ({_places(view, keys)})"


def _told(view: LaunchView, key: str) -> str:
    if made := view.reworded.get(key):
        return made
    value = view.symbols.written(view.text(key))
    text = "null" if value is None else str(value)
    return f"{_short(key)}={text if len(text) <= 60 else text[:57] + '…'}"


def _short(key: str) -> str:
    for prefix in _NAMELESS:
        key = key.removeprefix(prefix)
    return key


def _places(view: LaunchView, keys: list[str]) -> str:
    lines: dict[str, list[str]] = {}
    for key in keys:
        where = view.where(key)
        if where is not None:
            lines.setdefault(where.file, []).append(str(where.line) if where.line else "")
    if not lines:
        return view.default_of(*keys)
    spots = []
    for file, numbers in lines.items():
        listed = ",".join(dict.fromkeys(number for number in numbers if number))
        spots.append(f"{file}:{listed}" if listed else file)
    return "; ".join(spots)
