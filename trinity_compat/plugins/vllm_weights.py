"""What the explorer asks of vLLM's workers (``worker_extension_cls``, called by ``collective_rpc``).

Weights go in the way veRL 0.9.1 puts them into its own rollout: ``update_weights_from_ipc`` of its worker
extension, which prepares the layers, loads bucket by bucket and processes the layers once at the end, with a
branch each for plain, quantised and QAT models. Ours is the source of the buckets alone. An engine that was
started for LoRA (``lora.py``) takes adapters instead, and no whole models: the one in place is removed, the
next one added under the same name, with veRL's ``_update_weights``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, Protocol, Self
from unittest.mock import patch

import torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer
from verl.workers.rollout.vllm_rollout import utils as verl_rollout
from vllm.lora.request import LoRARequest

from trinity_compat.common.crash_points import point
from trinity_compat.synchronizer import adapters
from trinity_compat.synchronizer.transports.files import Reader, WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.nccl import HandoverFailed, LoadFailed, Rendezvous, WeightGroup
from trinity_compat.synchronizer.transports.safetensors_io import PART_BYTES, Named

Load = Callable[[list[Named]], object]
Answer = dict[str, str | int]


class Runner(Protocol):
    """What a worker of vLLM's has of the model. ``vllm_config`` is vLLM's VllmConfig."""

    vllm_config: Any
    lora_manager: Any  # where vllm_config has a lora_config

    def get_model(self) -> torch.nn.Module: ...


def adapter_request() -> LoRARequest:
    """What a request names to be answered with the adapter in place.

    The name stays from version to version, as veRL's does: what is in flight goes on with the newer one, as
    it does with newer weights.
    """
    return LoRARequest(
        lora_name=verl_rollout.VLLM_LORA_NAME,
        lora_int_id=verl_rollout.VLLM_LORA_INT_ID,
        lora_path=verl_rollout.VLLM_LORA_PATH,
    )


class VllmModel(Protocol):
    """A model of vLLM's; its own signature differs from model to model. A rank may get no logits."""

    def compute_logits(self, *args: object, **kwargs: object) -> torch.Tensor | None: ...


class WeightReceiver(verl_rollout.vLLMColocateWorkerExtension):
    """Mixed into vLLM's worker class; ``model_runner`` is the worker's."""

    model_runner: Runner
    rank: int
    _weight_group: WeightGroup | None = None
    _reader: Reader | None = None

    def __new__(cls, **kwargs: object) -> Self:
        """veRL's own, which patches vLLM for LoRA, FP8 and QAT.

        Its ``set_death_signal`` is left out: it kills a process whose parent is process 1, and in a container
        that may be the user's shell.
        """
        with patch.object(verl_rollout, "set_death_signal", lambda: None):
            made: Self = super().__new__(cls, **kwargs)
            return made

    def receive_file(self, path: str, digest: str, nbytes: int) -> Answer:
        """Load a published version.

        Returns the number of ``tensors``, or as ``damaged`` or ``failed`` why they are not in place, never
        other weights in silence.

        An exception here would end vLLM's wait at rank 0's and leave the other ranks' answers in their
        queues, for the next call to take for its own.
        """
        try:
            with self._files().opened(WeightFile(path, digest, nbytes)) as parts:
                point("inside load")
                return {"tensors": self._loaded(parts)}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        except Exception as error:
            return {"failed": _reason(error)}

    def receive_model(self) -> Answer:
        """Load the model's own files, in the way of a published version: for layers that are quantised as
        weights arrive, which the files don't hold. Answers as ``receive_file``."""
        from vllm.config import LoadConfig
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        runner, loader = self.model_runner, DefaultModelLoader(LoadConfig())
        try:
            named = loader.get_all_weights(runner.vllm_config.model_config, runner.get_model())
            return {"tensors": self._loaded(in_parts(named))}
        except Exception as error:
            return {"failed": _reason(error)}

    def _loaded(self, parts: Iterable[list[Named]]) -> int:
        """How many tensors ``parts`` had."""
        count = 0

        def feed(load: Load) -> None:
            nonlocal count
            for named in parts:
                load(named)
                count += len(named)

        self._update(feed)
        return count

    def _files(self) -> Reader:
        self._reader = self._reader or Reader()
        return self._reader

    def receive_broadcast(self, meeting: Mapping[str, Any], first_rank: int) -> Answer:
        """Take part in a handover as rank ``first_rank`` + this worker's, load what comes.

        Returns digest and nbytes; or why the weights must not be used now: ``failed`` (another handover may
        succeed), ``damaged``, ``unloadable`` (it would end the same way). An exception would end vLLM's
        engine.
        """
        where = Rendezvous(**meeting)
        try:
            file = self._received(where, first_rank + self.rank)
        except HandoverFailed as error:
            self._leave_weight_group()
            return {"failed": str(error)}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        except Exception as error:
            self._leave_weight_group()
            return {"unloadable": str(error) if isinstance(error, LoadFailed) else _reason(error)}
        return {"digest": file.digest, "nbytes": file.nbytes}

    def _received(self, where: Rendezvous, rank: int) -> WeightFile:
        group, received = self._joined(where, rank), list[WeightFile]()
        try:
            self._update(lambda load: received.append(group.receive(where, load)))
        except (HandoverFailed, LoadFailed, WeightsDamaged):
            raise
        except Exception as error:  # in veRL's steps around the buckets: the others would wait for this rank
            raise LoadFailed(group.give_up(where, error)) from error
        return received[0]

    def _joined(self, where: Rendezvous, rank: int) -> WeightGroup:
        if self._weight_group is None or self._weight_group.name != where.group:
            self._leave_weight_group()
            device = next(self.model_runner.get_model().parameters()).device
            self._weight_group = WeightGroup(where, rank, device)
        return self._weight_group

    def _leave_weight_group(self) -> None:
        if self._weight_group is not None:
            self._weight_group.close()
        self._weight_group = None

    def begin_unadapted(self) -> None:
        """Put an adapter of zeros where the run's own will be: every request names it from the first on, so
        that what is in flight when a version comes goes on with that."""
        manager = self.model_runner.lora_manager
        with manager.dummy_lora_cache():
            manager.add_dummy_lora(adapter_request(), 1)

    def _update(self, feed: Callable[[Load], object]) -> None:
        """Put what ``feed`` hands to the function it is given in place, by veRL's own steps.

        Raises what ``feed`` raises.
        """
        if self.model_runner.vllm_config.lora_config:
            self._update_adapter(feed)
        else:
            self._update_model(feed)

    def _update_adapter(self, feed: Callable[[Load], object]) -> None:
        """As veRL's update of an adapter, which has to be told its configuration before the first bucket.

        Raises ValueError for a whole model, or where some of the adapter would be left out.
        """
        named = list[Named]()
        feed(lambda part: named.extend((name, tensor.clone()) for name, tensor in part))
        tensors, peft = adapters.taken_apart(named)
        self.remove_lora(verl_rollout.VLLM_LORA_INT_ID)
        self._update_weights(list(tensors.items()), peft_config=peft, base_sync_done=True)
        manager = self.model_runner.lora_manager._adapter_manager
        taken = manager.get_adapter(verl_rollout.VLLM_LORA_INT_ID).loras
        adapters.refuse_left_out(taken, manager.modules)

    def _update_model(self, feed: Callable[[Load], object]) -> None:
        """As veRL's update of a whole model.

        Where the handover is broken, the layers are processed all the same: a quantised model, taken apart
        for loading, is whole again for the next one.
        """
        broken: list[Exception] = []
        device = self._quantises_on

        class Buckets:
            """Stands for veRL's receiver."""

            def __init__(self, **_: object) -> None: ...

            def receive_weights(self, on_bucket_received: Callable[[list[Named], bool], object]) -> None:
                try:  # whether a bucket is the last one matters to LoRA adapters only
                    feed(lambda named: on_bucket_received(_on(device(), named), False))
                except (HandoverFailed, WeightsDamaged) as error:
                    broken.append(error)

        with torch.no_grad(), patch.object(bucketed_weight_transfer, "BucketedWeightReceiver", Buckets):
            self.update_weights_from_ipc()
        if broken:
            raise broken[0]

    def _quantises_on(self) -> torch.device | None:
        """Where veRL quantises what arrives: its kernel reads the device's memory alone. None: it doesn't."""
        return self.device if verl_rollout.is_quantized_model(self.model_runner.vllm_config) else None

    def mask_vocabulary(self, size: int, banned: Sequence[int] = ()) -> None:
        """Give tokens ≥ ``size`` and the ``banned`` ones probability 0, in a draft model too.

        As verl's rollout does (``monkey_patch_model``, 0.9.1), so that the policy that samples is the policy
        that is trained; and where a rank gets no logits at all.
        """
        forbidden = torch.tensor(list(banned), dtype=torch.long)
        for model in self._iter_all_models():
            _mask(model, size, forbidden)


def in_parts(weights: Iterable[Named]) -> Iterator[list[Named]]:
    """``weights`` in lists of at least PART_BYTES; the last may have less."""
    part, nbytes = list[Named](), 0
    for name, tensor in weights:
        part.append((name, tensor))
        nbytes += tensor.nbytes
        if nbytes >= PART_BYTES:
            yield part
            part, nbytes = [], 0
    if part:
        yield part


def _on(device: torch.device | None, named: list[Named]) -> list[Named]:
    return [(name, tensor.to(device)) for name, tensor in named] if device else named


def _mask(model: VllmModel, size: int, forbidden: torch.Tensor) -> None:
    original = model.compute_logits

    def compute_logits(_self: VllmModel, *args: object, **kwargs: object) -> torch.Tensor | None:
        nonlocal forbidden
        logits = original(*args, **kwargs)
        if logits is not None:
            forbidden = forbidden.to(logits.device)  # once: each copy to a GPU waits for what runs there
            logits[..., size:] = float("-inf")
            logits.index_fill_(-1, forbidden, float("-inf"))
        return logits

    model.compute_logits = MethodType(compute_logits, model)  # type: ignore[method-assign]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
