"""A YAML's experience and task pipelines, written into veRL's section ``data``; arguments of Data-Juicer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trinity_compat.common import optional_packages, plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate.hand_written_yaml import TASKSETS_KEY
from trinity_compat.translate.selectors import BY_DIFFICULTY
from trinity_compat.trinity.config.read_tracking import plain
from trinity_compat.trinity.pipelines import DATA_JUICER, SECTION
from trinity_compat.trinity.pipelines.juicer import SECTION as TASK_SECTION
from trinity_compat.trinity.pipelines.operators import check
from trinity_compat.trinity.workflows.plugins import registered_in

OPERATORS = "data_processor.experience_pipeline.operators"
# Operators that report nothing to a selector; a plugin's may.
_SILENT = (
    *("reward_filter", "reward_std_filter", "dapo_dynamic_sampling", "mask_response_truncated"),
    *("reward_shaping_mapper", "invalid_reward_filter", DATA_JUICER),
)


def with_operators(
    verl: VerlView, trinity: Tree, plugins: Sequence[Path], cwd: Path, *, explorers: int
) -> Step:
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
    operators = [_operator(plain(each), number, registered) for number, each in enumerate(given)]
    for number, each in enumerate(operators):
        if each["name"] == DATA_JUICER:
            where = f"{OPERATORS}.{number}.args"
            operators[number]["args"] = operator_arguments(section_at(each, "args"), where, trinity, cwd)
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
    names = ", ".join(str(each["name"]) for each in operators)
    note = f"experience pipeline: {names}; a step draws tasks until its groups have passed"
    notes = [note, *_unfed(verl, [str(each["name"]) for each in operators])]
    return verl.changed({f"{SECTION}.operators": operators}), notes


def _unfed(verl: VerlView, operators: Sequence[str]) -> list[str]:
    """Return a note where rows are drawn by results that no operator reports."""
    tasksets = (value_at(verl.tree, TASKSETS_KEY) or {}).values()
    places = [each["place"] for each in tasksets if value_at(each, "selector.type") == BY_DIFFICULTY]
    if not places or not all(name in _SILENT for name in operators):
        return []
    return [
        f"{places[0]}: no operator tells {BY_DIFFICULTY} how often tasks are passed (pass_rate_calculator"
        " does): its first estimates hold for the whole run, as in trinity-rft"
    ]


def _operator(given: Tree, number: int, registered: set[str]) -> dict[str, object]:
    where = f"{OPERATORS}.{number}"
    name, arguments = given.get("name"), given.get("args") or {}
    theirs = optional_packages.version("trinity-rft") or plugin_packages.find("operator", str(name))
    known = registered | ({str(name)} if theirs else set())
    check(name, arguments, where, known)
    return {"name": name, "args": arguments}


TASKS = "data_processor.task_pipeline"
_SERVICE = "service.data_juicer"
_ARGUMENTS = ("operators", "config_path", "np")


def operator_arguments(given: Tree, where: str, trinity: Tree, cwd: Path) -> dict[str, object]:
    """The arguments of the operator ``data_juicer``, with the service in them. Raises UserError."""
    for name in given:
        if name not in _ARGUMENTS:
            raise UserError(
                f"{where}.{name}: data_juicer takes {', '.join(_ARGUMENTS)}",
                hint=question(nearest(name, _ARGUMENTS)),
            )
    operators = value_at(given, "operators")
    path = _path(value_at(given, "config_path"), cwd)
    each_named = all(isinstance(each, Mapping) and len(each) == 1 for each in _listed(operators))
    if not path and not (_listed(operators) and each_named):
        raise UserError(
            f"{where}.operators is {operators!r}: write a list of operators, each its name with its arguments"
        )
    workers = _count(given.get("np", 4), f"{where}.np")
    service = service_of(trinity, where)
    return {"service_config": service, "operators": operators, "config_path": path, "np": workers}


def service_of(trinity: Tree, asking: str) -> dict[str, object]:
    """Return the address of the service, or the port at which to start it.

    Raises UserError where the file gives neither.
    """
    given = section_at(trinity, _SERVICE)
    url, starts = given.get("server_url"), bool(given.get("auto_start"))
    if starts:
        port = given.get("port")
        if port is not None and not is_whole(port):
            raise UserError(f"{_SERVICE}.port is {port!r}: write a number, or leave it out for a free one")
        return {"port": port or 0}
    if not url:
        raise UserError(
            f"{asking} needs Data-Juicer, and {_SERVICE} names no service",
            hint=f"write {_SERVICE}.auto_start: true, or the {_SERVICE}.server_url of one that runs",
        )
    return {"server_url": str(url)}


def with_task_pipeline(verl: VerlView, trinity: Tree, place: str | None, cwd: Path, mode: object) -> Step:
    """The configuration with the task pipeline in it.

    ``place``: of the first training taskset in the file, into whose path the pipeline writes. Raises
    UserError.
    """
    given = section_at(trinity, TASKS)
    if not given or mode in ("bench", "serve", "train"):
        return verl, []
    output = value_at(given, "output.path") or (place and value_at(trinity, f"{place}.path"))
    if not output:
        raise UserError(f"{TASKS} has no taskset to write", hint="write buffer.explorer_input.tasksets")
    request, folder = _work(given, cwd), cwd / from_home(str(output))
    if folder.suffix:
        raise UserError(
            f"{TASKS} writes a folder, and the taskset's path is {output}",
            hint="write a path without an ending; it is made",
        )
    request["output_dir"] = str(folder)
    note = f"task pipeline: {len(_listed(request['inputs']))} file(s) through Data-Juicer into {output}"
    return verl.changed({TASK_SECTION: {"service": service_of(trinity, TASKS), "asked": request}}), [note]


def _work(given: Tree, cwd: Path) -> dict[str, object]:
    """Return the request of trinity-rft's client (trinity/buffer/pipelines/task_pipeline.py)."""
    inputs = _listed(given.get("inputs"))
    if not inputs:
        raise UserError(f"{TASKS}.inputs names no file")
    path = _path(given.get("config_path"), cwd)
    operators = [] if path else _named(given.get("operators"))
    return {
        "pipeline_type": "task",
        "operators": operators or None,
        "config_path": path,
        "np": _count(given.get("num_process", 4), f"{TASKS}.num_process"),
        "inputs": [_path(each, cwd) for each in inputs],
        "target_fields": [str(each) for each in _listed(given.get("target_fields"))],
        "priority_weights": plain(section_at(given, "priority_weights")),
        "top_k": int(str(given.get("top_k", -1))),
    }


def _named(given: object) -> list[dict[str, object]]:
    """Trinity's {name, args} as Data-Juicer's {name: args}."""
    operators = [plain(each) if isinstance(each, Mapping) else {} for each in _listed(given)]
    if not operators or not all(each.get("name") for each in operators):
        raise UserError(f"{TASKS}.operators is {given!r}: write a list of sections with name and args")
    return [{str(each["name"]): each.get("args") or {}} for each in operators]


def _path(given: object, cwd: Path) -> str | None:
    return str(cwd / from_home(str(given))) if given else None


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list) else []


def _count(given: object, where: str) -> int:
    if not is_whole(given, least=1):
        raise UserError(f"{where} is {given!r}: write a number of processes")
    return given
