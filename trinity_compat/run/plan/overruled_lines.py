"""Lines of a translated YAML that say otherwise than what runs, because another line decides.

What runs is found by translating the run's veRL configuration again: an unedited file comes out as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, copied, put
from trinity_compat.common.releases import TRINITY
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.translate.pipeline import as_translated
from trinity_compat.translate.sections.batch import TOTAL_STEPS
from trinity_compat.translate.sections.trainer import TC
from trinity_compat.translate.verl_from_trinity import compat_path
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.verl_config.interpolate import resolved_alone

_SECTIONS = (f"{TC}.actor_rollout_ref", f"{TC}.critic", f"{compat_path(TRINITY)}.verl")
# What names things, or may be spelled otherwise, and sections whose values stand for what else is written.
_APART = ("*.trinity_compat.*", "*.name", "mode", "*.experience_buffer.path", "checkpoint_root_dir")
_VERL = tuple(f"{section}." for section in _SECTIONS)  # lines that have veRL's own names


def overruled(config: Tree, written: Tree, planned: Callable[[Tree], RunPlan]) -> dict[str, object]:
    """Return path → value of the lines that another line overrules.

    ``written`` is what translate writes for the run, ``planned`` plans a configuration. A line that differs
    from ``written`` may be one that a run reads by itself, such as the number of engines: it has an effect.
    """
    return {
        path: value
        for path, value in values_of(config).items()
        if path in written
        and not any(fnmatchcase(path, name) for name in _APART)
        and not _are_same(value, written[path])
        and (
            overruling(config, path, written, of_verl=True)
            or _runs_the_same(planned, config, path, written[path])
        )
    }


def _runs_the_same(planned: Callable[[Tree], RunPlan], config: Tree, path: str, value: object) -> bool:
    """Return whether the configuration has the same plan with ``value`` at ``path``."""
    changed = copied(config)
    put(changed, path, value)
    try:
        one, other = (replace(planned(each), notes=(), unread={}) for each in (config, changed))
    except UserError:
        return False
    if (
        path in TOTAL_STEPS
    ):  # the lower of the two limits ends the run; where the epochs do, it is their count
        return path == TOTAL_STEPS[1] and one.spec.total_steps is None
    return one == other


def overruling(config: Tree, path: str, written: Tree, *, of_verl: bool = False) -> str | None:
    """Return the path of the one line that keeps ``path`` from being what runs; None where several do.

    ``of_verl`` looks among the lines with veRL's own names alone.
    """
    lines = values_of(config)
    for other in _candidates(lines, path, written, of_verl=of_verl):
        try:
            without = values_of(as_translated(_without(config, other)))
        except UserError:
            continue
        if path in without and _are_same(without[path], lines[path]):
            return other
    return None


def _candidates(lines: Tree, path: str, written: Tree, *, of_verl: bool) -> Iterator[str]:
    """Yield the lines that may decide instead.

    These are lines with veRL's own names that translate would not write so, and fields of the same name or
    with the value that runs, which is too common where it is true or false.
    """
    runs, name = written[path], path.rpartition(".")[2]
    for other, value in lines.items():
        if other.startswith(_VERL):
            decides = not _are_same(value, written.get(other))
        else:
            tells = not isinstance(runs, bool) or other.rpartition(".")[2] == name
            decides = tells and not of_verl and _are_same(value, runs)
        if decides and other != path:
            yield other


def _are_same(one: object, other: object) -> bool:
    return resolved_alone(one) == resolved_alone(other)


def _without(section: Mapping[str, object], path: str) -> dict[str, object]:
    """Return a copy of ``section`` without the line at ``path``; a key may hold dots."""
    out: dict[str, object] = {}
    for key, value in section.items():
        if path == key:
            continue
        below = path.removeprefix(f"{key}.")
        out[key] = _without(value, below) if below != path and isinstance(value, Mapping) else value
    return out
