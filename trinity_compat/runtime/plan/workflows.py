"""A YAML's workflows and rewards, put into veRL's own places for them: a dataset class, a reward function.

Only where a taskset names one; a launch's YAML names ``verl_workflow``, or none, and stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity_compat import extras
from trinity_compat.containers import Tree
from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.runtime.plan.options import RunOptions
from trinity_compat.runtime.plan.verl_view import Step, VerlView
from trinity_compat.trinity_config.watch import plain
from trinity_compat.workflows.plugins import VARIABLE, folders, registered_in
from trinity_compat.workflows.table import REWARDS, TAKES_ABOUT, VERL, WORKFLOWS, check_reward, check_workflow
from trinity_compat.workflows.tasksets import SECTION, Taskset, reference

_INPUT = "buffer.explorer_input"
_WORKFLOW, _REWARD = "default_workflow_type", "default_reward_fn_type"
_OWN_DATASET = "data.custom_cls.path"


def folders_of(options: RunOptions, cwd: Path) -> list[Path]:
    """The plugin folders of a run: ``--plugin-dir``, else upstream's variable of the environment."""
    given = [Path(text) for text in options.plugin_dirs] or folders(os.environ.get(VARIABLE, ""))
    return [cwd / folder.expanduser() for folder in given]


def environment(options: RunOptions, cwd: Path) -> dict[str, str]:
    """What tells the explorer's engines of them."""
    found = folders_of(options, cwd)
    return {VARIABLE: os.pathsep.join(map(str, found))} if found else {}


def placed(verl: VerlView, trinity: Tree, plugins: Sequence[Path] = ()) -> Step:
    """The configuration with the YAML's tasksets in it. Raises UserError for workflows and rewards that do
    not run here. ``plugins``: folders; their files are read, not run."""
    kinds = {kind: list(_named(trinity, kind)) for kind in ("train", "eval")}
    if all(each.workflow in (None, VERL) for found in kinds.values() for each in found):
        return verl, []
    if own := value_at(verl.tree, _OWN_DATASET):
        raise UserError(f"{_OWN_DATASET}={own}: a YAML with workflows brings its own dataset")
    registered = registered_in(plugins)
    made = {kind: [_taskset(each, trinity, registered) for each in found] for kind, found in kinds.items()}
    _check_baseline(verl, [each for found in made.values() for each in found])
    names = {kind: [reference(kind, number) for number in range(len(found))] for kind, found in made.items()}
    changes: dict[str, object] = {
        SECTION: {kind: [asdict(each) for each in found] for kind, found in made.items()},
        "data.train_files": names["train"],
        "data.val_files": names["eval"] or None,
        _OWN_DATASET: "pkg://trinity_compat.workflows.dataset",
        "data.custom_cls.name": "TasksetRows",
    }
    scorer = {"path": "pkg://trinity_compat.workflows.scoring", "name": "compute_score", "reward_kwargs": {}}
    changes["reward.custom_reward_function"] = scorer
    return verl.changed(changes), [_line(each) for found in made.values() for each in found]


@dataclass(frozen=True, slots=True)
class _Named:
    """A taskset's place in the YAML, its workflow and its reward, filled in as upstream does."""

    place: str
    workflow: str | None
    reward: str | None


def _named(trinity: Tree, kind: str) -> Iterator[_Named]:
    """trinity-rft's config_validator.py, _check_explorer_input."""
    above = ["default_eval_workflow_type"] if kind == "eval" else []
    for place in _places(trinity, kind):
        workflows = [f"{place}.{_WORKFLOW}", *(f"{_INPUT}.{name}" for name in (*above, _WORKFLOW))]
        rewards = [f"{place}.{_REWARD}", f"{_INPUT}.{_REWARD}"]
        yield _Named(place, _first(trinity, workflows), _first(trinity, rewards))


def _places(trinity: Tree, kind: str) -> list[str]:
    section = f"{_INPUT}.{'tasksets' if kind == 'train' else 'eval_tasksets'}"
    given = value_at(trinity, section) or []
    single = kind == "train" and not given and value_at(trinity, f"{_INPUT}.taskset")
    return [f"{_INPUT}.taskset"] if single else [f"{section}.{number}" for number in range(len(given))]


def _first(trinity: Tree, paths: Sequence[str]) -> str | None:
    return next((str(found) for path in paths if (found := value_at(trinity, path))), None)


def _check_baseline(verl: VerlView, tasksets: Sequence[Taskset]) -> None:
    estimator = value_at(verl.tree, "algorithm.adv_estimator")
    if estimator == "remax" and any(each.plugin for each in tasksets):
        raise UserError(
            "algorithm.algorithm_type: remax needs a greedy answer beside the sampled ones, which a plugin's"
            " workflow does not make",
            hint="write another algorithm_type",
        )


def _taskset(named: _Named, trinity: Tree, registered: Set[str]) -> Taskset:
    where = named.place
    workflow = _checked(named, registered)
    return Taskset(
        place=where,
        name=str(value_at(trinity, f"{where}.name") or where.rpartition("explorer_input.")[2]),
        path=str(_needed(trinity, f"{where}.path")),
        workflow=workflow,
        reward=named.reward,
        split=str(value_at(trinity, f"{where}.split") or "train"),
        subset=_text_or_none(trinity, f"{where}.subset_name"),
        format=_section(trinity, f"{where}.format"),
        workflow_args=_section(trinity, f"{where}.workflow_args"),
        reward_fn_args=_section(trinity, f"{where}.reward_fn_args"),
        chat_template=_text_or_none(trinity, "model.custom_chat_template"),
        enable_thinking=_thinking(trinity),
        plugin=workflow not in WORKFLOWS or (named.reward or "math_reward") not in REWARDS,
        drop_overlong=value_at(trinity, "model.enable_prompt_truncation") is not False,
    )


def _checked(named: _Named, registered: Set[str]) -> str:
    """The workflow's name. Raises UserError. Any name is one where trinity-rft itself is installed."""
    known = registered | {name for name in (named.workflow, named.reward) if name and _has_upstream()}
    if named.workflow in (None, VERL):
        raise UserError(
            f"{named.place} names {named.workflow or 'no workflow'}, another taskset one of Trinity's",
            hint=f"write a {_WORKFLOW} for each of them, {VERL} for all or for none",
        )
    if named.workflow not in known:
        check_workflow(named.workflow, f"{named.place}.{_WORKFLOW}")
    if named.reward and named.reward not in known:
        check_reward(named.reward, f"{named.place}.{_REWARD}")
    if named.reward and "math_boxed" in named.workflow and named.reward not in TAKES_ABOUT:
        # Upstream's other rewards fail on these arguments.
        raise UserError(
            f"{named.place}: {named.workflow} tells its reward with_think and format_score_coef, which"
            f" {named.reward} does not take",
            hint=f"write {_REWARD}: {TAKES_ABOUT[0]}, or leave it out",
        )
    return named.workflow


def _has_upstream() -> bool:
    return extras.version("trinity-rft") is not None


def _needed(trinity: Tree, path: str) -> object:
    found = value_at(trinity, path)
    if not found:
        raise UserError(f"{path} is missing: a taskset needs a file, a folder or a dataset's name")
    return found


def _section(trinity: Tree, path: str) -> dict[str, object]:
    found = value_at(trinity, path) or {}
    if not isinstance(found, Mapping):
        raise UserError(f"{path} is {found!r}, it should be a section")
    return plain(found)


def _text_or_none(trinity: Tree, path: str) -> str | None:
    found = value_at(trinity, path)
    return str(found) if found else None


def _thinking(trinity: Tree) -> bool | None:
    found = value_at(trinity, "model.enable_thinking")
    return None if found is None else bool(found)


def _line(taskset: Taskset) -> str:
    reward = taskset.reward or "the workflow's own reward"
    return f"{taskset.name}: {taskset.workflow} asks {taskset.path}, {reward} scores"
