"""Weights between two processes on one device, by veRL's own bucketed transfer (verl 0.9.1).

veRL's sockets wait without end for a peer that is missing, dead or unable to load. Here each wait has a
limit, the peer is met before memory is taken for the bucket, a failed load is answered, and the last tensor
is a digest of the others: a version without it is not whole. On a CPU the bucket is in shared memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import (
    BucketedWeightReceiver,
    BucketedWeightSender,
)

from trinity_compat.common.crash_points import point
from trinity_compat.common.errors import RunError
from trinity_compat.synchronizer.held_weights import TensorDigest
from trinity_compat.synchronizer.transports.files import WeightFile, make_private
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed, reason_of
from trinity_compat.synchronizer.transports.safetensors_io import Named

_DIGEST = "trinity_compat.digest"
_SHARED_MEMORY = Path("/dev/shm")  # a socket's path has 107 characters at most
_LINGER_MS = 5000  # for the last message, as the socket is closed behind it


class DeviceSender(BucketedWeightSender):
    """A rank of the trainer's; ``number``: on a CPU, where no device names the pair."""

    def __init__(self, meeting: Rendezvous, number: int, device: torch.device, bucket_bytes: int) -> None:
        super().__init__(_address(meeting, number, device), use_shm=device.type == "cpu")
        self.bucket_size, self.zmq_context = bucket_bytes, _Context.of(meeting)
        self._complete = False

    async def send(self, tensors: Iterable[Named]) -> WeightFile:
        """Send ``tensors`` until the receiver has loaded them; return digest and size.

        Raises TransferFailed. A CPU has no way for a tensor that is larger than the bucket.
        """
        digest = TensorDigest()
        with _failing("the engine's worker"):
            await self.async_send_weights(self._with_digest(tensors, digest))
        return WeightFile("", digest.hexdigest(), digest.nbytes)

    def _with_digest(self, tensors: Iterable[Named], digest: TensorDigest) -> Iterator[Named]:
        for name, tensor in tensors:
            digest.add(name, tensor)
            yield name, tensor
        self._complete = True
        yield _DIGEST, torch.frombuffer(bytearray(digest.hexdigest().encode()), dtype=torch.uint8)

    def _init_buffer(self) -> None:
        self.socket.send(b"")
        self.socket.recv()
        super()._init_buffer()

    def _cleanup(self) -> None:
        if self.buffer is not None and not self._complete:  # else the receiver would wait for the next bucket
            with contextlib.suppress(zmq.ZMQError):
                self.socket.send_pyobj({"bucket_meta": {}, "is_last": True})
        super()._cleanup()


class DeviceReceiver(BucketedWeightReceiver):
    """The engine's worker on the same device."""

    _ack_pending: bool

    def __init__(self, meeting: Rendezvous, number: int, device: torch.device) -> None:
        super().__init__(_address(meeting, number, device), device, use_shm=device.type == "cpu")
        self.zmq_context = _Context.of(meeting)
        self._failure = ""

    def receive(self, load: Callable[[list[Named]], object]) -> WeightFile:
        """Pass each bucket's tensors to ``load``; they are valid until it returns. Return digest and size.

        Raises TransferFailed, also for an error of ``load``: the weights are then a mixture.
        """
        digest, sent = TensorDigest(), list[str]()

        def take(named: list[Named], is_last: bool) -> None:
            point("inside load")
            if named and named[-1][0] == _DIGEST:
                sent.append(bytes(named.pop()[1].tolist()).decode())
            try:
                if not self._failure:
                    for name, tensor in named:
                        digest.add(name, tensor)
                    load(named)
            except Exception as error:  # kept until the sender is done: veRL's frames hold the bucket
                self._failure = reason_of(error)
            if is_last and not self._failure and sent != [digest.hexdigest()]:
                self._failure = (
                    "other weights than were sent" if sent else "the trainer gave this transfer up"
                )

        with _failing("the trainer's rank"):
            self.receive_weights(take)
        if self._failure:
            raise TransferFailed(self._failure)
        return WeightFile("", digest.hexdigest(), digest.nbytes)

    def _init_buffer(self) -> None:
        self.socket.recv()
        self.socket.send(b"")
        super()._init_buffer()

    def _cleanup(self) -> None:
        if self._ack_pending and self._failure:
            self.socket.send(self._failure.encode())
            self._ack_pending = False
        super()._cleanup()


class _Answers(zmq.Socket[bytes]):
    """A socket whose peer answers with the reason of a failure, or nothing."""

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        """Receive a message. Raises TransferFailed."""
        answer = super().recv(*args, **kwargs)
        if self.type == zmq.REQ and answer:
            raise TransferFailed(bytes(answer).decode())
        return answer


class _Context(zmq.Context[_Answers]):
    """Makes sockets whose waits end."""

    @classmethod
    def of(cls, meeting: Rendezvous) -> _Context:
        made = cls()
        for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
            made.setsockopt(option, int(1000 * meeting.timeout_s))
        made.setsockopt(zmq.LINGER, _LINGER_MS)
        return made

    def socket(self, socket_type: int, *_: Any, **__: Any) -> Any:
        """Return a socket with this context's limits."""
        return super().socket(socket_type, socket_class=_Answers)


@contextlib.contextmanager
def _failing(peer: str) -> Iterator[None]:
    """Turn errors of veRL's transfer into TransferFailed."""
    try:
        yield
    except zmq.Again as error:
        raise TransferFailed(f"{peer} gave no answer in time") from error
    except (zmq.ZMQError, OSError, AssertionError) as error:
        raise TransferFailed(reason_of(error)) from error


def _address(meeting: Rendezvous, number: int, device: torch.device) -> str:
    """Return the address of the pair on ``device``, in a folder of this user's: messages are pickles."""
    place = f"cpu{number}" if device.type == "cpu" else torch.cuda.get_device_properties(device).uuid
    folder = _SHARED_MEMORY / f"trinity-compat-{os.getuid()}"
    try:
        make_private(folder)
    except RunError as error:
        raise TransferFailed(str(error)) from error
    return f"ipc://{folder}/{meeting.transfer[:16]}-{place}"
