"""Finished and running jobs made by the store's own interface, with texts that break a careless page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tokenizers import Tokenizer, models

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group, WeightVersion
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Listener

EVIL = "</script><script>window.stolen=1</script><img src=x onerror='window.stolen=1'>\"'&{{7*7}}"
SECRET = "sk-live-1234567890"
STEPS = 6
GROUPS = 4  # a step
ANSWERS = 3  # a group


def client_of(root: Path, **listener) -> TestClient:
    """Asks a studio over ``root`` as a browser on its own machine does that has opened its address."""
    client = stranger_of(root, **listener)
    assert client.get(client.app.state.studio.listener.address).status_code == 303
    return client


def stranger_of(root: Path, baselines: Mapping[str, Path] | None = None, **listener) -> TestClient:
    """Asks it without its token."""
    app = create_app(root, Listener("127.0.0.1", 8080, **listener), baselines)
    return TestClient(app, base_url="http://127.0.0.1:8080", follow_redirects=False)


def make_job(
    root: Path,
    *,
    state: str = "done",
    steps: int = STEPS,
    evil: bool = True,
    model: Path | None = None,
    wobble: float = 0.0,
    url: str = "",
) -> Path:
    """A job of ``steps`` trained steps of 4 groups of 3 answers; both sides say ``state``. ``model``: the
    folder of its tokenizer; ``wobble``: what its figures differ by from those of another; ``url``: its
    database, where that is not in the job."""
    spec = _files(root, evil=evil, model=model, url=url)
    buffer = open_buffer(spec.database_url)
    rows = {}
    for step in range(1, steps + 1):
        buffer.put_groups([_group(step, number, evil=evil) for number in range(GROUPS)])
        claim = buffer.claim_groups(GROUPS, owner="test", step=step)
        buffer.mark_trained(claim, step=step)
        rows[step] = train_step(buffer, step, wobble=wobble)
    write_events(root / "monitor" / "tensorboard" / "trainer", rows)
    buffer.publish_version(WeightVersion(steps, "/dev/shm/x", "0" * 32, 10))
    for role in ("trainer", "explorer"):
        buffer.beat(role, role, state=state, detail={"step": steps})
    buffer.close()
    return root


def train_step(buffer, step: int, *, wobble: float = 0.0) -> dict[str, float]:
    """What both sides log at the end of ``step``; the trainer's part."""
    row = {
        "critic/score/mean": step / 10 + wobble * (step % 5),
        "actor/entropy": float("nan") if step == 3 else 1 / step,
    }
    row |= {
        "timing_s/step": 4.0,
        "timing_s/gen": 1.0,
        "timing_s/update_actor": 2.0,
        "timing_s/buffer_wait": 0.5,
    }
    row |= {
        "perf/tokens_per_second": 1000.0 + step,
        "training/model_version_lag/mean": 1.0,
        "buffer/ready": 2.0,
    }
    if step % 3 == 0:
        row["val-core/toy/acc/mean@1"] = step / 20
    buffer.log_metrics("trainer", step, row)
    explored = {"critic/score/mean": step / 9, "time/rollout": 1.0, "time/wait": 2.0, "time/step": 1.0}
    buffer.log_metrics("explorer", step, explored)
    return row


def write_events(folder: Path, rows: Mapping[int, Mapping[str, float]]) -> None:
    """A TensorBoard event file of step → metrics."""
    events = EventFileWriter(str(folder), filename_suffix=f".{len(list(folder.glob('*')))}")
    for step, row in rows.items():
        events.add_event(_event(step, row))
    events.close()


def _event(step: int, row: Mapping[str, float]) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
    return Event(step=step, wall_time=float(step), summary=Summary(value=values))


def _files(root: Path, *, evil: bool, model: Path | None, url: str = "") -> RunSpec:
    for name in ("config", "buffer", "log"):
        (root / name).mkdir(parents=True)
    url = url or JobDir(root).default_database_url
    verl = {"trainer": {"total_training_steps": STEPS}, "actor": {"optim": {"lr": 1e-6}}}
    if model is not None:
        verl["actor_rollout_ref"] = {"model": {"path": str(model)}}
    spec = RunSpec(str(root), url, verl, updates_per_step=2, total_steps=STEPS, sync=SyncSpec())
    spec.save(root / "config" / "run.json")
    record = {"script": "run.sh", "script_arguments": [], "where": "run.sh:3", "cwd": str(root.parent)}
    text = EVIL if evil else "plain"
    (root.parent / "run.sh").write_text("#!/bin/bash\n")
    (root / "config" / "launch.json").write_text(
        json.dumps(record | {"options": {"profiles": ["cpu"], "job": None}})
    )
    (root / "config" / "audit.json").write_text(
        json.dumps({"launches": [{"findings": [_finding(text), _secret(text)]}]})
    )
    (root / "config" / "trinity.yaml").write_text(f"# {text}\nexplorer:\n  api_key: {SECRET}\n")
    line = f"step:1 {text} WANDB_API_KEY={SECRET}\n"
    (root / "log" / "trainer.log").write_text(f"loading  0%\rloading 100%\n\x1b[31mred\x1b[0m\n{line}")
    (root / "log" / "explorer.log").write_text("explorer is here\n")
    return spec


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer with a word for every id that an answer has."""
    folder.mkdir()
    words = {f"word{number} ": number for number in range(200)}
    Tokenizer(models.WordLevel(words, unk_token="word0 ")).save(str(folder / "tokenizer.json"))
    return folder


def _finding(text: str) -> dict[str, object]:
    return {
        "code": "TC001",
        "status": "approximated",
        "key": "actor.optim.lr",
        "value": text,
        "source": "run.sh:7",
        "target": "algorithm.optimizer.lr",
        "target_value": text,
        "reason": text,
    }


def _secret(text: str) -> dict[str, object]:
    key = {"key": "reward.api_key", "value": SECRET, "target": "explorer.api_key", "target_value": SECRET}
    return _finding(text) | key


def large_group(answers: int, tokens: int) -> Group:
    """A group of long answers, each token's text that of its id modulo 200."""
    group = _group(1, 0, evil=False)
    ids = np.arange(tokens, dtype=np.int32) % 200
    draw = np.random.default_rng(0)
    made = (
        replace(
            group.experiences[0],
            run=run,
            response_ids=ids,
            response_mask=np.ones(tokens, np.uint8),
            logprobs=-draw.exponential(0.7, tokens).astype(np.float32),
            response_text="".join(f"word{number} " for number in ids) + f"end {run}",
        )
        for run in range(answers)
    )
    return replace(group, experiences=tuple(made))


def _group(step: int, number: int, *, evil: bool) -> Group:
    task_no = (step - 1) * GROUPS + number
    index = task_no % 8  # each task comes back after two steps
    text = f"sort {index} {EVIL if evil else ''}"
    task = {"data_source": "toy/sort", "index": index, "raw_prompt": [{"role": "user", "content": text}]}
    task["reward_model"] = {"ground_truth": str(index)}
    answers = tuple(_answer(step, number, run, text) for run in range(ANSWERS))
    return Group(f"h1/train/{task_no}", task_no, task, step, answers)


def _answer(step: int, number: int, run: int, prompt: str) -> Experience:
    tokens = 4 + run
    mask = np.ones(tokens, np.uint8)
    mask[1] = run != 2  # the third answer called a tool
    return Experience(
        run=run,
        prompt_ids=np.arange(5, dtype=np.int32),
        response_ids=np.arange(100, 100 + tokens, dtype=np.int32),
        response_mask=mask,
        logprobs=-np.arange(tokens, dtype=np.float32) / 2,
        reward=(step + run) / 10,
        min_model_version=step - 1,
        max_model_version=step - 1,
        prompt_text=f"<|im_start|>user\n{prompt}<|im_end|>\n",
        response_text=f"answer{step}x{number}x{run} is {prompt}",
        num_turns=4 if run == 2 else 2,
        metrics={"acc": run / 2},
        info={"acc": run / 2, "why": prompt},
    )
