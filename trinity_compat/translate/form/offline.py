"""The Trinity YAML of a form for SFT or DPO, which has no launch of veRL's main_ppo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trinity_compat.translate.form.expert import made_of_fields
from trinity_compat.translate.form.fields import FIELDS
from trinity_compat.translate.form.result import FormRemark, FormResult
from trinity_compat.translate.form.values import FormValues, as_yaml

_DATA = "buffer.trainer_input.experience_buffer"
_PAIRS = ("prompt_key", "chosen_key", "rejected_key")
_KEYS: Mapping[str, Mapping[int, tuple[str, ...]]] = {  # algorithm → its fields for so many columns
    "sft": {1: ("messages_key",), 2: ("prompt_key", "response_key")},
    "dpo": {3: _PAIRS},
}
_DEFAULT = {"sft": "messages", "dpo": "prompt,chosen,rejected"}


def made_by_hand(values: FormValues) -> FormResult:
    """Return the YAML of a form for SFT or DPO, without a script."""
    algorithm, files = values["algorithm"], values.files("train_files")
    columns = [name.strip() for name in (values["columns"] or _DEFAULT[algorithm]).split(",")]
    keys = _KEYS[algorithm].get(len(columns))
    if keys is None or not all(columns):
        hint = "write " + (
            "the column of messages, or PROMPT,ANSWER" if algorithm == "sft" else _DEFAULT["dpo"]
        )
        return _refused("columns", f"{values['columns']!r} are not the columns of {algorithm.upper()}", hint)
    if len(files) > 1:
        return _refused("train_files", f"{len(files)} files", "write one, or the folder of all")
    texts = {
        **_texts(values, files[0]),
        **{f"{_DATA}.format.{key}": name for key, name in zip(keys, columns, strict=True)},
    }
    texts[f"{_DATA}.format.prompt_type"] = "messages" if len(columns) == 1 else "plaintext"
    made = made_of_fields({path: as_yaml(text) for path, text in texts.items()})
    # A field of the YAML is not one of this form's; its path stands in the message.
    remarks = [each if each.name in FIELDS else _named(each) for each in made.remarks]
    return replace(made, remarks=tuple(remarks))


def _refused(name: str, message: str, hint: str) -> FormResult:
    return FormResult(remarks=(FormRemark("error", message, hint, name),))


def _named(remark: FormRemark) -> FormRemark:
    text = f"{remark.name}: {remark.message}" if remark.name else remark.message
    return replace(remark, name="", message=text)


def _texts(values: FormValues, path: str) -> Mapping[str, str]:
    """Return the fields of the YAML, path → text; '' for a default."""
    gpus, node, tokens = values.whole("gpus"), min(values.whole("gpus"), 8), values["tokens_per_gpu"]
    whole = values.whole("prompt_length") + values.whole("answer_length")
    logger = {"none": ""}.get(values["logger"], values["logger"])
    texts = {
        "mode": "train",
        "project": values["project"],
        "name": values["name"],
        "algorithm.algorithm_type": values["algorithm"],
        "algorithm.optimizer.lr": values["learning_rate"],
        "model.model_path": values["model"],
        "model.max_model_len": str(whole),
        "cluster.node_num": str(gpus // node),
        "cluster.gpu_per_node": str(node),
        "buffer.train_batch_size": values["batch_size"],
        "buffer.total_epochs": values["epochs"],
        f"{_DATA}.name": "train",
        f"{_DATA}.storage_type": "file",
        f"{_DATA}.path": path,
        f"{_DATA}.data_selector.selector_type": "shuffle",
        "synchronizer.sync_method": "checkpoint",
        "monitor.monitor_type": logger,
        "trainer.save_interval": values["save_every"] if values.whole("save_every") else "",
        "trainer.use_dynamic_bsz": "true" if tokens else "false",
        "trainer.max_token_len_per_gpu": tokens,
    }
    if not tokens:
        micro = values["micro_batch"]
        actor = f"actor: {{ppo_micro_batch_size_per_gpu: {micro}}}"
        rollout = f"rollout: {{log_prob_micro_batch_size_per_gpu: {micro}}}"
        texts["trainer.trainer_config"] = f"actor_rollout_ref: {{{actor}, {rollout}}}"
    if values["algorithm"] == "dpo":
        # A KL term keeps the reference model, with which DPO compares.
        texts |= {"algorithm.kl_loss_fn": "k2", "algorithm.kl_loss_fn_args.kl_coef": values["kl_coef"]}
    return texts
