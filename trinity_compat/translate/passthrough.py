"""Settings that veRL has and Trinity lacks, carried in the YAML so that the way back is exact.

``trainer.trainer_config.trinity_compat.verl`` holds keys of the pinned veRL whose value the rest of the YAML
doesn't determine. ``stands_for`` holds keys whose value the YAML only approximates, as ``key: [the YAML's
value, the launch's value]``: it applies only while the YAML still has the former, so that an edit of the YAML
wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trinity_compat.common.nested import sections_above, value_at
from trinity_compat.job.gpus import ENGINES
from trinity_compat.translate import forks
from trinity_compat.translate.apply import Draft
from trinity_compat.translate.defaults import pinned_defaults, same
from trinity_compat.translate.launch_view import PER_NODE, LaunchView
from trinity_compat.translate.rows import means_nothing
from trinity_compat.translate.sections.asynchronous import USE_V1, V1
from trinity_compat.translate.sections.batch import TOTAL
from trinity_compat.translate.sections.gpus import takes_turns
from trinity_compat.translate.update_steps import MINI
from trinity_compat.translate.verl_from_trinity import IN_TURNS, compat_path, to_verl
from trinity_compat.verl_config.model import Setting
from trinity_compat.verl_config.pinned import pinned_release


def carry(view: LaunchView, draft: Draft) -> None:
    """Write updates_per_step, and the keys that only veRL has, into ``draft``."""
    base = compat_path(view.options.trinity)
    draft.put(f"{base}.updates_per_step", view.r, "r: mini-batches in one veRL step")
    _write_ahead(view, draft, base)
    _write_trainer(view, draft, base)
    if view.published:
        draft.put(f"{base}.steps", "verl", "counts of steps are veRL's, as in the published guide")
    if view.config.flavour != "ppo_trainer":
        draft.put(f"{base}.flavour", view.config.flavour, "veRL's configuration of this name")
    lost, approximated = _not_determined(view, to_verl(draft.config))
    if takes_turns(view):
        approximated[ENGINES] = [draft.at(ENGINES), IN_TURNS]
    for name, values in (("verl", lost), ("stands_for", approximated)):
        if values:
            path = f"{base}.{name}"
            draft.put(path, dict(values), None)
            for key in values:
                draft.paths.setdefault(key, []).append(f"{path}.{key}")
                where = view.where(PER_NODE if key == ENGINES else key)
                draft.provenance[f"{path}.{key}"] = str(where) if where else view.default_of(key)


def _write_ahead(view: LaunchView, draft: Draft, base: str) -> None:
    """Write the explorer's lead, which Trinity's synchronizer has no fields for."""
    if view.async_schedule is None:
        return
    if view.old_trinity and view.async_schedule.style != "fixed":
        draft.put(f"{base}.sync_style", view.async_schedule.style, "trinity-rft 0.4.1 has no such style")
    _, staleness, partial = view.async_schedule.sources
    for name, key, value in (
        ("staleness_threshold", staleness, view.async_schedule.staleness),
        ("partial_rollout", partial, view.async_schedule.partial),
    ):
        if value is not None:
            where = view.origin.settings[key].where if key in view.origin.settings else None
            draft.put(f"{base}.{name}", value, f"{key} ({where or view.origin.default_of(key)})", (key,))


def _write_trainer(view: LaunchView, draft: Draft, base: str) -> None:
    """Write that veRL's v1 trainer runs, where the launch says so; without it v0 does."""
    if view.where(USE_V1) is None:
        return
    view.demand_known(USE_V1)
    if view.value(USE_V1):
        draft.put(f"{base}.trainer", "v1", f"{USE_V1} ({view.where(USE_V1)})", (USE_V1,))


def _not_determined(
    view: LaunchView, way_back: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return what only the launch says, and the pairs that stand for each other, with marks in texts."""
    lost: dict[str, object] = {}
    approximated: dict[str, object] = {}
    defaults = pinned_defaults(view.config.flavour)
    for key, setting in view.config.settings.items():
        if key.endswith("_target_") or means_nothing(key) or setting.value == "???":
            continue  # ??? is Hydra's "not given", which OmegaConf refuses to read back
        if key == MINI and view.updates.why:
            continue  # the pinned veRL refuses what the launch says: a run takes what the YAML says
        if forks.idle(view, key) or (key.startswith(f"{V1}.") and not view.origin.get(USE_V1)):
            continue
        if key in way_back:
            # Of the length also where both say the same: it tells which of two limits was edited.
            other = key == TOTAL or not same(view.symbols.plain(way_back[key]), setting.value)
            if other and way_back[key] != view.variable(key):
                approximated[key] = [way_back[key], view.text(key)]
        elif not _is_default(setting, defaults.get(key, _NONE)) and not _follows(view, key, way_back):
            lost[key] = view.text(key)
    return lost, approximated


_REFERENCE = re.compile(r"\$\{oc\.select:([\w.]+),\{\}\}")


def _follows(view: LaunchView, key: str, way_back: Mapping[str, object]) -> bool:
    """Return True if the pinned veRL takes ``key`` from another section, where it has the launch's value.

    One key of such a section in the YAML replaces the reference, and with it all other keys.
    """
    settings, tree = view.config.settings, pinned_release(view.config.flavour).tree
    for section in sections_above(key):
        reference = _REFERENCE.fullmatch(str(value_at(tree, section)))
        if reference:
            below = [each for each in settings if each.startswith(f"{section}.")]
            return all(
                settings[each].where is None
                and each not in way_back
                and (other := settings.get(reference[1] + each.removeprefix(section))) is not None
                and same(other.value, settings[each].value)
                for each in below
            )
    return False


_NONE = object()


def _is_default(setting: Setting, pinned: object) -> bool:
    """Return True if the pinned veRL has the setting's value as its default."""
    if isinstance(pinned, str) and "${" in pinned:
        return setting.where is None and setting.interpolation == pinned
    return pinned is not _NONE and same(pinned, setting.value)
