"""Transport of weights by broadcast from rank 0, the trainer's, to the workers of explorers' engines.

A group is formed once and serves version after version. Layouts, checksums and confirmations go through a
TCPStore that the trainer hosts; only the weights themselves go through the process group (NCCL on GPUs, Gloo
on a CPU). It is separate from the torch.distributed groups of a process. Any failure (a rank that dies, falls
silent, holds other bytes or can't load them) ends the transfer with an error at every rank: joining and each
bucket have ``timeout_s``, all buckets together ``whole_s``.

A TCPStore has no authentication. Its values carry a MAC under the run's secret, which is sent through the
database: a value of another origin ends the transfer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

import torch
import torch.distributed as dist

from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.safetensors_io import Named, split

_CHUNK = {"cpu": 1 << 16}  # words: a chunk and its product stay in the cache
_CHUNK_ELSEWHERE = 1 << 22


def checksum(data: torch.Tensor) -> str:
    """Compute the 32 digits for uint8 [N], N a multiple of 8, on any device."""
    words = data.view(torch.int64)
    size = _CHUNK.get(data.device.type, _CHUNK_ELSEWHERE)
    odd = torch.arange(1, 2 * min(size, len(words)) + 1, 2, device=data.device)
    plain = weighted = 0
    for start in range(0, len(words), size):
        part = words[start : start + size]
        here = int(part.sum())
        plain += here
        weighted += int((part * odd[: len(part)]).sum()) + 2 * start * here
    return f"{plain % 2**64:016x}{weighted % 2**64:016x}"


_ALIGN = 16
_POLL_S = 0.0005
_MARGIN_S = 60.0  # to end a transfer that failed, for example to gather the rest of the weights
_OK, _BROKEN = "ok", "broken"
_SEAL = 64  # hex digits before each value in the store
_LOOK_S = 0.25  # between checks during a bucket whether a rank has given up
# By these NCCL chooses how ranks talk, and all ranks have to choose alike. vLLM's batch invariance sets
# them in its workers alone (model_executor/layers/batch_invariant.py). Interfaces are each machine's own.
_AGREED = (
    *(
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_LAUNCH_MODE",
    ),
    *("NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_P2P_NET_DISABLE", "NCCL_CUMEM_ENABLE"),
)
# torch reads it when it makes a group: what the watchdog does about an error. By default it ends the process,
# here the trainer's; 0 leaves the error to whoever waits.
_ON_ERROR = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_LEAST_ROOM = 16 << 20  # bytes: the smallest bucket, even with less memory left


_Row = tuple[str, str, list[int], int]  # name, dtype, shape, offset in the bucket


class _Header(TypedDict):
    """Header of a bucket in the store."""

    layout: list[_Row]
    nbytes: int
    checksum: str


class TransferFailed(RuntimeError):
    """A rank was lost or too late. The group is unusable; another one may form."""


class LoadFailed(Exception):
    """A rank cannot load the weights; another transfer would fail in the same way."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One transfer of ``version``.

    ``group`` identifies the process group; "": none (``on_devices``). ``address`` and ``port`` are the
    store's, ``secret`` the run's.
    Plain data: it is sent through the database and RPC as a dict.
    """

    transfer: str
    group: str
    address: str
    port: int
    world_size: int
    version: int
    timeout_s: float  # for joining, for each bucket, for the confirmations
    whole_s: float = 3600.0  # from the joining's end
    secret: str = field(default="", repr=False)

    @property
    def on_devices(self) -> bool:
        """True if no group forms: each rank sends to the engine's worker on its own device."""
        return not self.group

    @property
    def over_s(self) -> float:
        """Seconds after which every rank has left this transfer, unless it hangs past every limit."""
        return self.timeout_s + self.whole_s + _MARGIN_S


class _Limits:
    """Deadlines of the parts of one transfer."""

    def __init__(self, meeting: Rendezvous) -> None:
        self._each, self._end = meeting.timeout_s, time.monotonic() + meeting.whole_s

    def next(self) -> float:
        """Return the deadline of the part that begins now, on the monotonic clock."""
        return min(self._end, time.monotonic() + self._each)


class WeightGroup:
    """One rank of a group. Not thread-safe. The constructor waits for all ranks."""

    def __init__(self, meeting: Rendezvous, rank: int, device: torch.device) -> None:
        self.name, self.rank, self._device = meeting.group, rank, device
        self._world, self._secret, self._transfer = meeting.world_size, meeting.secret.encode(), ""
        limit = timedelta(seconds=meeting.timeout_s)
        with _failing(f"rank {rank} could not join"):
            store = dist.TCPStore(
                meeting.address, meeting.port, is_master=False, wait_for_workers=False, timeout=limit
            )
            self._store = dist.PrefixStore(meeting.group, store)
            with _environment(self._settings(time.monotonic() + meeting.timeout_s)):
                self._group = _process_group(self._store, rank, self._world, limit, device)
                self._greet(time.monotonic() + meeting.timeout_s)

    def send(self, meeting: Rendezvous, tensors: Iterable[Named], bucket_bytes: int) -> WeightFile:
        """Broadcast ``tensors`` (on any device), and wait until every rank has confirmed them.

        Buckets have ``bucket_bytes``, or less where a device has less room; a larger tensor is one bucket.
        Returns digest and size; ``path`` is empty. Raises TransferFailed, WeightsDamaged, LoadFailed.
        """
        limits, headers = _Limits(meeting), list[str]()
        self._transfer = meeting.transfer
        try:
            bucket_bytes = min(bucket_bytes, self._room(limits.next()))
            for layout, bucket in _buckets(tensors, bucket_bytes, self._device):
                row = _Header(layout=layout, nbytes=bucket.numel(), checksum=checksum(bucket))
                headers.append(json.dumps(row))
                self._put(f"{meeting.transfer}/{len(headers) - 1}", headers[-1])
                self._broadcast(bucket, limits.next())
            self._put(f"{meeting.transfer}/{len(headers)}", "")
            until = limits.next()
            words = [self._word(f"rank/{rank}", until) for rank in range(1, self._world)]
            if wrong := [word for word in words if word != _OK]:
                raise WeightsDamaged(f"version {meeting.version} did not arrive whole: {wrong[0]}")
        except Exception:
            with contextlib.suppress(TransferFailed):  # end the others' wait for the next bucket
                self._put(f"{meeting.transfer}/{len(headers)}", _BROKEN)
            raise
        self._delete_keys(meeting, len(headers))
        return WeightFile("", _digest(headers), sum(json.loads(header)["nbytes"] for header in headers))

    def receive(self, meeting: Rendezvous, load: Callable[[list[Named]], object]) -> WeightFile:
        """Pass each bucket's checked tensors to ``load``; they are valid until it returns.

        Returns digest and size. Raises TransferFailed, WeightsDamaged, LoadFailed (for an error of ``load``,
        once the others are informed): the weights are then a mixture and must not be used.
        """
        self._transfer = meeting.transfer
        try:
            self._put(f"{meeting.transfer}/room/{self.rank}", str(room_on(self._device)))
            headers = self._receive(meeting, load)
        except (TransferFailed, WeightsDamaged):
            raise
        except Exception as error:
            raise LoadFailed(self.give_up(meeting, error)) from error
        return WeightFile("", _digest(headers), sum(json.loads(header)["nbytes"] for header in headers))

    def _receive(self, meeting: Rendezvous, load: Callable[[list[Named]], object]) -> list[str]:
        limits, headers = _Limits(meeting), list[str]()
        damage: WeightsDamaged | None = None
        while header := self._get(f"{meeting.transfer}/{len(headers)}", limits.next()):
            if header == _BROKEN:
                raise TransferFailed("the trainer gave this transfer up")
            headers.append(header)
            try:
                load(self._bucket(json.loads(header), limits.next()))
            except WeightsDamaged as error:
                damage = error  # the others need this rank until the last bucket
        self._put(f"{meeting.transfer}/rank/{self.rank}", str(damage or _OK))
        if damage:
            raise damage
        return headers

    def _settings(self, until: float) -> Mapping[str, str]:
        """Return rank 0's values of ``_AGREED``, for all ranks."""
        if self.rank == 0:
            own = {name: os.environ[name] for name in _AGREED if name in os.environ}
            self._put("settings", json.dumps(own))
            return own
        found: Mapping[str, str] = json.loads(self._get("settings", until))
        return found

    def _room(self, until: float) -> int:
        """Return the bytes that every rank has room for.

        A receiver loads a bucket beside it. Rank 0 holds the tensors that it packs, and the bucket before.
        """
        rooms = (self._word(f"room/{rank}", until) for rank in range(1, self._world))
        return max(_LEAST_ROOM, min(room_on(self._device) // 2, *map(int, rooms)))

    def give_up(self, meeting: Rendezvous, error: Exception) -> str:
        """Report to the others why this rank can't load the weights; return the reason."""
        why = f"rank {self.rank}: {reason_of(error)}"
        with contextlib.suppress(TransferFailed):
            self._put(f"{meeting.transfer}/{_BROKEN}", why)
        return why

    def close(self) -> None:
        """Leave the group. Ranks that wait for this one get an error."""
        abort = getattr(self._group, "abort", None)
        if abort is not None and self._device.type == "cuda":
            abort()
        del self._group, self._store

    def _greet(self, until: float) -> None:
        """Broadcast one byte.

        NCCL forms its communicator inside the first broadcast, and while a rank is missing that call blocks:
        it runs in a thread, which is then abandoned.
        """

        def first() -> None:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            self._broadcast(torch.zeros(1, dtype=torch.uint8, device=self._device), until)

        _in_time(first, until)

    def _bucket(self, header: _Header, until: float) -> list[Named]:
        bucket = torch.empty(header["nbytes"], dtype=torch.uint8, device=self._device)
        self._broadcast(bucket, until)
        if checksum(bucket) != header["checksum"]:
            raise WeightsDamaged(f"rank {self.rank} got other bytes than rank 0 sent")
        return list(_views(bucket, header["layout"]))

    def _broadcast(self, bucket: torch.Tensor, until: float) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        with _failing(f"rank {self.rank} lost the others"):
            work, checked = self._group.broadcast([bucket], options), time.monotonic()
            while not work.is_completed():
                now = time.monotonic()
                if now > until:
                    raise TimeoutError("the others did not take part in time")
                if now - checked > _LOOK_S:
                    self._raise_if_given_up()
                    checked = now
                time.sleep(_POLL_S)
            work.wait()

    def _raise_if_given_up(self) -> None:
        """Raise LoadFailed at rank 0, TransferFailed elsewhere, when a rank has given up."""
        key = f"{self._transfer}/{_BROKEN}"
        if self._transfer and self._store.check([key]):
            why = self._get(key, time.monotonic() + 1)
            raise LoadFailed(why) if self.rank == 0 else TransferFailed(why)

    def _word(self, key: str, until: float) -> str:
        """Wait for a value of a rank, unless some rank reports that it can't continue."""
        while True:
            try:
                return self._get(f"{self._transfer}/{key}", min(until, time.monotonic() + _LOOK_S))
            except TransferFailed:
                self._raise_if_given_up()
                if time.monotonic() > until:
                    raise

    def _delete_keys(self, meeting: Rendezvous, buckets: int) -> None:
        ranks = [f"{what}/{rank}" for what in ("rank", "room") for rank in range(1, self._world)]
        keys = [*map(str, range(buckets)), *ranks]
        for key in keys:  # the last header stays: a rank may read it after it confirmed
            self._store.delete_key(f"{meeting.transfer}/{key}")

    def _put(self, key: str, value: str) -> None:
        with _failing(f"rank {self.rank} lost the store"):
            self._store.set(key, self._seal(key, value) + value)

    def _get(self, key: str, until: float) -> str:
        with _failing(f"rank {self.rank} did not receive {key}"):
            self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
            text = str(self._store.get(key).decode())
            seal, value = text[:_SEAL], text[_SEAL:]
            if not hmac.compare_digest(seal, self._seal(key, value)):
                raise ValueError("its value was not written by this run")
            return value

    def _seal(self, key: str, value: str) -> str:
        return hmac.new(self._secret, f"{key}\0{value}".encode(), hashlib.sha256).hexdigest()


class _failing:
    """Converts torch's errors for a lost or late rank to TransferFailed."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | TimeoutError | OSError | ValueError):
            raise TransferFailed(f"{self._what}: {str(error).splitlines()[0][:200]}") from error


def _in_time(call: Callable[[], None], until: float) -> None:
    """Run ``call`` in a daemon thread. Raises what it raises, TimeoutError after ``until``."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="greeting", daemon=True).start()
    try:
        done.result(max(0.0, until - time.monotonic()))
    except TimeoutError:
        raise TimeoutError("the others did not come in time") from None


@contextlib.contextmanager
def _environment(agreed: Mapping[str, str]) -> Iterator[None]:
    """Have the agreed settings, and no others of them, while a group forms."""
    before = {name: os.environ.pop(name, None) for name in (*_AGREED, _ON_ERROR)}
    os.environ.update({**agreed, _ON_ERROR: "0"})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _process_group(
    store: dist.Store, rank: int, world: int, limit: timedelta, device: torch.device
) -> dist.ProcessGroup:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        # Later than our limit: NCCL's watchdog ends the process, ours only the transfer.
        options._timeout = limit + timedelta(seconds=_MARGIN_S)
        return dist.ProcessGroupNCCL(store, rank, world, options)
    return dist.ProcessGroupGloo(store, rank, world, limit)


def _buckets(
    tensors: Iterable[Named], limit: int, device: torch.device
) -> Iterator[tuple[list[_Row], torch.Tensor]]:
    """Yield (layout, bytes) of as many tensors as fit ``limit``; layout rows: name, dtype, shape, offset."""
    for named in split(tensors, limit, _padded):
        yield _pack(named, sum(_padded(tensor) for _, tensor in named), device)


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN


def _pack(tensors: list[Named], size: int, device: torch.device) -> tuple[list[_Row], torch.Tensor]:
    bucket = torch.zeros(size, dtype=torch.uint8, device=device)
    layout: list[_Row] = []
    offset = 0
    for name, tensor in tensors:
        layout.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset))
        ((_, place),) = _views(bucket, layout[-1:])
        place.copy_(tensor)
        offset += _padded(tensor)
    return layout, bucket


def _views(bucket: torch.Tensor, layout: Iterable[_Row]) -> Iterator[Named]:
    for name, kind, shape, offset in layout:
        dtype: torch.dtype = getattr(torch, kind)
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        yield name, bucket[offset : offset + nbytes].view(dtype).view(shape)


def room_on(device: torch.device) -> int:
    """Return half of the free memory, for a bucket and its loading."""
    if device.type != "cuda":
        return 1 << 62
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + cached) // 2


def reason_of(error: Exception) -> str:
    """Return why a rank cannot go on."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"no room for the weights beside vLLM's memory ({str(error).splitlines()[0]}):"
            " lower actor_rollout_ref.rollout.gpu_memory_utilization"
        )
    return f"{type(error).__name__}: {error}"


def _digest(headers: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(headers).encode()).hexdigest()
