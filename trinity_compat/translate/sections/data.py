"""buffer.explorer_input: the rows to read, and how they are sampled and scored."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution, Status, notice
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.sections.reward import reward_arguments
from trinity_compat.translate.trinity_reader import FieldPair, TrinityReader

TRAIN, VAL = "data.train_files", "data.val_files"
SHUFFLE, SEED = "data.shuffle", "data.seed"
VAL_KWARGS = f"{ARR}.rollout.val_kwargs"
INPUT = "buffer.explorer_input"
TASKSETS, EVAL_TASKSETS = f"{INPUT}.tasksets", f"{INPUT}.eval_tasksets"
SELECTORS = ("data_selector", "task_selector")  # the second in the old trinity-rft
NO_SEED = 1  # what veRL's sampler takes when data.seed is null
# Fields of a taskset.
PROMPT = FieldPair("format.prompt_key", "data.prompt_key")
ARGUMENTS = (
    FieldPair("workflow_args.filter_overlong_prompts", "data.filter_overlong_prompts"),
    FieldPair("workflow_args.truncation", "data.truncation"),
)
REPEATS = FieldPair("repeat_times", f"{VAL_KWARGS}.n")
TEMPERATURE = FieldPair("rollout_args.temperature", f"{VAL_KWARGS}.temperature")
TOP_P, TOP_K = (FieldPair(f"rollout_args.{name}", f"{VAL_KWARGS}.{name}") for name in ("top_p", "top_k"))
MEDIA = {f"data.{kind}_key": f"{kind}s" for kind in ("image", "video", "audio")}
_SEES = re.compile(r"(?<![a-z])(vl|vlm|omni|vision)(?![a-z])", re.IGNORECASE)  # in a model's name
_TEXT_ONLY = "takes text, and fails at rows with images, videos or audio; trinity-compat takes them"
WORKFLOW, REWARD = "verl_workflow", "verl_reward"  # trinity_compat/plugins/upstream
SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation", "dev": "dev"}


@derivation
def tasksets(view: LaunchView) -> Derived:
    """One taskset for all training files (veRL shuffles across them), one eval taskset per file."""
    names: set[str] = set()
    train, val = view.texts(TRAIN), view.texts(VAL)
    if not train:
        raise UserError(f"{view.spelling(TRAIN)} names no file", where=view.where(TRAIN))
    yield PathValue(TASKSETS, list(_training(view, train, names)), (TRAIN,))
    evaluates = view.integer("trainer.test_freq", -1) > 0 or view.flag("trainer.val_before_train", True)
    if evaluates and val:
        yield PathValue(EVAL_TASKSETS, [_evaluation(view, file, names) for file in val], (VAL,))
    else:
        reason = "test_freq ≤ 0 and val_before_train is off" if val else "none given"
        for key in (VAL, *(f"{VAL_KWARGS}.{name}" for name in view.below(VAL_KWARGS))):
            yield Verdict(key, Status.NO_EFFECT, f"nothing is evaluated: {reason}", "TC072")
    yield from _order(view)
    yield from _remarks(view, train, val)


def _training(view: LaunchView, files: list[str], names: set[str]) -> Iterator[dict[str, object]]:
    if view.published:
        for file in files:
            taskset = _published(view, file, names, "")
            yield taskset | {"rollout_args": {"temperature": view.value(f"{ARR}.rollout.temperature", 1.0)}}
        return
    taskset = _taskset(view, files, names, "")
    taskset["rollout_args"] = {"temperature": view.number(f"{ARR}.rollout.temperature", 1.0)}
    order: dict[str, object] = {"selector_type": "shuffle" if view.flag(SHUFFLE, True) else "sequential"}
    order["seed"] = view.integer(SEED, NO_SEED)
    yield taskset | {SELECTORS[view.old_trinity]: order}


def _evaluation(view: LaunchView, file: str, names: set[str]) -> dict[str, object]:
    taskset = (
        _published(view, file, names, "_eval") if view.published else _taskset(view, [file], names, "_eval")
    )
    sampled = view.flag(f"{VAL_KWARGS}.do_sample") or _samples_anyway(view)
    for pair, value in (
        (REPEATS, view.integer(REPEATS.key, 1)),
        (TEMPERATURE, (view.number(TEMPERATURE.key, 0) or 0.0) if sampled else 0.0),
        (TOP_P, view.number(TOP_P.key, 1.0)),
        (TOP_K, view.integer(TOP_K.key, -1)),
    ):
        put(taskset, pair.path, value)
    return taskset


def _samples_anyway(view: LaunchView) -> bool:
    """Return True where veRL takes the temperature whatever do_sample says.

    Since 0.7 answers are those of agent loops (verl 0.9.1, experimental/agent_loop/agent_loop.py:603), and
    only hf_rollout reads do_sample.
    """
    read = VERL_RELEASES.index(view.origin.version.value) < VERL_RELEASES.index("0.7.0")
    return not read and view.value(f"{ARR}.rollout.name") != "hf"


@way_back
def evaluation(reading: TrinityReader) -> VerlSettings:
    """The eval tasksets, and how they are sampled: as the first of them."""
    tasksets = reading.get(EVAL_TASKSETS) or []
    if not tasksets:
        return
    files = [taskset.get("path") for taskset in tasksets]
    yield VAL, files[0] if len(files) == 1 else files
    first = TrinityReader(tasksets[0])
    yield from first.verl_values(REPEATS, TEMPERATURE, TOP_P, TOP_K)
    temperature = first.get(TEMPERATURE.path)
    if temperature is not None:
        yield f"{VAL_KWARGS}.do_sample", temperature > 0


def _published(view: LaunchView, file: str, names: set[str], suffix: str) -> dict[str, object]:
    """A taskset as the published guide writes it: directory, split, two columns."""
    folder, name = posixpath.split(file)
    bare = folder and "/" not in folder and not view.symbols.plain(folder)
    return {
        "name": _name(view, file, names, suffix),
        "storage_type": "file",
        "path": f"{folder}/" if bare else folder,  # $D/x.parquet lies in / where $D is empty
        "split": SPLITS.get(posixpath.splitext(name)[0], "train"),
        "format": {"prompt_key": view.value(PROMPT.key, "prompt"), "response_key": "answer"},
    }


def _taskset(view: LaunchView, files: list[str], names: set[str], suffix: str) -> dict[str, object]:
    """Taskset for our plugin: the launch's own data files, with veRL's row format and veRL's scoring."""
    return {
        "name": _name(view, files[0] if files else "", names, suffix),
        "storage_type": "file",
        "path": files[0] if files else None,
        "split": "train",
        "default_workflow_type": WORKFLOW,
        "default_reward_fn_type": REWARD,
        "format": {"prompt_key": view.value(PROMPT.key, "prompt")},
        "workflow_args": _workflow(view, files, evaluation=bool(suffix)),
        "reward_fn_args": reward_arguments(view),
    }


def _workflow(view: LaunchView, files: list[str], *, evaluation: bool) -> dict[str, object]:
    arguments: dict[str, object] = {"files": files} if len(files) > 1 else {}
    arguments |= {
        "filter_overlong_prompts": view.flag("data.filter_overlong_prompts"),
        "max_prompt_length": view.size("data.max_prompt_length", 512),
        "truncation": str(view.value("data.truncation", "error")),
        "tokenizer": view.text("data.tokenizer") or view.text(f"{ARR}.model.path"),
        "trust_remote_code": view.flag("data.trust_remote_code"),
    }
    if template := view.below("data.apply_chat_template_kwargs") or view.value(
        "data.apply_chat_template_kwargs"
    ):
        arguments["apply_chat_template_kwargs"] = template
    limit = view.integer("data.val_max_samples" if evaluation else "data.train_max_samples", -1)
    if limit != -1:
        arguments["max_samples"] = limit
    return arguments


def _name(view: LaunchView, file: str, names: set[str], suffix: str) -> str:
    """A unique name: the file's folder, as the published guide has it, else the file itself."""
    path = str(view.symbols.plain(file))
    folder, name = posixpath.split(path)
    base = posixpath.basename(folder) or posixpath.splitext(name)[0] or "taskset"
    base = re.sub(r"\W+", "_", base).strip("_") or "taskset"
    unique, number = base + suffix, 2
    while unique in names:
        unique, number = f"{base}_{number}{suffix}", number + 1
    names.add(unique)
    return unique


@way_back
def training(reading: TrinityReader) -> VerlSettings:
    """The training taskset: the first of those that translate writes, or the one of a file by hand."""
    taskset = f"{TASKSETS}.0"
    if reading.get(taskset) is None:
        taskset = f"{INPUT}.taskset"
    files = reading.get(f"{taskset}.workflow_args.files") or reading.get(f"{taskset}.path")
    if files is not None:
        yield TRAIN, files
    yield from TrinityReader(reading.get(taskset, {})).verl_values(PROMPT, *ARGUMENTS)
    for selector in SELECTORS:
        order = reading.get(f"{taskset}.{selector}") or {}
        if "selector_type" in order:
            yield SHUFFLE, order["selector_type"] == "shuffle"
        if order.get("seed", NO_SEED) != NO_SEED:
            yield SEED, order["seed"]


def _order(view: LaunchView) -> Iterator[Verdict]:
    if view.published:
        reason = "the published guide leaves the order to Trinity"
        yield Verdict(SHUFFLE, Status.APPROXIMATED, reason, target=None)
        yield Verdict(SEED, Status.APPROXIMATED, reason, target=None)
    elif not view.flag(SHUFFLE, True):
        yield Verdict(SHUFFLE, Status.MAPPED, "in the order of the file, in both")
        yield Verdict(SEED, Status.NO_EFFECT, "nothing is shuffled", "TC044")


def _remarks(view: LaunchView, train: list[str], val: list[str]) -> Iterator[Verdict | Caution]:
    for key, files in ((TRAIN, train), (VAL, val)):
        if any("hdfs://" in str(view.symbols.plain(file)) for file in files):
            reason = (
                "kept as written; Trinity-RFT has no HDFS for data, trinity-compat copies it as veRL does"
            )
            yield Verdict(key, Status.UNSUPPORTED_UPSTREAM, reason, "TC047")
    yield from _media(view)
    if view.published:
        text = "the guide's columns put veRL's whole chat list into one user message and find no answer"
        hint = "leave out --as-published: the plugin's workflow reads veRL's rows as they are"
    else:
        text = (
            f"the YAML names the workflow {WORKFLOW} and the reward {REWARD}, which read veRL's columns "
            "(prompt, data_source, reward_model.ground_truth, extra_info)"
        )
        hint = 'with Trinity-RFT: trinity run --plugin-dir "$(trinity-compat plugin-dir)"'
    yield notice("TW010", text, view.where(TRAIN), hint)


def _media(view: LaunchView) -> Iterator[Verdict | Caution]:
    """Warn of rows with images, videos or audio: upstream does not support them.

    The rows are not read: the launch names such a column, or its model's name is that of a vision model.
    """
    given = [key for key in MEDIA if view.is_set(key) and view.value(key)]
    for key in given:
        yield Verdict(key, Status.UNSUPPORTED_UPSTREAM, f"Trinity-RFT {WORKFLOW} {_TEXT_ONLY}")
    model = f"{ARR}.model.path"
    if given:
        named = " and ".join(MEDIA[key] for key in given)
        yield Caution(
            "TW026", f"rows with {named}: Trinity-RFT {WORKFLOW} {_TEXT_ONLY}", view.where(given[0])
        )
    elif _SEES.search(posixpath.basename(str(view.value(model, "")))):
        text = f"{view.written(model)} may be for rows with images: Trinity-RFT {WORKFLOW} {_TEXT_ONLY}"
        yield notice("TW026", text, view.where(model))
