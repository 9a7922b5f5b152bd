"""A YAML's workflows and rewards, put into veRL's own places for them: a dataset class, a reward function.

Only where a taskset names one; a launch's YAML names ``verl_workflow``, or none, and stays as it is.
"""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.plain_numbers import is_whole
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run.plan.micro_batches import has_critic
from trinity_compat.run.plan.read_settings import setting_of
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import ACTOR, ROLLOUT, Step, VerlView
from trinity_compat.translate.sections.data import REWARD
from trinity_compat.trinity.algorithms.model import BY_STEP, KINDS, MIX
from trinity_compat.trinity.algorithms.selection import choose
from trinity_compat.trinity.config.read_tracking import plain
from trinity_compat.trinity.workflows.plugins import VARIABLE, check_dotted, folders, registered_in
from trinity_compat.trinity.workflows.registry import (
    PROGRAM,
    REWARDS,
    TAKES_ABOUT,
    VERL,
    WORKFLOWS,
    check_arguments,
    check_environment,
    check_reward,
    check_workflow,
    is_registered,
    upstream_names,
)
from trinity_compat.trinity.workflows.run_rows import TRUNCATED_ROWS, Limits, Parting
from trinity_compat.trinity.workflows.tasksets import LIMIT_S, SECTION, Taskset, have_classes, reference

_INPUT = "buffer.explorer_input"
_WORKFLOW, _REWARD = "default_workflow_type", "default_reward_fn_type"
_STEPS_AS_ROWS = SETTINGS["steps_as_rows"].key
_OWN_DATASET = "data.custom_cls.path"
_TIME_LIMIT = SETTINGS["agent_timeout"].fallback
_OF_TASKSETS = "pkg://trinity_compat.explorer.data.tasksets"  # reads tasksets without a workflow


def folders_of(options: RunOptions, cwd: Path) -> list[Path]:
    """The plugin folders of a run: ``--plugin-dir``, else upstream's variable of the environment."""
    given = [Path(text) for text in options.plugin_dirs] or folders(os.environ.get(VARIABLE, ""))
    return [cwd / from_home(str(folder)) for folder in given]


def environment(options: RunOptions, cwd: Path) -> dict[str, str]:
    """Return the variable that names the plugin folders; empty without any."""
    found = folders_of(options, cwd)
    return {VARIABLE: os.pathsep.join(map(str, found))} if found else {}


def with_tasksets(verl: VerlView, trinity: Tree, plugins: Sequence[Path] = (), cwd: Path = Path()) -> Step:
    """The configuration with the YAML's tasksets in it.

    Raises UserError for workflows and rewards that do not run here. ``plugins``: folders; their files are
    read, not run. ``cwd``: where the user's programs are.
    """
    kinds = {kind: list(_named(trinity, kind)) for kind in ("train", "eval")}
    if all(each.workflow in (None, VERL) for named in kinds.values() for each in named):
        if value_at(trinity, "mode") != "serve":  # it asks nobody
            _check_scored_by_verl(each for named in kinds.values() for each in named)
        files, validated = (value_at(verl.tree, f"data.{kind}_files") for kind in ("train", "val"))
        read_by_us = value_at(verl.tree, _OWN_DATASET) == _OF_TASKSETS
        return (verl.changed(_no_evaluation(files)) if read_by_us and validated == [] else verl), []
    own = value_at(verl.tree, _OWN_DATASET)
    if own and own != _OF_TASKSETS:
        raise UserError(f"{_OWN_DATASET}={own}: a YAML with workflows brings its own dataset")
    _check_all_named([each for named in kinds.values() for each in named])
    registered = registered_in(plugins)
    tasksets = {
        reference(kind, number): _taskset(each, trinity, registered, cwd)
        for kind, named in kinds.items()
        for number, each in enumerate(named)
    }
    if value_at(verl.tree, "algorithm.adv_estimator") == "remax" and any(
        each.plugin for each in tasksets.values()
    ):
        raise UserError(
            "algorithm.algorithm_type: remax needs a greedy answer beside the sampled ones, which a plugin's"
            " workflow does not make",
            hint="write another algorithm_type",
        )
    changed = verl.changed(_changes(verl, tasksets))
    return changed, [*(_line(each) for each in tasksets.values()), *_lengths(changed)]


def _check_scored_by_verl(tasksets: Iterable[_Named]) -> None:
    for each in tasksets:
        if each.reward not in (None, REWARD):
            raise UserError(
                f"{each.place}.{_REWARD}={each.reward}: {VERL} is scored by {REWARD}",
                hint=f"write {REWARD}, or a workflow of Trinity's (docs/workflows.md)",
            )


def _check_all_named(tasksets: Sequence[_Named]) -> None:
    trinity_taskset = next(each for each in tasksets if each.workflow not in (None, VERL))
    for each in tasksets:
        if each.workflow in (None, VERL):
            raise UserError(
                f"{each.place} names {each.workflow or 'no workflow'}, and"
                f" {trinity_taskset.place}.{_WORKFLOW}={trinity_taskset.workflow} is Trinity's",
                hint=f"write a {_WORKFLOW} for each of them, {VERL} for all or for none",
            )


def longest_response(verl: Tree) -> int:
    """The most tokens after the prompt in a row.

    They are those of one answer; for a workflow class, which may sample several times, they are what
    max_model_len leaves beside a prompt of full length.
    """
    if not have_classes(value_at(verl, SECTION) or {}):
        return int(str(value_at(verl, "data.max_response_length")))
    limits = _limits(verl)
    return max(limits.response, limits.whole - limits.prompt)


def _limits(verl: Tree) -> Limits:
    names = ("prompt_length", "response_length", "max_model_len")
    prompt, response, whole = (value_at(verl, f"{ROLLOUT}.{name}") for name in names)
    return Limits(int(str(prompt)), int(str(response)), int(str(whole)) if whole else None)


# Tokens of a micro-batch: the key, what cuts by them, over how many GPUs a row is spread.
_TOKENS = (
    (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.use_dynamic_bsz"),
    ("critic.ppo_max_token_len_per_gpu", "critic.use_dynamic_bsz"),
)


def _lengths(verl: VerlView) -> Iterator[str]:
    """Yield notes on the length of a class's rows, and on micro-batches too small for one."""
    if not have_classes(value_at(verl.tree, SECTION) or {}):
        return
    limits = _limits(verl.tree)
    whole = limits.whole
    yield (
        f"a row may have {whole} tokens (model.max_model_len), one answer {limits.response}"
        f" (max_response_tokens); what is longer is cut and counted ({TRUNCATED_ROWS})"
    )
    for key, dynamic in _TOKENS:
        tokens, role = value_at(verl.tree, key), key.rpartition(".")[0]
        if not value_at(verl.tree, dynamic) or (role == "critic" and not has_critic(verl.tree)):
            continue
        spread = verl.spread(role)
        if isinstance(tokens, int) and tokens * spread < whole:
            yield (
                f"warning: {key}={tokens} on each of {spread} GPU(s) holds no row of {whole} tokens"
                " (model.max_model_len): veRL ends the run at the first one that is longer; write"
                f" trainer.max_token_len_per_gpu: {-(-whole // spread)} or more"
            )


def _changes(verl: VerlView, tasksets: Mapping[str, Taskset]) -> dict[str, object]:
    """The changed veRL keys: dataset class and reward function. A manager takes no ``reward_fn_args``."""
    files = {kind: [name for name in tasksets if name.startswith(kind)] for kind in ("train", "eval")}
    reward_arguments = {argument for taskset in tasksets.values() for argument in taskset.reward_fn_args}
    manager = value_at(verl.tree, "reward.reward_kwargs") or {}
    return {
        SECTION: {name: asdict(taskset) for name, taskset in tasksets.items()},
        "data.train_files": files["train"],
        **({"data.val_files": files["eval"]} if files["eval"] else _no_evaluation(files["train"])),
        _OWN_DATASET: "pkg://trinity_compat.trinity.workflows.dataset",
        "data.custom_cls.name": "TasksetRows",
        "reward.custom_reward_function": {
            "path": "pkg://trinity_compat.trinity.workflows.scoring",
            "name": "compute_score",
            "reward_kwargs": {},
        },
        "reward.reward_kwargs": {name: manager[name] for name in manager if name not in reward_arguments}
        or None,
    }


def _no_evaluation(training: object) -> dict[str, object]:
    """Keys of a run without evaluation: veRL's trainer needs a validation set that is not empty."""
    never = {"trainer.test_freq": -1, "trainer.val_before_train": False}
    return {"data.val_files": training, "data.val_max_samples": 1, **never}


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


def first_taskset(trinity: Tree) -> str | None:
    """The place in the file of the first training taskset."""
    return next(iter(_places(trinity, "train")), None)


def _places(trinity: Tree, kind: str) -> list[str]:
    section = f"{_INPUT}.{'tasksets' if kind == 'train' else 'eval_tasksets'}"
    given = value_at(trinity, section) or []
    single = kind == "train" and not given and value_at(trinity, f"{_INPUT}.taskset")
    return [f"{_INPUT}.taskset"] if single else [f"{section}.{number}" for number in range(len(given))]


def _first(trinity: Tree, paths: Sequence[str]) -> str | None:
    return next((str(found) for path in paths if (found := value_at(trinity, path))), None)


def check_update(verl: VerlView, trinity: Tree, written: Tree) -> None:
    """Refuse an update that is a number of steps of runs. Raises UserError.

    trinity-rft counts steps; here an update is a number of tasks, with all rows of their runs
    (docs/decisions/steps-of-a-run.md). ``written``: the file before anything was filled in.
    """
    tasksets = (value_at(verl.tree, SECTION) or {}).values()
    size, batch = "buffer.train_batch_size", value_at(written, "buffer.batch_size") or 1
    configured, runs = value_at(written, size), batch * (value_at(trinity, "algorithm.repeat_times") or 1)
    by_step = any(each["by_step"] and each["plugin"] for each in tasksets)
    if configured in (None, runs) or not by_step or value_at(trinity, "algorithm.sample_strategy") == MIX:
        return
    raise UserError(
        f"{size}={configured} counts the steps of runs under this algorithm, and a run has an unknown number"
        " of them; here an update takes whole runs",
        hint=f"write {runs}, the answers of buffer.batch_size tasks, or leave it out",
    )


def _taskset(named: _Named, trinity: Tree, registered: Set[str], cwd: Path) -> Taskset:
    where = named.place
    if named.workflow and named.workflow not in registered:
        _check_own(named.workflow, where, trinity)
    workflow = str(named.workflow)  # `_check_all_named` has seen it
    _check_known(named, registered, cwd)
    arguments, form = _section(trinity, f"{where}.workflow_args"), _section(trinity, f"{where}.format")
    if program := workflow == PROGRAM and PROGRAM not in registered:
        arguments = program_arguments(arguments, f"{where}.workflow_args", cwd)
    reward, reward_arguments = named.reward or "math_reward", _section(trinity, f"{where}.reward_fn_args")
    plugin = workflow not in WORKFLOWS or reward not in REWARDS
    if not plugin:
        check_arguments(reward, reward_arguments, f"{where}.reward_fn_args")
    _check_format(form, f"{where}.format", plugin=plugin)
    path = f"{where}.path"
    found = value_at(trinity, path)
    if not found:
        raise UserError(f"{path} is missing: a taskset needs a file, a folder or a dataset's name")
    return Taskset(
        place=where,
        name=str(value_at(trinity, f"{where}.name") or where.rpartition("explorer_input.")[2]),
        path=str(found),
        workflow=workflow,
        reward=named.reward,
        split=str(value_at(trinity, f"{where}.split") or "train"),
        subset=_text_or_none(trinity, f"{where}.subset_name"),
        format=form,
        workflow_args=arguments,
        reward_fn_args=reward_arguments,
        by_step=(by_step := _by_step(trinity)),
        parting=_parting(trinity, by_step=by_step),
        program=program,
        chat_template=_text_or_none(trinity, "model.custom_chat_template"),
        enable_thinking=_thinking(trinity),
        plugin=plugin,
        storage=str(value_at(trinity, f"{where}.storage_type") or "file"),
        drop_overlong=value_at(trinity, "model.enable_prompt_truncation") is not False,
        limit_s=SETTINGS["agent_timeout"].checked(value_at(trinity, _TIME_LIMIT), _TIME_LIMIT) or LIMIT_S,
    )


# trinity-rft's own classes that cannot make a row here: why, and what to write instead.
_TEACHER = (
    "its class asks an auxiliary model for log-probabilities, and the teacher is not served to workflows"
    " here: it scores the answers of whatever workflow made them"
)
_FAILING = {
    "on_policy_distill_workflow": (
        _TEACHER,
        "write simple_workflow, which asks the same, and a default_reward_fn_type",
    ),
    "on_policy_distill_math_workflow": (
        _TEACHER,
        "write math_workflow with default_reward_fn_type: math_reward",
    ),
    "async_math_ruler_workflow": (
        "trinity-rft 0.6.0 does not await its judge, and every task fails",
        "write math_ruler_workflow",
    ),
}
_NO_REWARD = ("math_eval_workflow", "async_math_eval_workflow")
_JUDGED = "math_trainable_ruler_workflow"


def _check_own(workflow: str, place: str, trinity: Tree) -> None:
    """Raises UserError for a class of trinity-rft's whose first task is known to fail."""
    where = f"{place}.{_WORKFLOW}={workflow}"
    if workflow in _FAILING:
        why, hint = _FAILING[workflow]
        raise UserError(f"{where}: {why}", hint=hint)
    if workflow in _NO_REWARD and ".eval_tasksets." not in place:
        raise UserError(f"{where}: it gives no reward, so nothing can be trained", hint="write math_workflow")
    if workflow == _JUDGED and _parting(trinity, by_step=_by_step(trinity)) != "each":
        raise UserError(
            f"{where}: it returns its judge's experiences beside the answers",
            hint=f"write trainer.trainer_config.{_STEPS_AS_ROWS}: true, or --set {_STEPS_AS_ROWS}=true",
        )


def _check_format(form: Mapping[str, object], where: str, *, plugin: bool) -> None:
    """Raise UserError for columns that would not be read.

    A class is given whole rows; its model is asked in tokens of text, so that it would answer without having
    seen an image.
    """
    if plugin and (named := next((key for key in ("workflow_key", "reward_fn_key") if form.get(key)), None)):
        raise UserError(f"{where}.{named}={form[named]}: its class is every row's", hint="leave it out")
    if named := next((key for key in ("image_key", "video_key") if form.get(key)), None):
        why = (
            "the model of a workflow's class is asked in text here, and would see none"
            if plugin
            else "this workflow asks in text"
        )
        raise UserError(
            f"{where}.{named}={form[named]}: {why}",
            hint="leave it out if the answers do not need it; data.image_key of a veRL script reaches the"
            " model (docs/explorer.md, Images)",
        )


def _by_step(trinity: Tree) -> bool:
    """Return whether the algorithm's advantage reads what a run's experiences said each."""
    section = value_at(trinity, "algorithm") or {}
    others = [kind for kind in KINDS if kind != "advantage_fn"]
    return choose(section, others)["advantage_fn"].function.name in BY_STEP


def _parting(trinity: Tree, *, by_step: bool) -> Parting:
    """Return how a run's experiences become rows.

    An advantage that reads them one by one takes them on several rows as well as on one; for another a run is
    one answer, unless each is to be compared with every other. Raises UserError.
    """
    mixed = value_at(trinity, "algorithm.sample_strategy") == MIX
    setting = setting_of(trinity, "steps_as_rows")
    if setting and mixed:
        raise UserError(
            f"{_STEPS_AS_ROWS}: with an expert's rows (sample_strategy: {MIX}), every update must have"
            " a fixed number of rows",
            hint="leave it out: a run whose steps are one conversation is one row",
        )
    if setting:
        return "each"
    return "chains" if by_step and setting is None and not mixed else "joined"


def _check_known(named: _Named, registered: Set[str], cwd: Path) -> None:
    """Raises UserError for a workflow or a reward that nothing here has, or whose packages are missing.

    A dotted path is a class that the workflow's own process imports, as upstream does.
    """
    theirs, ours = upstream_names(), registered | {PROGRAM, *WORKFLOWS}
    workflow, reward = str(named.workflow), named.reward
    where = f"{named.place}.{_WORKFLOW}"
    if (
        workflow not in ours | set(theirs.workflows)
        and not plugin_packages.find("workflow", workflow)
        and not is_registered(workflow, ())
        and not check_dotted(workflow, where, cwd)
    ):
        check_workflow(workflow, where, sorted(registered))
    of_reward = f"{named.place}.{_REWARD}"
    if (
        reward
        and reward not in registered
        and not plugin_packages.find("reward", reward)
        and not is_registered(reward, theirs.rewards)
        and not check_dotted(reward, of_reward, cwd)
    ):
        check_reward(reward, of_reward, sorted(registered))
    # After the names: no package helps against an unknown one.
    if workflow in set(theirs.workflows) - ours:
        check_environment(workflow, where)
    if reward and "math_boxed" in workflow and reward not in TAKES_ABOUT:
        # Upstream's other rewards fail on these arguments.
        raise UserError(
            f"{named.place}: {workflow} tells its reward with_think and format_score_coef, which {reward}"
            " does not take",
            hint=f"write {_REWARD}: {TAKES_ABOUT[0]}, or leave it out",
        )


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
    rows = _ROWS[taskset.parting] if taskset.plugin else ""
    return f"{taskset.name}: {taskset.workflow} asks {taskset.path}, {reward} scores{rows}"


_ROWS: Mapping[Parting, str] = {
    "joined": "",
    "chains": "; a run is a row for each of its conversations",
    "each": "; a run is a row for each of its steps",
}


_PROGRAM_ARGUMENTS = ("function", "command", "places")
_PROGRAM_HINT = "write function: FILE.py:NAME, or command: [program, argument, …]"


def program_arguments(given: Mapping[str, object], where: str, cwd: Path) -> dict[str, object]:
    """Return the explorer's arguments for the program, with paths resolved from ``cwd``.

    Raises UserError. Reads the file of a function, and runs nothing of it.
    """
    for name in given:
        if name not in _PROGRAM_ARGUMENTS:
            raise UserError(
                f"{where}.{name}: agent_program does not take this argument",
                hint=question(nearest(name, _PROGRAM_ARGUMENTS)) or _PROGRAM_HINT,
            )
    function, command = given.get("function"), given.get("command")
    if bool(function) == bool(command):
        raise UserError(f"{where}: agent_program runs a function or a command", hint=_PROGRAM_HINT)
    places = given.get("places", 1)
    if not is_whole(places, least=1):
        raise UserError(f"{where}.places is {places!r}: write how many agents may run at a time, 1 or more")
    found = (
        {"function": _program_function(function, where, cwd)}
        if function
        else {"command": _program_command(command, where, cwd)}
    )
    return {**{name: given[name] for name in given if name == "places"}, **found, "directory": str(cwd)}


def _program_function(value: object, where: str, cwd: Path) -> str:
    file, _, name = str(value).rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"{where}.function is {value!r}", hint="write FILE.py:NAME")
    path = cwd / from_home(file)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{where}.function: {path} cannot be read ({error.strerror})") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(f"{where}.function: not Python: {error}", where=Where(str(path), line)) from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if name not in functions:
        has = question(nearest(name, functions)) or f"it has {', '.join(functions) or 'none'}"
        raise UserError(f"{where}.function: {path} has no function {name}", hint=has)
    return f"{path.resolve()}:{name}"


def _program_command(value: object, where: str, cwd: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise UserError(f"{where}.command is {value!r}", hint="write a list of words: [python, agent.py]")
    if not shutil.which(value[0]) and not (cwd / value[0]).is_file():
        raise UserError(f"{where}.command: the program {value[0]!r} does not exist")
    return list(value)
