"""Refusals of veRL's features that a decoupled run does not have.

They are errors before anything starts; nothing is ignored without a message.

The list is the audit's too: ``translate/run_refusals.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.releases import VERL
from trinity_compat.common.training_engines import engine_of
from trinity_compat.job import runtime_env
from trinity_compat.job.vllm_arguments import SECTION, fate, given_in, refusal, release_for
from trinity_compat.run.plan.source import LaunchRecord
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.translate.run_refusals import (
    GONE,
    QUANTIZATION,
    STOCK,
    refusals,
)
from trinity_compat.translate.sections.trainer import STRATEGIES
from trinity_compat.translate.supervised import STRATEGY, schema_in
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS

_ACTOR = "actor_rollout_ref.actor"
_SEEN = ("images", "videos")
_FOR_SEEING = {"torchvision": "torchvision", "qwen_vl_utils": "qwen-vl-utils"}  # module → package


def check(verl: Tree, record: LaunchRecord, *, cwd: Path, elsewhere: bool = False) -> None:
    """Raises UserError for the first key that asks for what can't be done.

    ``record``: the launch's words and places, as config/launch.json holds them. ``elsewhere``: the packages
    of this machine don't count.
    """
    for feature in refusals(partial(value_at, verl)):
        raise UserError(
            f"{feature.key}={value_at(verl, feature.key)} cannot be run decoupled: {feature.why}",
            where=place(record, (feature.key, *feature.also)),
            hint=feature.hint,
        )
    for key, why in GONE.items():
        if said := _launch_value(record, key):
            raise UserError(
                f"{key}={said} cannot be run decoupled: {why}", where=place(record, (key,)), hint=STOCK
            )
    # What a launch adds to Ray's runtime environment: explorer and trainer do not get it from Ray.
    for key, value, why, hint in runtime_env.faults(runtime_env.of_launch(verl), cwd):
        names = (word["text"].partition("=")[0].lstrip("+~") for word in record.get("arguments", ()))
        at = place(record, [name for name in names if name == key or name.startswith(f"{key}.")])
        raise UserError(f"{key}={value} cannot be run decoupled: {why}", where=at, hint=hint)
    _check_training_engine(verl, record, elsewhere=elsewhere)
    _check_engine(verl, record)
    if not elsewhere:
        # veRL opens images with packages of their own; sounds need the processor alone.
        for kind, held in media_held(verl, cwd).items():
            if kind in _SEEN and (missing := _missing()):
                packages = " and ".join(missing)
                raise UserError(
                    f"data.train_files: {held}; veRL opens them with {packages}, not installed here",
                    where=place(record, ("data.train_files",)),
                    hint=f"pip install {' '.join(missing)}",
                )


def _launch_value(record: LaunchRecord, key: str) -> str | None:
    """Return the launch's value of a key as text; None for null, False, or without the key."""
    # From the end: Hydra takes the last one.
    for word in reversed(record.get("arguments", ())):
        name, _, value = word["text"].partition("=")
        if name.lstrip("+~") == key:
            return value if value.lower() not in ("", "null", "none", "false") else None
    return None


def place(record: LaunchRecord, keys: Sequence[str]) -> Where | None:
    """The last place in the launch that sets one of ``keys``, else the launch's own place, or the YAML."""
    for word in reversed(record.get("arguments", ())):
        if word["text"].partition("=")[0].lstrip("+~") in keys:
            return _where(word["where"])
    if "yaml" in record:
        return Where(record["yaml"])
    return _where(record["where"]) if "where" in record else None


def _where(text: str) -> Where:
    file, _, line = text.rpartition(":")
    return Where(file, int(line)) if line.isdigit() else Where(text)


def check_strategy(config: Tree, verl: Tree, record: LaunchRecord) -> None:
    """Check the strategy that a YAML names. Raises UserError for one whose section the YAML cannot hold.

    ``config``: Trinity's. Its strategies are FSDP's and Megatron's; ``translate`` carries any other one.
    """
    strategy, has_explorer = value_at(config, STRATEGY), schema_in(config) == "experience"
    if strategy in (None, *STRATEGIES):
        if not has_explorer:
            _check_whole_groups(VerlView.of(verl), record)
        return
    if has_explorer and engine_of(strategy).section == engine_of(None).section:
        return
    if chosen := _launch_value(record, "engine.strategy"):
        said, why = f"engine.strategy={chosen}", f"veRL {VERL}: strategy {chosen} not supported"
    else:
        said, why = f"{STRATEGY}={strategy}", f"trinity-rft's are {', '.join(STRATEGIES)}"
    where = place(record, ("engine.strategy", "model.strategy"))
    raise UserError(f"{said}: {why}", where=where, hint="write fsdp2, with FSDP's own settings")


def _check_whole_groups(verl: VerlView, record: LaunchRecord) -> None:
    """Check that the GPUs hold whole groups of ranks that compute a row, in the words of the engines.

    An explorer's run is given GPUs that do (``gpu_split``). Source: megatron.core's parallel_state.py,
    torchtitan's parallel_dims.py.
    """
    engine, gpus, sharing = verl.engine, verl.trainer.gpus, verl.sharing(_ACTOR)

    def size(name: str) -> int:
        return verl.size(engine.key(_ACTOR, name))

    sizes = {name: size(name) for names in engine.shared for name in names if size(name) > 1}
    if engine.rest and size(engine.rest) > 0 and gpus % sharing == 0:
        sizes |= {name: size(name) for name in (engine.rest, engine.copies)}
        product = math.prod(sizes.values())
        fits, why = product == gpus, f"their product {product} != WORLD_SIZE({gpus})"
    else:
        fits, why = gpus % sharing == 0, f"world_size ({gpus}) is not divisible by {sharing}"
    if fits:
        return
    said = {name.rpartition(".")[2]: value for name, value in sizes.items()}
    raise UserError(
        f"{', '.join(f'{name}={value}' for name, value in said.items())}: {why} ({engine.title})",
        where=place(record, (*(f"engine.{name}" for name in said), "trainer.n_gpus_per_node")),
        hint="write sizes whose product divides the GPUs, or train on more of them",
    )


def _check_training_engine(verl: Tree, record: LaunchRecord, *, elsewhere: bool) -> None:
    """Check that the engine trains on this run's device, and that its packages are installed."""
    # The actor's class names the engine that veRL builds; only FSDP's takes the strategy.
    of_class = _CLASSES.get(str(value_at(verl, f"{_ACTOR}._target_")).rpartition(".")[2])
    engine = engine_of(of_class or value_at(verl, f"{_ACTOR}.strategy"))
    chosen = _launch_value(record, "engine")  # of a supervised launch
    key = f"engine={chosen}" if chosen else f"{_ACTOR}.strategy={engine.strategy}"
    fsdp = "engine=fsdp optim=fsdp" if chosen else "model_engine=dp"
    names = (
        "model_engine",
        f"{_ACTOR}.strategy",
        "--config-name",
        "engine",
        "engine.strategy",
        "engine._target_",
    )
    where = place(record, names)
    if not isinstance(value_at(verl, f"{_ACTOR}.{engine.section}"), Mapping):
        own = engine.strategy in ENGINE_FLAVOURS.values()
        raise UserError(
            f"{key}: veRL {VERL} gives this engine FSDP's settings, with which it does not start",
            where=where,
            hint=f"write model_engine={engine.strategy}"
            if own
            else f"write model_engine=dp to train with FSDP: veRL has no actor for {engine.strategy}",
        )
    if value_at(verl, "trainer.device") == "cpu" and not engine.on_cpu:
        raise UserError(
            f"{key}: {engine.title} trains on GPUs only, but this run is on a CPU",
            where=where,
            hint=f"start it on a machine with GPUs, or write {fsdp} to train with FSDP",
        )
    if missing := [] if elsewhere else engine.missing():
        on_pypi = all(engine.packages.values())
        installation = f"pip install {' '.join(missing)}" if on_pypi else "install it (PyPI does not have it)"
        raise UserError(
            f"{key} trains with the package {missing[0]}, which is not installed here",
            where=where,
            hint=f"{installation}, or write {fsdp} to train with FSDP",
        )


_CLASSES = {
    "McoreActorConfig": "megatron",
    "VeOmniActorConfig": "veomni",
    "TorchTitanActorConfig": "torchtitan",
}


def missing_for_training(verl: Tree) -> list[str]:
    """The packages of the engine that trains which are not installed here."""
    return engine_of(value_at(verl, f"{_ACTOR}.strategy")).missing()


def _check_engine(verl: Tree, record: LaunchRecord) -> None:
    """Arguments that the device's vLLM does not take."""
    if value_at(verl, "trainer.device") == "cpu" and (kind := value_at(verl, QUANTIZATION)):
        raise UserError(
            f"{QUANTIZATION}={kind}: veRL quantizes on GPUs only, but this run is on a CPU",
            where=place(record, (QUANTIZATION,)),
            hint="start it on a machine with GPUs, or leave it out",
        )
    release = release_for(str(value_at(verl, "trainer.device")))
    for name, value in given_in(verl).items():
        outcome = fate(name, value, release)
        if outcome.refused:
            raise refusal(name, value, release, outcome, place(record, (f"{SECTION}.{name}",)))


def missing_for_media(verl: Tree, cwd: Path) -> list[str]:
    """The packages that the data's images and videos need and that are not installed here."""
    return _missing() if any(kind in _SEEN for kind in media_held(verl, cwd)) else []


def _missing() -> list[str]:
    return [package for module, package in _FOR_SEEING.items() if not find_spec(module)]


MediaKind = Literal["images", "videos", "audios"]
_MEDIA_KEYS: dict[str, MediaKind] = {
    "image_key": "images",
    "video_key": "videos",
    "audio_key": "audios",
}  # of data
_MEDIA_ROWS = 8  # a dataset of texts has such a column empty throughout


def media_held(verl: Tree, cwd: Path) -> dict[MediaKind, str]:
    """Kind → the local training file and column that has it. ``cwd``: the launch's folder."""
    data = section_at(verl, "data")
    files = data.get("train_files")
    held: dict[MediaKind, str] = {}
    for text in files if isinstance(files, list | tuple) else [files]:
        path = cwd / from_home(str(text))
        for key, kind in _MEDIA_KEYS.items():
            column = str(data.get(key) or kind)
            if path.suffix == ".parquet" and path.is_file() and _has_values(path, column):
                held.setdefault(kind, f"{path} has {column} (data.{key})")
    return held


def _has_values(path: Path, column: str) -> bool:
    """Return whether the first rows of a column have values."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            return False
        batch = next(file.iter_batches(batch_size=_MEDIA_ROWS, columns=[column]), None)
    except (pyarrow.ArrowException, OSError):
        return False  # the check of the data files reports the problem
    return batch is not None and any(batch.column(0).to_pylist())
