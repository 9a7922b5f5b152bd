"""Weights by broadcast: rank 0 is the trainer's, every other rank a worker of an explorer's engine.

A group is formed once and serves version after version. Layouts, checksums and confirmations go through a
TCPStore that the trainer hosts; only the weights themselves go through the process group (NCCL on GPUs, Gloo
on a CPU). It is a group of its own, beside whatever torch.distributed groups a process is in. Whatever goes
wrong (a rank that dies, falls silent, holds other bytes or can't load them) ends the handover with an error
at every rank: joining and each bucket have ``timeout_s``, all buckets together ``whole_s``.

A TCPStore asks nobody who he is. What is written there carries a MAC under the run's secret, which travels
through the database: a word of anybody else's ends the handover.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

import torch
import torch.distributed as dist

from trinity_compat.synchronizer.checksum import checksum
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.safetensors_io import Named, split

_ALIGN = 16
_POLL_S = 0.0005
_MARGIN_S = 60.0  # for what ends a handover that failed: gathering the rest of the weights, say
_OK, _BROKEN = "ok", "broken"
_SEAL = 64  # hex digits before each word in the store
_LOOK_S = 0.25  # while a bucket is on its way, between looks whether a rank has given up
_LEAST_ROOM = 16 << 20  # bytes: a bucket is no smaller, however little the device has left


_Row = tuple[str, str, list[int], int]  # name, dtype, shape, offset in the bucket


class _Header(TypedDict):
    """Of a bucket, as it goes through the store."""

    layout: list[_Row]
    nbytes: int
    checksum: str


class HandoverFailed(RuntimeError):
    """A rank was lost or too late. The group is of no more use; another one may form."""


class LoadFailed(Exception):
    """A rank got the weights, or would have, and can't hold them. Another handover would end the same way."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """One handover of ``version``.

    ``group`` names the process group: the same name, the same group. ``address`` and ``port`` are the
    store's, ``secret`` the run's own. Plain data: it travels through the database and RPC as a dict.
    """

    handover: str
    group: str
    address: str
    port: int
    world_size: int
    version: int
    timeout_s: float  # for joining, for each bucket, for the confirmations
    whole_s: float = 3600.0  # from the joining's end
    secret: str = field(default="", repr=False)

    @property
    def over_s(self) -> float:
        """After so many seconds no rank is in this handover any more, unless it hangs past every limit."""
        return self.timeout_s + self.whole_s + _MARGIN_S


class _Limits:
    """When the parts of one handover must be done."""

    def __init__(self, meeting: Rendezvous) -> None:
        self._each, self._end = meeting.timeout_s, time.monotonic() + meeting.whole_s

    def next(self) -> float:
        """The limit of the part that begins now, on the monotonic clock."""
        return min(self._end, time.monotonic() + self._each)


class WeightGroup:
    """One rank's place in a group. Not thread-safe. Forming it waits for all ranks."""

    def __init__(self, meeting: Rendezvous, rank: int, device: torch.device) -> None:
        self.name, self.rank, self._device = meeting.group, rank, device
        self._world, self._secret, self._handover = meeting.world_size, meeting.secret.encode(), ""
        limit = timedelta(seconds=meeting.timeout_s)
        with _failing(f"rank {rank} could not join"):
            store = dist.TCPStore(
                meeting.address, meeting.port, is_master=False, wait_for_workers=False, timeout=limit
            )
            self._store = dist.PrefixStore(meeting.group, store)
            self._group = _process_group(self._store, rank, self._world, limit, device)
            self._greet(time.monotonic() + meeting.timeout_s)

    def send(self, meeting: Rendezvous, tensors: Iterable[Named], bucket_bytes: int) -> WeightFile:
        """Broadcast ``tensors`` (on any device) in buckets of ``bucket_bytes``, or of what the fullest device
        has room for; a larger tensor alone. Returns digest and size once every rank has confirmed them;
        ``path`` is empty. Raises HandoverFailed, WeightsDamaged, LoadFailed."""
        limits, headers = _Limits(meeting), list[str]()
        self._handover = meeting.handover
        try:
            bucket_bytes = min(bucket_bytes, self._room(limits.next()))
            for layout, bucket in _buckets(tensors, bucket_bytes, self._device):
                headers.append(_header(layout, bucket))
                self._put(f"{meeting.handover}/{len(headers) - 1}", headers[-1])
                self._broadcast(bucket, limits.next())
            self._put(f"{meeting.handover}/{len(headers)}", "")
            self._confirmed(meeting, limits.next())
        except Exception:
            with contextlib.suppress(HandoverFailed):  # who waits for the next bucket need not wait long
                self._put(f"{meeting.handover}/{len(headers)}", _BROKEN)
            raise
        self._forget(meeting, len(headers))
        return WeightFile("", _digest(headers), sum(json.loads(header)["nbytes"] for header in headers))

    def receive(self, meeting: Rendezvous, load: Callable[[list[Named]], object]) -> WeightFile:
        """Hand each bucket's tensors to ``load``, checked; they live until it returns.

        Returns digest and size. Raises HandoverFailed, WeightsDamaged, LoadFailed (for what ``load`` raises,
        once all others know): the weights are then a mixture and must not be used.
        """
        self._handover = meeting.handover
        try:
            self._put(f"{meeting.handover}/room/{self.rank}", str(_room_on(self._device)))
            headers = self._receive(meeting, load)
        except (HandoverFailed, WeightsDamaged):
            raise
        except Exception as error:
            raise LoadFailed(self.give_up(meeting, error)) from error
        return WeightFile("", _digest(headers), sum(json.loads(header)["nbytes"] for header in headers))

    def _receive(self, meeting: Rendezvous, load: Callable[[list[Named]], object]) -> list[str]:
        limits, headers = _Limits(meeting), list[str]()
        damage: WeightsDamaged | None = None
        while header := self._get(f"{meeting.handover}/{len(headers)}", limits.next()):
            if header == _BROKEN:
                raise HandoverFailed("the trainer gave this handover up")
            headers.append(header)
            try:
                load(self._bucket(json.loads(header), limits.next()))
            except WeightsDamaged as error:
                damage = error  # the others need this rank until the last bucket
        self._put(f"{meeting.handover}/rank/{self.rank}", str(damage or _OK))
        if damage:
            raise damage
        return headers

    def _room(self, until: float) -> int:
        """Bytes that every rank has room for, besides what a bucket's loading takes."""
        rooms = (self._word(f"room/{rank}", until) for rank in range(1, self._world))
        return max(_LEAST_ROOM, min(map(int, rooms)))

    def give_up(self, meeting: Rendezvous, error: Exception) -> str:
        """Tell the others that this rank can't hold the weights, and why; returns that."""
        why = f"rank {self.rank}: {_why(error)}"
        with contextlib.suppress(HandoverFailed):
            self._put(f"{meeting.handover}/{_BROKEN}", why)
        return why

    def close(self) -> None:
        """Leave. Ranks that wait for this one get an error."""
        abort = getattr(self._group, "abort", None)
        if abort is not None and self._device.type == "cuda":
            abort()
        del self._group, self._store

    def _greet(self, until: float) -> None:
        """Broadcast one byte.

        NCCL forms its communicator inside the first broadcast, and while a rank is missing that call returns
        to nobody: it has a thread of its own, which is left behind then.
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
            work, looked = self._group.broadcast([bucket], options), time.monotonic()
            while not work.is_completed():
                now = time.monotonic()
                if now > until:
                    raise TimeoutError("the others did not take part in time")
                if now - looked > _LOOK_S:
                    self._raise_if_given_up()
                    looked = now
                time.sleep(_POLL_S)
            work.wait()

    def _raise_if_given_up(self) -> None:
        """Raise LoadFailed at rank 0, HandoverFailed elsewhere, when a rank has said that it can't load."""
        key = f"{self._handover}/{_BROKEN}"
        if self._handover and self._store.check([key]):
            why = self._get(key, time.monotonic() + 1)
            raise LoadFailed(why) if self.rank == 0 else HandoverFailed(why)

    def _confirmed(self, meeting: Rendezvous, until: float) -> None:
        words = [self._word(f"rank/{rank}", until) for rank in range(1, self._world)]
        if wrong := [word for word in words if word != _OK]:
            raise WeightsDamaged(f"version {meeting.version} did not arrive whole: {wrong[0]}")

    def _word(self, key: str, until: float) -> str:
        """What a rank has written, unless a rank says meanwhile that it can't go on."""
        while True:
            try:
                return self._get(f"{self._handover}/{key}", min(until, time.monotonic() + _LOOK_S))
            except HandoverFailed:
                self._raise_if_given_up()
                if time.monotonic() > until:
                    raise

    def _forget(self, meeting: Rendezvous, buckets: int) -> None:
        ranks = [f"{what}/{rank}" for what in ("rank", "room") for rank in range(1, self._world)]
        keys = [*map(str, range(buckets)), *ranks]
        for key in keys:  # the last header stays: a rank may read it after it confirmed
            self._store.delete_key(f"{meeting.handover}/{key}")

    def _put(self, key: str, value: str) -> None:
        with _failing(f"rank {self.rank} lost the store"):
            self._store.set(key, self._seal(key, value) + value)

    def _get(self, key: str, until: float) -> str:
        with _failing(f"rank {self.rank} waited in vain for {key}"):
            self._store.wait([key], timedelta(seconds=max(0.001, until - time.monotonic())))
            text = str(self._store.get(key).decode())
            seal, value = text[:_SEAL], text[_SEAL:]
            if not hmac.compare_digest(seal, self._seal(key, value)):
                raise ValueError("what lies there was not written by this run")
            return value

    def _seal(self, key: str, value: str) -> str:
        return hmac.new(self._secret, f"{key}\0{value}".encode(), hashlib.sha256).hexdigest()


class _failing:
    """Turns what torch raises for a lost or late peer into HandoverFailed."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError | TimeoutError | OSError | ValueError):
            raise HandoverFailed(f"{self._what}: {str(error).splitlines()[0][:200]}") from error


def _in_time(call: Callable[[], None], until: float) -> None:
    """``call`` in a daemon thread. Raises what it raises, TimeoutError when it has not returned by then."""
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


def _process_group(
    store: dist.Store, rank: int, world: int, limit: timedelta, device: torch.device
) -> dist.ProcessGroup:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        # Later than our own limit: NCCL's watchdog ends the process, ours only the handover.
        options._timeout = limit + timedelta(seconds=_MARGIN_S)
        return dist.ProcessGroupNCCL(store, rank, world, options)
    return dist.ProcessGroupGloo(store, rank, world, limit)


def _buckets(
    tensors: Iterable[Named], limit: int, device: torch.device
) -> Iterator[tuple[list[_Row], torch.Tensor]]:
    """(layout, bytes) of as many tensors as fit ``limit``; layout rows: name, dtype, shape, offset."""
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


def _header(layout: list[_Row], bucket: torch.Tensor) -> str:
    header: _Header = {"layout": layout, "nbytes": bucket.numel(), "checksum": checksum(bucket)}
    return json.dumps(header)


def _room_on(device: torch.device) -> int:
    """Half of what is free there, for a bucket as big and its loading."""
    if device.type != "cuda":
        return 1 << 62
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + cached) // 2


def _why(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"no room for the weights beside vLLM's own memory ({str(error).splitlines()[0]}):"
            " lower actor_rollout_ref.rollout.gpu_memory_utilization"
        )
    return f"{type(error).__name__}: {error}"


def _digest(headers: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(headers).encode()).hexdigest()
