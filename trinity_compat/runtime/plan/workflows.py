"""A YAML's workflows and rewards, put into veRL's own places for them: a dataset class, a reward function.

Only where a taskset names one; a launch's YAML names ``verl_workflow``, or none, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from trinity_compat.containers import Tree
from trinity_compat.dotted import value_at
from trinity_compat.errors import UserError
from trinity_compat.runtime.plan.verl_view import Step, VerlView
from trinity_compat.trinity_config.watch import plain
from trinity_compat.workflows.table import TAKES_ABOUT, VERL, check_reward, check_workflow
from trinity_compat.workflows.tasksets import SECTION, Taskset, reference

_INPUT = "buffer.explorer_input"
_WORKFLOW, _REWARD = "default_workflow_type", "default_reward_fn_type"
_OWN_DATASET = "data.custom_cls.path"


def placed(verl: VerlView, trinity: Tree) -> Step:
    """The configuration with the YAML's tasksets in it. Raises UserError for workflows and rewards that do
    not run here."""
    kinds = {kind: list(_named(trinity, kind)) for kind in ("train", "eval")}
    if all(each.workflow in (None, VERL) for found in kinds.values() for each in found):
        return verl, []
    if own := value_at(verl.tree, _OWN_DATASET):
        raise UserError(f"{_OWN_DATASET}={own}: a YAML with workflows brings its own dataset")
    made = {kind: [_taskset(each, trinity) for each in found] for kind, found in kinds.items()}
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


def _taskset(named: _Named, trinity: Tree) -> Taskset:
    where = named.place
    workflow = _checked(named)
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
        drop_overlong=value_at(trinity, "model.enable_prompt_truncation") is not False,
    )


def _checked(named: _Named) -> str:
    """The workflow's name. Raises UserError."""
    if named.workflow in (None, VERL):
        raise UserError(
            f"{named.place} names {named.workflow or 'no workflow'}, another taskset one of Trinity's",
            hint=f"write a {_WORKFLOW} for each of them, {VERL} for all or for none",
        )
    check_workflow(named.workflow, f"{named.place}.{_WORKFLOW}")
    if named.reward:
        check_reward(named.reward, f"{named.place}.{_REWARD}")
    if named.reward and "boxed" in named.workflow and named.reward not in TAKES_ABOUT:
        # Upstream's other rewards fail on these arguments.
        raise UserError(
            f"{named.place}: {named.workflow} tells its reward with_think and format_score_coef, which"
            f" {named.reward} does not take",
            hint=f"write {_REWARD}: {TAKES_ABOUT[0]}, or leave it out",
        )
    return named.workflow


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
