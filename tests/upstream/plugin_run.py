"""Runs inside the real trinity-rft: what the plugin does with a taskset, a fake model in place of vLLM.

    <venv>/bin/python tests/upstream/plugin_run.py PLUGIN_DIR < cases.jsonl > results.jsonl

A case is {"rows": […], "answers": […], "taskset": {fields of StorageConfig}}; the model gives each task
those answers. The result is what the reader yielded, what the model was asked, and what came back. Each case
has a process of its own, forked from this one: importing all of it takes ten seconds, a case a tenth of one.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
os.environ["TRINITY_PLUGIN_DIRS"] = sys.argv[1]

import datasets  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from trinity.buffer.reader.file_reader import FileReader  # noqa: E402
from trinity.buffer.schema import formatter  # noqa: E402, F401  a case needs it
from trinity.common.config import FormatConfig, GenerationConfig, StorageConfig  # noqa: E402
from trinity.common.experience import Experience  # noqa: E402
from trinity.utils.plugin_loader import load_plugins  # noqa: E402
from verl.utils.dataset import rl_dataset  # noqa: E402, F401  a case needs it
from verl.workers import reward_manager  # noqa: E402, F401  a case needs it

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"


def make_tokenizer(folder):
    """A tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(["<pad>", "<eos>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


class FakeModel:
    def __init__(self, path, tokenizer, answers):
        self.model_path, self._tokenizer, self._answers = str(path), tokenizer, answers
        self.asked = []

    async def chat_async(self, messages, **arguments):
        self.asked.append({"messages": messages, "arguments": arguments})
        prompt = self._tokenizer.encode("".join(m["content"] for m in messages))
        return [self._experience(prompt, answer) for answer in self._answers[: arguments["n"]]]

    def _experience(self, prompt, answer):
        ids = self._tokenizer.encode(answer)
        return Experience(
            tokens=torch.tensor(prompt + ids, dtype=torch.int32),
            prompt_length=len(prompt),
            logprobs=torch.zeros(len(ids)),
            response_text=answer,
        )


def storage(fields, folder, files):
    fields = {**fields, "format": FormatConfig(**fields.get("format", {}))}
    fields["rollout_args"] = GenerationConfig(**fields.get("rollout_args", {}))
    arguments = dict(fields.get("workflow_args", {}))
    if arguments.get("filter_overlong_prompts"):
        arguments["tokenizer"] = str(folder / "model")
    if len(files) > 1:
        arguments["files"] = files
    names = {"name": "t", "batch_size": 1, "default_workflow_type": "verl_workflow"}
    return StorageConfig(**{**names, "path": files[0], **fields, "workflow_args": arguments})


async def read_all(reader):
    tasks = []
    while True:
        try:
            read = reader.read()
            tasks += await read if asyncio.iscoroutine(read) else read
        except (StopAsyncIteration, StopIteration):
            return tasks


def run(case, folder):
    tokenizer = make_tokenizer(folder / "model")
    files = []
    for number, rows in enumerate(case["rows"]):
        files.append(str(folder / f"part{number}_train.parquet"))
        datasets.Dataset.from_list(rows).to_parquet(files[-1])
    config = storage(dict(case["taskset"]), folder, files)
    tasks = asyncio.run(read_all(FileReader(config)))
    model = FakeModel(folder / "model", tokenizer, case["answers"])
    groups = []
    for task in tasks:
        workflow = task.to_workflow(model)
        workflow.set_repeat_times(len(case["answers"]), 10)
        done = asyncio.run(workflow.run_async())
        groups.append([{"reward": e.reward, "metrics": e.metrics, "run": e.eid.run} for e in done])
    return {"tasks": [task.raw_task for task in tasks], "asked": model.asked, "groups": groups}


def answer(case):
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(case, Path(folder))
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result, default=str), file=RESULT, flush=True)


def main():
    load_plugins()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answer(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the case's process ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
