"""A small job for the trainer alone: a real model, and an explorer that samples with transformers.

The explorer goes the real way (waits for versions, reads their files, writes groups, answers
evaluations) with a plain loop instead of vLLM.
"""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from toys import made_toy
from transformers import AutoModelForCausalLM, AutoTokenizer

from trinity_compat.buffer import HistoryChanged, open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.toy import ToySpec
from trinity_compat.synchronizer import adapters
from trinity_compat.synchronizer.versions import find_version, read_version

RESPONSE = 8
HERE = Path(__file__).parent

CPU = (HERE / "cpu.overrides").read_text().split()

TASK = (HERE / "task.overrides").read_text().split()


def toy(directory: Path) -> Path:
    return made_toy(directory, ToySpec(train_rows=256, val_rows=16, warm_steps=60, warm_batch=64))


def verl_config(toy_dir: Path, job_dir: Path, *overrides: str) -> dict:
    paths = [
        f"data.train_files={toy_dir}/data/train.parquet",
        f"data.val_files={toy_dir}/data/val.parquet",
        f"actor_rollout_ref.model.path={toy_dir}/model",
        f"critic.model.path={toy_dir}/model",
        f"trainer.default_local_dir={job_dir}",
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*CPU, *TASK, *paths, *overrides])
    return OmegaConf.to_container(config, resolve=True)


def job(
    toy_dir: Path, job_dir: Path, *overrides: str, sync: SyncSpec | None = None, trainer: str = "v0"
) -> RunSpec:
    """Write ``config/run.json`` below ``job_dir`` and return it."""
    sync = sync or SyncSpec(timeout_s=900, directory=str(job_dir / "sync"))
    (job_dir / "config").mkdir(parents=True, exist_ok=True)
    verl = verl_config(toy_dir, job_dir, *overrides)
    spec = RunSpec(
        job_dir=str(job_dir),
        database_url=f"sqlite:///{job_dir}/experiences.db",
        verl=verl,
        updates_per_step=2,
        total_steps=verl["trainer"]["total_training_steps"],
        sync=sync,
        trainer=trainer,
    )
    spec.save(job_dir / "config" / "run.json")
    return spec


class PlainExplorer(threading.Thread):
    """Explorer number 0 in a thread. ``die_after`` steps it falls silent, as if killed."""

    def __init__(self, spec: RunSpec, *, die_after: int | None = None) -> None:
        super().__init__(daemon=True)
        self.spec, self.die_after = spec, die_after
        self.buffer = open_buffer(spec.database_url)
        self.name_ = f"{socket.gethostname()}-{os.getpid()}"
        self.stop, self.error = threading.Event(), None
        rollout, data = spec.verl["actor_rollout_ref"]["rollout"], spec.verl["data"]
        self.n, self.batch = rollout["n"], data["train_batch_size"]
        path = spec.verl["actor_rollout_ref"]["model"]["path"]
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.base = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.train, self.val = (_rows(data[f"{split}_files"]) for split in ("train", "val"))
        self.version = -1

    def run(self) -> None:
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        try:
            self._loop()
        except BaseException as error:
            self.error = error
        self.stop.set()

    def _beat(self) -> None:
        while not self.stop.wait(0.5):
            self.buffer.beat("explorer", self.name_, state="running")

    def _check(self, history: int) -> None:
        self._answer_eval()
        if self.stop.is_set():
            raise SystemExit
        if self.buffer.history() != history:
            raise HistoryChanged("a resume: other tasks may be missing now")

    def _loop(self) -> None:
        while not self.stop.is_set():
            history = self.buffer.history()
            missing = self.buffer.missing_tasks(upto=len(self.train), limit=self.batch)
            step = missing[0] // self.batch + 1
            if self.die_after is not None and step > self.die_after:
                return
            with contextlib.suppress(HistoryChanged):
                while (version := find_version(self.buffer, self.spec.sync, step)) is None:
                    self._check(history)
                    time.sleep(0.02)
                self._load(version)
                rng = torch.Generator().manual_seed(1000 + step)
                made = [self._group(n, self.train[n], step, rng, key=f"{history}-{n}") for n in missing]
                self.buffer.put_groups(made, history=history)

    def _answer_eval(self) -> None:
        request = self.buffer.glance().evaluation
        if request is None:
            return
        version = self.buffer.get_version(request.version)
        if version is None:
            return
        self._load(version)
        rng = torch.Generator().manual_seed(7)
        kind = f"eval:{request.request_id}"
        self.buffer.put_groups(
            [
                self._group(n, row, request.step, rng, key=f"{kind}-{n}", kind=kind, n=1)
                for n, row in enumerate(self.val)
            ]
        )
        self.buffer.finish_eval(request)
        self.version = -1

    def _load(self, version) -> None:
        if version.version != self.version:
            tensors = dict(read_version(version))
            if adapters.CONFIG in tensors:
                tensors = with_adapter(self.base, *adapters.taken_apart(tensors.items()))
            self.model.load_state_dict(tensors, strict=False)
            self.version = version.version

    def _group(self, number, row, step, rng, *, key, kind="train", n=None) -> Group:
        prompt = self.tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False
        )
        answers = [self._sample(prompt, rng) for _ in range(n or self.n)]
        truth = row["reward_model"]["ground_truth"]
        return Group(
            key=key,
            task_no=number,
            task={**row, "raw_prompt": row["prompt"], "index": number},
            explorer_step=step,
            kind=kind,
            experiences=tuple(self._experience(i, prompt, *a, truth) for i, a in enumerate(answers)),
        )

    def _experience(self, run, prompt, ids, logprobs, truth) -> Experience:
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        score = sum(a == b for a, b in zip(text, truth, strict=False)) / len(truth)
        return Experience(
            run=run,
            prompt_ids=np.array(prompt, np.int32),
            response_ids=np.array(ids, np.int32),
            response_mask=np.ones(len(ids), np.uint8),
            logprobs=np.array(logprobs, np.float32),
            reward=score,
            min_model_version=self.version,
            max_model_version=self.version,
            response_text=text,
            metrics={"generate_sequences": 0.01},
            info={"acc": score},
        )

    @torch.no_grad()
    def _sample(self, prompt, rng):
        ids, logprobs = list(prompt), []
        past, feed = None, torch.tensor([ids])
        while len(logprobs) < RESPONSE:
            out = self.model(feed, past_key_values=past, use_cache=True)
            past, scores = out.past_key_values, out.logits[0, -1].log_softmax(-1)
            # The vocabulary's unused rows are never sampled, but keep their share of the probability.
            token = int(torch.multinomial(scores[: len(self.tokenizer)].exp(), 1, generator=rng))
            ids.append(token)
            logprobs.append(float(scores[token]))
            feed = torch.tensor([[token]])
            if token == self.tokenizer.eos_token_id:
                break
        return ids[len(prompt) :], logprobs


def with_adapter(base, tensors, peft) -> dict[str, torch.Tensor]:
    """The base's weights with B A · α / r added where PEFT's names say."""
    merged = dict(base)
    for name, low in tensors.items():
        module, _, part = name.removeprefix("base_model.model.").partition(".lora_")
        if part == "A.weight":
            high = tensors[name.replace("lora_A", "lora_B")]
            merged[f"{module}.weight"] = (
                base[f"{module}.weight"] + high @ low * peft["lora_alpha"] / peft["r"]
            )
    return merged


def _rows(files) -> list[dict]:
    import pyarrow.parquet as pq

    return pq.read_table(files).to_pylist()
