"""Speed of the real trinity-rft's SQL storage; runs in its own environment, started by buffer_throughput.

    .venv-upstream-0.6.0/bin/python benchmarks/upstream/sql_storage.py FOLDER EXPERIENCES BATCH

Prints one JSON object: experiences per second written and read, in the process and through a Ray actor.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import ray
import torch
from trinity.buffer.storage.sql import SQLExperienceStorage
from trinity.common.config import StorageConfig
from trinity.common.experience import EID, Experience

PROMPT, RESPONSE, GROUP = 128, 1024, 8


def experience(number: int) -> Experience:
    return Experience(
        eid=EID(batch=1, task=number // GROUP, run=number % GROUP),
        tokens=torch.randint(0, 150_000, (PROMPT + RESPONSE,), dtype=torch.int32),
        logprobs=-torch.rand(RESPONSE),
        prompt_length=PROMPT,
        reward=1.0,
        prompt_text="p" * 400,
        response_text="word " * 800,
        info={"model_version": 0},
        metrics={"acc": 1.0},
    )


def config(path: Path) -> StorageConfig:
    return StorageConfig(name="bench", path=f"sqlite:///{path}", storage_type="sql", schema_type="experience")


async def direct(path: Path, batches: list[list[Experience]]) -> tuple[float, float]:
    storage = SQLExperienceStorage(config(path))
    await storage.prepare()
    start = time.perf_counter()
    for batch in batches:
        await storage.write(batch)
    written = time.perf_counter()
    for batch in batches:
        assert len(await storage.read(len(batch))) == len(batch)
    return written - start, time.perf_counter() - written


def through_ray(path: Path, batches: list[list[Experience]]) -> tuple[float, float]:
    storage = ray.remote(SQLExperienceStorage).remote(config(path))
    ray.get(storage.prepare.remote())
    start = time.perf_counter()
    for batch in batches:
        ray.get(storage.write.remote(batch))
    written = time.perf_counter()
    for batch in batches:
        assert len(ray.get(storage.read.remote(len(batch)))) == len(batch)
    return written - start, time.perf_counter() - written


def main() -> None:
    folder, count, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    batches = [[experience(first + i) for i in range(size)] for first in range(0, count, size)]
    found = {"direct": asyncio.run(direct(folder / "direct.db", batches))}
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, _temp_dir=str(folder / "r"), log_to_driver=False
    )
    found["ray"] = through_ray(folder / "ray.db", batches)
    ray.shutdown()
    total = sum(map(len, batches))
    print(json.dumps({name: [total / write, total / read] for name, (write, read) in found.items()}))


if __name__ == "__main__":
    main()
