"""Seconds and bandwidth of one set of weights from the trainer to an engine, by every way there is.

    python benchmarks/weight_sync.py [--mib 256] [--receivers 1 2] [--rounds 5]

Synthetic float32 weights in 64 tensors; sender and receivers are processes of their own; median of the
rounds after the first. A receiver copies what it gets into tensors of its own, as an engine does. CPU
seconds are the sender's and one receiver's together: unlike the clock's, they hardly depend on what else
the machine does. Prints Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from trinity_compat.synchronizer.held_weights import digest
from trinity_compat.synchronizer.transports.files import Reader, WeightFile, prune, write_file
from trinity_compat.synchronizer.transports.nccl import Rendezvous, WeightGroup, checksum
from trinity_compat.synchronizer.transports.safetensors_io import PartWriter

BUCKET = 64 << 20
PARTS = 64


def weights(mib: int) -> dict[str, torch.Tensor]:
    each = (mib << 20) // PARTS // 4
    return {f"layer.{i}": torch.randn(each) for i in range(PARTS)}


def timed(work: Callable[[], float | None], rounds: int) -> tuple[float, float]:
    """Median seconds and CPU seconds, the first round left out; ``work`` returns a receiver's CPU seconds."""
    clock, cpu = [], []
    for _ in range(rounds + 1):
        began, used = time.monotonic(), time.process_time()
        elsewhere = work() or 0.0
        clock.append(time.monotonic() - began)
        cpu.append(time.process_time() - used + elsewhere)
    return statistics.median(clock[1:]), statistics.median(cpu[1:])


def quietly(work: Callable[[], object]) -> Callable[[], None]:
    def without_result() -> None:
        work()

    return without_result


def receiver(rank: int, mib: int, orders, answers) -> None:
    """Takes orders: a Meeting's or a WeightFile's fields; answers when the weights are in place."""
    torch.set_num_threads(1)
    own, group, reader = weights(mib), None, Reader()

    def load(named) -> None:
        for name, tensor in named:
            own[name].copy_(tensor)

    while (order := orders.get()) is not None:
        used = time.process_time()
        if "transfer" in order:
            meeting = Rendezvous(**order)
            group = group or WeightGroup(meeting, rank, torch.device("cpu"))
            group.receive(meeting, load)
        else:
            with reader.opened(WeightFile(**order)) as parts:
                for named in parts:
                    load(named)
        answers.put(time.process_time() - used)


class Sender:
    """This process, with ``count`` receivers."""

    def __init__(self, mib: int, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.given, self.count, self.version, self.group = weights(mib), count, 0, None
        self.writer = PartWriter()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.orders, self.answers = [context.Queue() for _ in range(count)], context.Queue()
        self.processes = [
            context.Process(target=receiver, args=(rank, mib, orders, self.answers), daemon=True)
            for rank, orders in enumerate(self.orders, 1)
        ]
        for process in self.processes:
            process.start()

    def order(self, what: dict) -> None:
        for orders in self.orders:
            orders.put(what)

    def wait(self) -> float:
        """Until all have it; the largest CPU time of one."""
        return max(self.answers.get(timeout=120) for _ in self.orders)

    def by_file(self, directory: str) -> float:
        """Files are written over, in memory, as in a run."""
        recycle, self.version = directory.startswith("/dev/shm"), self.version + 1
        file = write_file(directory, self.version, self.given.items(), recycle=recycle, by=self.writer)
        self.order(asdict(file))
        taken = self.wait()
        prune(directory, before=self.version, recycle=recycle)
        return taken

    def by_broadcast(self) -> float:
        self.version += 1
        meeting = Rendezvous(
            str(self.version), "g", "127.0.0.1", self.store.port, 1 + self.count, self.version, 120.0
        )
        self.order(asdict(meeting))
        self.group = self.group or WeightGroup(meeting, 0, torch.device("cpu"))
        self.group.send(meeting, self.given.items(), BUCKET)
        return self.wait()

    def close(self) -> None:
        self.order(None)
        for process in self.processes:
            process.join(10)


def rows(mib: int, counts: list[int], rounds: int):
    """(way, receivers, (seconds, CPU seconds))."""
    given, other = weights(mib), weights(mib)
    flat = torch.cat(list(given.values())).view(torch.uint8)
    yield (
        "memcpy (torch copy_)",
        "",
        timed(quietly(lambda: [other[n].copy_(t) for n, t in given.items()]), rounds),
    )
    yield "sha256 alone", "", timed(quietly(lambda: hashlib.sha256(flat.numpy()).digest()), rounds)
    yield "checksum alone", "", timed(quietly(lambda: checksum(flat)), rounds)
    yield "digest after loading", "", timed(quietly(lambda: digest(given.items(), "")), rounds)
    for count in counts:
        sender = Sender(mib, count)
        shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
        for way, place in (("memory: file in /dev/shm", shared), ("checkpoint: file on disk", None)):
            with tempfile.TemporaryDirectory(dir=place) as directory:
                yield way, count, timed(partial(sender.by_file, directory), rounds)
        yield "nccl: broadcast over Gloo, loopback", count, timed(sender.by_broadcast, rounds)
        sender.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    told = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{told.mib} MiB, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| way | receivers | seconds | GB/s to each | of memcpy | CPU, s |")
    print("|---|---:|---:|---:|---:|---:|")
    base = 0.0
    for way, count, (seconds, cpu) in rows(told.mib, told.receivers, told.rounds):
        speed = (told.mib << 20) / seconds / 1e9
        base = base or speed
        print(
            f"| {way} | {count} | {seconds:.3f} | {speed:.2f} | {speed / base:.0%} | {cpu:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
