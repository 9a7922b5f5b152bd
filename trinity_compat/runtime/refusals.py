"""What veRL can and a decoupled run here cannot: refused before anything starts, never left out in silence.

Each entry names the key, the values that mean "off", why the run cannot do it, and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity_compat.errors import UserError, Where

_ROLLOUT = "actor_rollout_ref.rollout"
_STOCK = "leave it out, or run on stock veRL"


@dataclass(frozen=True, slots=True)
class Refusal:
    """``off``: the values that ask for nothing. ``also``: how older veRL releases spell the key."""

    key: str
    why: str
    hint: str = _STOCK
    off: tuple[Any, ...] = (None, False, "", 0)
    also: tuple[str, ...] = ()


_REFUSALS = (
    Refusal(
        "reward.reward_model.enable",
        "no process of the run serves a reward model; the explorer scores with reward functions",
        "score with reward.custom_reward_function, which may call a served model",
        also=("reward_model.enable",),
    ),
    Refusal(f"{_ROLLOUT}.name", "the explorer runs vLLM", f"write {_ROLLOUT}.name=vllm", off=("vllm",)),
    Refusal("distillation.enabled", "no process of the run serves teachers"),
    Refusal(f"{_ROLLOUT}.quantization", "the explorer's weights have the trainer's precision"),
    Refusal(f"{_ROLLOUT}.enable_rollout_routing_replay", "the buffer keeps no expert routes"),
    Refusal(f"{_ROLLOUT}.agent.custom_async_server.path", "the explorer starts its own engines"),
    Refusal(f"{_ROLLOUT}.disaggregation.enabled", "the explorer starts its own engines"),
    Refusal(f"{_ROLLOUT}.over_sample_rate", "every group is waited for: none is cut short"),
    Refusal("actor_rollout_ref.model.mtp.enable_rollout", "the explorer's engines don't speculate"),
    Refusal("skip.rollout.enable", "rollouts come out of the buffer"),
    *(
        Refusal(
            f"{_ROLLOUT}.{name}",
            "the explorer's engines split by tensor_model_parallel_size",
            off=(None, 0, 1),
        )
        for name in ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")
    ),
)
# Keys of older releases that 0.9.1 has no more: their values stand in the launch only.
_GONE = ("data.sampler.class_path", "data.datagen.path")
_REMAX = "algorithm.adv_estimator"
_MEDIA = {"image_key": "images", "video_key": "videos", "audio_key": "audios"}


def check(verl: Mapping[str, Any], record: Mapping[str, Any], *, cwd: Path, explorers: int = 1) -> None:
    """Raises UserError for the first key that asks for what can't be done. ``record``: the launch's
    words and places, as config/launch.json holds them."""
    for refusal in (*_REFUSALS, *_conditional(verl, explorers)):
        value = value_of(verl, refusal.key)
        if value not in refusal.off:
            raise UserError(
                f"{refusal.key}={value} cannot be run decoupled: {refusal.why}",
                where=place(record, (refusal.key, *refusal.also)),
                hint=refusal.hint,
            )
    for key in _GONE:
        if value := _said(record, key):
            raise UserError(
                f"{key}={value} cannot be run decoupled: the explorer draws the dataset's rows in veRL's"
                " default order, and veRL 0.9.1 has no such key any more",
                where=place(record, (key,)),
                hint=_STOCK,
            )
    _check_media(verl, record, cwd)


def _said(record: Mapping[str, Any], key: str) -> str | None:
    """What the launch's words say of a key, "null" apart."""
    for word in reversed(record.get("arguments", ())):
        name, _, value = word["text"].partition("=")
        if name.lstrip("+~") == key:
            return value if value not in ("", "null", "None") else None
    return None


def _conditional(verl: Mapping[str, Any], explorers: int) -> Iterator[Refusal]:
    if value_of(verl, _REMAX) == "remax":
        why = "it needs a greedy answer beside each group, which the explorer does not make"
        yield Refusal(_REMAX, why, "write algorithm.adv_estimator=rloo or grpo, or run on stock veRL")
    metric = "algorithm.filter_groups.metric"
    if value_of(verl, "algorithm.filter_groups.enable"):
        if explorers > 1:
            why = "where a step's tasks begin depends on the step before, so one explorer draws them all"
            yield Refusal("algorithm.filter_groups.enable", why, "leave out --explorers")
        if value_of(verl, metric) == "seq_final_reward" and value_of(verl, "algorithm.use_kl_in_reward"):
            why = "the KL penalty is added in the trainer, after the filter"
            yield Refusal(metric, why, f"write {metric}=reward")
    else:
        why = "without algorithm.filter_groups a step generates exactly data.train_batch_size prompts"
        same = (None, value_of(verl, "data.train_batch_size"))
        yield Refusal("data.gen_batch_size", why, "write the number as data.train_batch_size", off=same)


def value_of(tree: Any, key: str) -> Any:
    """The value at a dotted key, None where nothing stands."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def place(record: Mapping[str, Any], keys: Sequence[str]) -> Where | None:
    """Where the launch says one of ``keys``, the last time, else where it stands; the YAML when it came
    from one."""
    for word in reversed(record.get("arguments", ())):
        if word["text"].partition("=")[0].lstrip("+~") in keys:
            return _where(word["where"])
    if "yaml" in record:
        return Where(record["yaml"])
    return _where(record["where"]) if "where" in record else None


def _where(text: str) -> Where:
    file, _, line = text.rpartition(":")
    return Where(file, int(line)) if line.isdigit() else Where(text)


def _check_media(verl: Mapping[str, Any], record: Mapping[str, Any], cwd: Path) -> None:
    """Images, videos and audio have no place in the buffer."""
    data = verl["data"]
    files = data.get("train_files")
    for text in files if isinstance(files, list | tuple) else [files]:
        path = cwd / Path(str(text)).expanduser()
        for key, default in _MEDIA.items():
            column = data.get(key) or default
            if path.suffix == ".parquet" and path.is_file() and _holds(path, column):
                raise UserError(
                    f"data.train_files: {path} has {column} (data.{key}): the buffer holds text only",
                    where=place(record, ("data.train_files",)),
                    hint="train on a file without that column, or run on stock veRL",
                )


def _holds(path: Path, column: str) -> bool:
    """Whether the first rows of a column have something in them."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            return False
        batch = next(file.iter_batches(batch_size=8, columns=[column]), None)
    except (pyarrow.ArrowException, OSError):
        return False  # the check of the data files names what is wrong with it
    return batch is not None and any(batch.column(0).to_pylist())
