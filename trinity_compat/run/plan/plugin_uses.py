"""Plugins of other distributions that a run uses, by the names in its configuration (docs/plugins.md)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.plugin_packages import Kind, Plugin
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.translate.sections.data import REWARD
from trinity_compat.translate.user_rules import families
from trinity_compat.translate.verl_names import ESTIMATORS, LOGGERS, POLICY_LOSSES
from trinity_compat.trinity.algorithms.model import CLASSES, FUNCTIONS, PREFIX
from trinity_compat.trinity.pipelines import DATA_JUICER
from trinity_compat.trinity.pipelines import SECTION as PIPELINE
from trinity_compat.trinity.pipelines.operators import OPERATORS
from trinity_compat.trinity.workflows.registry import PROGRAM, REWARDS, VERL, WORKFLOWS, upstream_names
from trinity_compat.trinity.workflows.tasksets import SECTION as TASKSETS

_LOSS = "actor_rollout_ref.actor.policy_loss"
_LOGGER, _ESTIMATOR = "trainer.logger", "algorithm.adv_estimator"
_RECORD = "run.json"
_OF_FOLDERS = ("workflow", "reward", "operator")  # kinds that --plugin-dir has too


def built_in(kind: Kind) -> Collection[str]:
    """Return the names of a kind that are trinity-compat's, trinity-rft's or veRL's own."""
    theirs = upstream_names()
    return {
        "workflow": {*WORKFLOWS, PROGRAM, VERL, *theirs.workflows},
        "reward": {*REWARDS, REWARD, *theirs.rewards},
        "operator": {*OPERATORS, DATA_JUICER},
        "advantage": {*FUNCTIONS["advantage_fn"], *ESTIMATORS},
        "policy_loss": {*FUNCTIONS["policy_loss_fn"], *POLICY_LOSSES},
        "logger": set(LOGGERS),
        "fork_rules": set(families()),
    }[kind]


def used(verl: Tree, registered: Collection[str] = ()) -> tuple[Plugin, ...]:
    """Return the plugins that a veRL configuration with the run's tasksets and operators names.

    ``registered``: names that files of --plugin-dir register. Raises UserError for a name that is another's
    too, and for a plugin of a later interface.
    """
    names = dict.fromkeys(_names(verl))
    found = [plugin_packages.find(kind, name, built_in=name in built_in(kind)) for kind, name in names]
    plugins = tuple(plugin for plugin in found if plugin)
    for plugin in plugins:
        if plugin.kind in _OF_FOLDERS and plugin.name in registered:
            raise UserError(
                f"{plugin.title} cannot be used: a file of --plugin-dir registers that name too",
                hint=f"rename it there, or pip uninstall {plugin.distribution}",
            )
    return plugins


def _names(verl: Tree) -> Iterator[tuple[Kind, str]]:
    for taskset in (value_at(verl, TASKSETS) or {}).values():
        yield "workflow", str(taskset["workflow"])
        yield "reward", str(taskset.get("reward"))
    for operator in value_at(verl, f"{PIPELINE}.operators") or ():
        yield "operator", str(operator["name"])
    yield "advantage", str(value_at(verl, _ESTIMATOR)).removeprefix(PREFIX)
    yield "policy_loss", str(value_at(verl, f"{_LOSS}.loss_mode")).removeprefix(PREFIX)
    loggers = value_at(verl, _LOGGER) or ()
    for name in [loggers] if isinstance(loggers, str) else loggers:
        yield "logger", str(name)


def with_loss(verl: VerlView) -> VerlView:
    """Return the configuration with the section's class that registers a plugin's policy loss in the workers.

    A Trinity YAML has it already.
    """
    mode = str(value_at(verl.tree, f"{_LOSS}.loss_mode"))
    if mode.startswith(PREFIX) or not plugin_packages.find("policy_loss", mode):
        return verl
    return verl.changed({f"{_LOSS}._target_": f"{CLASSES}.PolicyLoss"})


def lines(plugins: Sequence[Plugin], before: Sequence[Plugin]) -> list[str]:
    """Return a note for each plugin; ``before``: those of the job's last start."""
    versions = {(each.kind, each.name): each.source for each in before}
    notes = []
    for each in plugins:
        old = versions.get((each.kind, each.name), each.source)
        changed = "" if old == each.source else f"; the job was started with {old}"
        notes.append(f"plugin: {each.kind} {each.name} is {each.value} of {each.source}{changed}")
    return notes


def of_job(job: JobDir, config: Tree) -> list[Plugin]:
    """Return the plugins that the job was started with; none for a new job.

    Raises UserError for one that the configuration still names and that is not installed any more.
    """
    try:
        told = json.loads((job.root / "config" / _RECORD).read_text(encoding="utf-8"))
        kept = [Plugin(**each) for each in told.get("plugins", ())]
    except (OSError, ValueError, TypeError, AttributeError):
        return []
    texts = set(_texts(config))
    for each in kept:
        if each.name in texts and plugin_packages.find(each.kind, each.name) is None:
            raise UserError(
                f"{job.root} was started with {each.title}, which is not installed here any more",
                hint=f"pip install '{each.distribution}=={each.version}', or choose another --job",
            )
    return kept


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
