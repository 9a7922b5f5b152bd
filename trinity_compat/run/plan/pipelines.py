"""A YAML's experience pipeline, put where the processes of a run find it: ``data.experience_pipeline``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.run.plan import juicer
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate.native_yaml import TASKSETS_KEY
from trinity_compat.translate.selectors import BY_DIFFICULTY
from trinity_compat.trinity.config.read_tracking import plain
from trinity_compat.trinity.pipelines import DATA_JUICER, SECTION
from trinity_compat.trinity.pipelines.registry import check
from trinity_compat.trinity.workflows.plugins import registered_in

OPERATORS = "data_processor.experience_pipeline.operators"
# Operators that have no word for a selector; a plugin's may.
_SILENT = (
    *("reward_filter", "reward_std_filter", "dapo_dynamic_sampling", "mask_response_truncated"),
    *("reward_shaping_mapper", "invalid_reward_filter", DATA_JUICER),
)


def placed(verl: VerlView, trinity: Tree, plugins: Sequence[Path], cwd: Path, *, explorers: int) -> Step:
    """The configuration with the YAML's operators in it.

    Raises UserError for those that do not run here. ``plugins``: folders; their files are read, not run.
    ``cwd``: where files that operators name are.
    """
    given = value_at(trinity, OPERATORS)
    if not given:
        return verl, _unfed(verl, [])
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise UserError(f"{OPERATORS} is {given!r}: write a list of sections with name and args")
    registered = registered_in(plugins)
    made = [_operator(plain(each), number, registered) for number, each in enumerate(given)]
    operators = [_with_service(each, number, trinity, cwd) for number, each in enumerate(made)]
    _check_run(verl, explorers)
    names = ", ".join(str(each["name"]) for each in operators)
    told = f"experience pipeline: {names}; a step draws tasks until its groups have passed"
    notes = [told, *_unfed(verl, [str(each["name"]) for each in operators])]
    return verl.changed({f"{SECTION}.operators": operators}), notes


def _unfed(verl: VerlView, operators: Sequence[str]) -> list[str]:
    """Return a note where rows are drawn by results that no operator reports."""
    tasksets = (value_at(verl.tree, TASKSETS_KEY) or {}).values()
    asked = [each["place"] for each in tasksets if value_at(each, "selector.type") == BY_DIFFICULTY]
    if not asked or not all(name in _SILENT for name in operators):
        return []
    return [
        f"{asked[0]}: no operator tells {BY_DIFFICULTY} how often tasks are passed (pass_rate_calculator"
        " does): its first estimates hold for the whole run, as in trinity-rft"
    ]


def _operator(given: Tree, number: int, registered: set[str]) -> dict[str, object]:
    where = f"{OPERATORS}.{number}"
    name, arguments = given.get("name"), given.get("args") or {}
    known = registered | ({str(name)} if optional_packages.version("trinity-rft") else set())
    check(name, arguments, where, known)
    return {"name": name, "args": arguments}


def _with_service(operator: dict[str, object], number: int, trinity: Tree, cwd: Path) -> dict[str, object]:
    if operator["name"] != DATA_JUICER:
        return operator
    where = f"{OPERATORS}.{number}.args"
    return {**operator, "args": juicer.operator_arguments(section_at(operator, "args"), where, trinity, cwd)}


def _check_run(verl: VerlView, explorers: int) -> None:
    if explorers > 1:
        raise UserError(
            f"{OPERATORS}: one explorer takes a batch through them, and the run has {explorers}",
            hint="leave --explorers out; explorer.rollout_model.engine_num gives one explorer more engines",
        )
    if value_at(verl.tree, "algorithm.adv_estimator") == "remax":
        raise UserError(
            f"{OPERATORS}: remax compares with a greedy answer that they would not see",
            hint="write another algorithm_type",
        )
