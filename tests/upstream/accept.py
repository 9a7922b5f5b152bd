"""Runs inside the real trinity-rft: which of the given configurations does it take, and how far?

    <venv of trinity-rft>/bin/python tests/upstream/accept.py < rows.jsonl > verdicts.jsonl

A row is {"name": …, "yaml": text}. A verdict is {"name", "stage", "error"}: the first stage that refused
the configuration, or null for both when every stage passed. For 0.6.0 the stages are those that a real
start goes through before a GPU is needed; what of them 0.4.1 doesn't have is left out there.
"""

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

gc.disable()  # trinity_compat/common/gc_pause.py says why; some hundred configurations need little memory
VERDICTS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.environ["HF_HUB_OFFLINE"] = "1"  # it looks for the model's tokenizer, and waits long for a hub
os.dup2(2, 1)  # trinity logs to stdout, through a handler that it makes on import

import trinity  # noqa: E402
from omegaconf import OmegaConf, open_dict  # noqa: E402
from trinity.common.config import Config, load_config  # noqa: E402

TINY_MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


def schema(path, _state, _scratch):
    OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path))


def check_and_update(path, state, scratch):
    config = load_config(str(path))
    config.checkpoint_root_dir = str(scratch / "checkpoints")  # it makes directories there
    if config.model.lora_configs:  # it builds a dummy adapter from the model's config.json
        config.model.model_path = str(scratch / "model")
    state["config"] = config.check_and_update()


def gpus_per_sequence(trainer):
    """GPUs that form one data-parallel rank: the workers' dispatch mesh counts them as one."""
    if trainer.trainer_strategy != "megatron":
        return trainer.ulysses_sequence_parallel_size
    sizes = trainer.megatron
    return sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size


def batch(_path, state, _scratch):
    """As trinity's VERLTrainer balances a batch: equal shares of it for the data-parallel ranks."""
    config = state["config"]
    if config.mode not in ("both", "colocate"):
        return
    gpus, each = config.cluster.trainer_gpu_num, gpus_per_sequence(config.trainer)
    ranks = gpus // each
    assert ranks >= 1, f"{gpus} trainer GPUs are fewer than the {each} that share a sequence"
    assert gpus % each == 0, f"{gpus} trainer GPUs hold no whole groups of {each}"
    size = config.buffer.train_batch_size
    assert size % ranks == 0, f"train_batch_size {size} cannot be split over {ranks} data-parallel ranks"


def build_verl_config(_path, state, _scratch):
    from trinity.trainer.verl.config import build_verl_config

    state["verl"] = build_verl_config(state["config"])


def actor(_path, state, _scratch):
    from verl.utils.config import omega_conf_to_dataclass

    omega_conf_to_dataclass(state["verl"].actor)


def ref(_path, state, _scratch):
    """As verl 0.8's ActorRolloutRefWorker.init_model renames and builds it."""
    from verl.utils.config import omega_conf_to_dataclass

    section = state["verl"].ref
    with open_dict(section):
        section.ppo_mini_batch_size = state["verl"].actor.ppo_mini_batch_size
        section.ppo_micro_batch_size = section.pop("log_prob_micro_batch_size", None)
        section.ppo_micro_batch_size_per_gpu = section.pop("log_prob_micro_batch_size_per_gpu", None)
        section.use_dynamic_bsz = section.pop("log_prob_use_dynamic_bsz", False)
        section.ppo_max_token_len_per_gpu = section.pop("log_prob_max_token_len_per_gpu", None)
    omega_conf_to_dataclass(section)


def worker(_path, state, _scratch):
    """The assertions of verl 0.8's ActorRolloutRefWorker.init_model."""
    actor, rollout = state["verl"].actor, state["verl"].rollout
    assert actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz
    kind = "max_token_len_per_gpu" if actor.use_dynamic_bsz else "micro_batch_size_per_gpu"
    assert rollout[f"log_prob_{kind}"] is not None, f"rollout.log_prob_{kind} is not set"
    assert actor[f"ppo_{kind}"] is not None, f"actor.ppo_{kind} is not set"


def critic(_path, state, _scratch):
    """As trinity's VERLTrainer makes it: only for an algorithm that has a critic."""
    from verl.utils.config import omega_conf_to_dataclass

    if state["verl"].critic.enable:
        omega_conf_to_dataclass(state["verl"].critic)


STAGES = [schema, check_and_update]
if trinity.__version__ != "0.4.1":
    STAGES += [build_verl_config, actor, ref, worker, critic, batch]


def judge(name, text, scratch):
    path = scratch / "x.yaml"
    path.write_text(text, encoding="utf-8")
    state = {}
    for stage in STAGES:
        try:
            stage(path, state, scratch)
        except Exception as error:
            return {"name": name, "stage": stage.__name__, "error": f"{type(error).__name__}: {error}"[:800]}
    return {"name": name, "stage": None, "error": None}


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "model").mkdir()
        (scratch / "model" / "config.json").write_text(json.dumps(TINY_MODEL))
        for row in map(json.loads, sys.stdin):
            print(json.dumps(judge(row["name"], row["yaml"], scratch)), file=VERDICTS, flush=True)


if __name__ == "__main__":
    main()
