"""Measure what a trainer's step spends between its stored answers and the batch that veRL trains.

    python benchmarks/trainer_assembly.py [--prompts 128] [--answers 8] [--tokens 2000 4000] [--width 4096]
        [--steps 3] [--postgresql] [--images]

The trainer's own code on the rows of whole steps: the claim (its SQL, the decoding, the metrics of
staleness), and veRL's batch of the v0 trainer, or rows of the v1 trainer up to TransferQueue. Prints medians
of ``--steps``: seconds, seconds of CPU, and the latter as a share of the training that ``advise`` assumes for
so many tokens, which is GRPO without a reference on eight H100. ``--images`` gives each prompt a photograph
of 640 × 480 pixels, whose inputs for Qwen2.5-VL the trainer computes; it needs torchvision and qwen-vl-utils.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transfer_queue
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "buffer")]
from buffer_postgres import PostgresServer  # noqa: E402
from realistic_rows import answers  # noqa: E402

from trinity_compat.advise import cards, model_shape  # noqa: E402
from trinity_compat.advise.speeds import Passes, estimated  # noqa: E402
from trinity_compat.buffer import open_buffer  # noqa: E402
from trinity_compat.buffer.images import kept  # noqa: E402
from trinity_compat.buffer.model import Group  # noqa: E402
from trinity_compat.job.known_models import stand_in  # noqa: E402
from trinity_compat.job.run_spec import RunSpec, SyncSpec  # noqa: E402
from trinity_compat.trainer.adapter import Claimed  # noqa: E402
from trinity_compat.trainer.batch import BatchShape  # noqa: E402
from trinity_compat.trainer.exchange import BufferExchange  # noqa: E402
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat  # noqa: E402
from trinity_compat.trainer.multi_modal import MultiModal  # noqa: E402
from trinity_compat.trainer.verl_v0.adapter import StoredRollouts  # noqa: E402
from trinity_compat.trainer.verl_v1.adapter import StoredGroups  # noqa: E402

PROMPT, GPUS, MODELS = 512, 8, ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-32B")
SEEN = "what is it", (640, 480)  # a prompt and the pixels of its photograph
TASK: dict[str, Any] = {
    "data_source": "math",
    "reward_model": {"ground_truth": "4"},
    "extra_info": {"index": 1},
}


class Prompts:
    """Prompts of text alone, or with photographs where there is a ``processor``."""

    def __init__(self, folder: Path, *, images: bool) -> None:
        self.media, self._ids, self._vocabulary = MultiModal.none(), None, 150_000
        if images:
            self._see(folder)

    def _see(self, folder: Path) -> None:
        from transformers import Qwen2VLImageProcessor
        from verl.utils import hf_processor, hf_tokenizer
        from vision_toy import write_model

        write_model(folder, warm_steps=0)
        tokenizer, processor = hf_tokenizer(folder), hf_processor(folder)
        processor.image_processor = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=1280 * 28 * 28)
        self.media = MultiModal(OmegaConf.create({"data": {"custom_cls": {}}}), tokenizer, processor)
        text = processor.apply_chat_template([self._message(0)], tokenize=False, add_generation_prompt=True)
        made = processor(text=[text], images=[self._image(0)], return_tensors="np")
        self._ids, self._vocabulary = made["input_ids"][0].astype(np.int32), 60  # letters and digits

    def _image(self, number: int) -> Any:
        from PIL import Image

        coarse = np.random.default_rng(number).integers(0, 255, (30, 40, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize(SEEN[1], Image.Resampling.BICUBIC)

    def _message(self, number: int) -> dict[str, Any]:
        from PIL import Image

        file = io.BytesIO()
        self._image(number).save(file, "JPEG", quality=90)
        image = {"type": "image", "bytes": file.getvalue(), "image": Image.open(file)}
        return {"role": "user", "content": [image, {"type": "text", "text": SEEN[0]}]}

    def group(self, number: int, count: int, tokens: tuple[int, int]) -> Group:
        """Answers of lengths between ``tokens`` to prompt ``number``."""
        rng = np.random.default_rng(number)
        sizes = {"prompt": PROMPT // 2, "prompt_text": "p" * 800}
        made = [answers(rng, count=1, response=int(rng.integers(*tokens)), **sizes)[0] for _ in range(count)]
        task = {**TASK, "raw_prompt": [{"role": "user", "content": "q" * 800}]}
        if self._ids is not None:
            task["raw_prompt"] = kept([self._message(number)])
            made = [
                replace(each, prompt_ids=self._ids, response_ids=each.response_ids % self._vocabulary)
                for each in made
            ]
        return Group(
            f"{number}", number, task, 1, tuple(replace(each, run=run) for run, each in enumerate(made))
        )


@contextmanager
def timed(into: list[tuple[float, float]]) -> Iterator[None]:
    began, used = time.perf_counter(), time.process_time()
    yield
    into.append((time.perf_counter() - began, time.process_time() - used))


def measured(url: str, prompts: Prompts, asked: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds of each part, by step."""
    found = dict[str, list[tuple[float, float]]]()
    shape = BatchShape(PROMPT, asked.width, 0)
    buffer = open_buffer(url)
    spec = RunSpec("", "", {}, 1, None, SyncSpec(directory="/nowhere", timeout_s=60))
    with LeaseHeartbeat(buffer, "t") as heart:
        sizes = {"batch_size": asked.prompts, "group_size": asked.answers, "val_size": 0}
        exchange = BufferExchange(buffer, spec, heart, **sizes)
        for step in range(1, asked.steps + 2):
            first = (step - 1) * asked.prompts
            for number in range(first, first + asked.prompts):
                buffer.put_groups([prompts.group(number, asked.answers, tuple(asked.tokens))])
            with timed(found.setdefault("claim", [])):
                claimed = exchange.claim(step)
            for name, assemble in (("v0 batch", of_v0), ("v1 rows", of_v1)):
                with timed(found.setdefault(name, [])):
                    assemble(claimed, shape, prompts.media, asked)
            exchange.commit(step)
    buffer.close()
    return {name: parts[1:] for name, parts in found.items()}  # the first one imports, and fills caches


def trainer(claimed: Claimed, shape: BatchShape, media: MultiModal, asked: argparse.Namespace) -> Any:
    """A stand-in with the attributes that both rollouts read."""
    return SimpleNamespace(
        multi_modal=media,
        runs=asked.answers,
        claimed=lambda step: claimed,
        exchange=SimpleNamespace(claim=lambda step: claimed),
        global_steps=1,
        config={"algorithm": {}},
        set_rows_per_task=lambda rows: None,
        widths=lambda experiences: shape,
    )


def of_v0(*given: Any) -> None:
    rollouts = StoredRollouts.create()
    rollouts.trainer = trainer(*given)
    rollouts.generate_sequences(SimpleNamespace(meta_info={"global_steps": 1}))


def of_v1(*given: Any) -> None:
    StoredGroups(trainer(*given)).sample(1, "train", 0)


def training_s(model: str, tokens: float) -> float:
    """Seconds of one forward pass and one update with gradient checkpointing, as ``advise`` assumes them."""
    shape = model_shape.of_config(stand_in(model).config)
    passes = Passes(forward=1, backward=1, checkpointed=True)
    made = estimated(shape, cards.named("H100"), passes, context=1.0, slots=1)
    return tokens / (made.training * GPUS)


def show(name: str, found: dict[str, list[tuple[float, float]]], shares: Sequence[float]) -> None:
    middle = {
        part: [statistics.median(each) for each in zip(*rows, strict=True)] for part, rows in found.items()
    }
    for way in ("v0 batch", "v1 rows"):
        cpu = middle["claim"][1] + middle[way][1]
        parts = f"{middle['claim'][0]:.2f} + {middle[way][0]:.2f}"
        print(
            f"| {name}, {way} | {parts} | {cpu:.2f} |",
            *(f"{cpu / each:.1%} |" for each in shares),
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--prompts", type=int, default=128)
    options.add_argument("--answers", type=int, default=8)
    options.add_argument(
        "--tokens", type=int, nargs=2, default=(2000, 4000), help="shortest and longest answer"
    )
    options.add_argument("--width", type=int, default=4096, help="data.max_response_length")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--postgresql", action="store_true", help="measure PostgreSQL too")
    options.add_argument("--images", action="store_true", help="measure prompts with a photograph alone")
    asked = options.parse_args()
    torch.set_num_threads(1)  # as Ray gives them to the driver of stock veRL
    transfer_queue.kv_batch_put = lambda **rows: None
    tokens = asked.prompts * asked.answers * (sum(asked.tokens) / 2 + PROMPT / 2)
    shares = [training_s(model, tokens) for model in MODELS]
    print(
        f"| {asked.prompts} × {asked.answers} answers | claim + assembly, s | CPU, s |",
        *(f"{m} |" for m in MODELS),
    )
    print("|---|---:|---:|" + "---:|" * len(MODELS))
    print(
        "| training on 8 H100, as `advise` assumes, s | | |",
        *(f"{each:.0f} |" for each in shares),
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="tcta") as folder:
        prompts = Prompts(Path(folder) / "model", images=asked.images)
        show("SQLite", measured(f"sqlite:///{folder}/rows.db", prompts, asked), shares)
        if asked.postgresql:
            server = PostgresServer()
            show("PostgreSQL", measured(server.new_database("rows"), prompts, asked), shares)
            server.close()


if __name__ == "__main__":
    main()
