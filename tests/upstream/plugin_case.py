"""What the plugin does with a taskset, a fake model in place of vLLM: in trinity-rft, or in our stand-in.

A case is {"rows": […], "answers": […], "taskset": {fields of StorageConfig}}; the model gives each task
those answers. The result is what the reader yielded, what the model was asked, and what came back.
"""

import asyncio
import tempfile
from pathlib import Path

import datasets
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trinity.buffer.reader.file_reader import FileReader
from trinity.common.config import FormatConfig, GenerationConfig, StorageConfig
from trinity.common.experience import Experience

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
            return run(case, Path(folder))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
