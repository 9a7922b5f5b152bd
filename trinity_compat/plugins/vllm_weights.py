"""Extension of vLLM's workers for the explorer (``worker_extension_cls``, called by ``collective_rpc``).

Weights are loaded as in veRL 0.9.1's rollout, by ``update_weights_from_ipc`` of its worker extension, which
prepares the layers, loads bucket by bucket and processes the layers once at the end, with a branch each for
plain, quantised and QAT models; only the source of the buckets differs. The first version's way into the
model is observed (``vllm_dtypes.py``). An engine that was started for LoRA
(``lora.py``) takes adapters instead of whole models: the present one is removed, the next one added under the
same name, with veRL's ``_update_weights``.
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
from trinity_compat.plugins.device_transfer import DeviceReceiver
from trinity_compat.plugins.vllm_dtypes import ObservedCopies, observe
from trinity_compat.synchronizer import adapters, held_weights
from trinity_compat.synchronizer.engine_dtypes import add, pattern
from trinity_compat.synchronizer.transports.files import Reader, WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.nccl import LoadFailed, Rendezvous, TransferFailed, WeightGroup
from trinity_compat.synchronizer.transports.safetensors_io import PART_BYTES, Named

Load = Callable[[list[Named]], object]
Answer = dict[str, str | int]


class Runner(Protocol):
    """The model runner of a vLLM worker. ``vllm_config`` is vLLM's VllmConfig."""

    vllm_config: Any
    lora_manager: Any  # where vllm_config has a lora_config

    def get_model(self) -> torch.nn.Module:
        """Return the model."""


def adapter_request() -> LoRARequest:
    """Return the request's reference to the loaded adapter.

    Its name is the same for all versions, as in veRL: requests in flight continue with a newer adapter, as
    with newer weights.
    """
    return LoRARequest(
        lora_name=verl_rollout.VLLM_LORA_NAME,
        lora_int_id=verl_rollout.VLLM_LORA_INT_ID,
        lora_path=verl_rollout.VLLM_LORA_PATH,
    )


class VllmModel(Protocol):
    """A vLLM model; signatures differ from model to model."""

    def compute_logits(self, *args: object, **kwargs: object) -> torch.Tensor | None:
        """Return the logits; None at ranks without them."""


class WeightReceiver(verl_rollout.vLLMColocateWorkerExtension):
    """Mixin of vLLM's worker class; ``model_runner`` is the worker's."""

    model_runner: Runner
    rank: int
    _weight_group: WeightGroup | None = None
    _reader: Reader | None = None
    _dtypes: dict[str, str]
    _observed = False  # a whole version, whose names may differ from those of the model's files
    _held = ""  # digest after the latest load; "" where none was taken

    def __new__(cls, **kwargs: object) -> Self:
        """Create it by veRL's method, which patches vLLM for LoRA, FP8 and QAT.

        ``set_death_signal`` is left out: it kills a process whose parent is process 1, and in a container
        that may be the user's shell.
        """
        with patch.object(verl_rollout, "set_death_signal", lambda: None):
            extension: Self = super().__new__(cls, **kwargs)
        extension._dtypes = {}
        observe(extension._dtypes)
        return extension

    def dtypes(self) -> dict[str, str]:
        """Return the dtypes in which this worker holds what it has loaded; see ``engine_dtypes.py``."""
        return self._dtypes

    def receive_file(self, path: str, digest: str, nbytes: int) -> Answer:
        """Load a published version.

        Returns the number of ``tensors``, the ``digest`` of what was read, and ``_proof``; or the reason of a
        failure as ``damaged`` or ``failed``.

        An exception here would end vLLM's wait at rank 0's answer and leave the other ranks' answers in their
        queues, where the next call would read them.
        """
        try:
            with self._files().opened(WeightFile(path, digest, nbytes)) as parts:
                point("inside load")
                count = self._load(parts)
            return {"tensors": count, "digest": digest, **self._proof()}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        except Exception as error:
            return {"failed": _reason(error)}

    def receive_model(self) -> Answer:
        """Load the model's files like a published version, for layers that are quantised on arrival.

        Answers as ``receive_file``.
        """
        from vllm.config import LoadConfig
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        runner, loader = self.model_runner, DefaultModelLoader(LoadConfig())
        try:
            named = loader.get_all_weights(runner.vllm_config.model_config, runner.get_model())
            return {"tensors": self._load(grouped_in_parts(named))}
        except Exception as error:
            return {"failed": _reason(error)}

    def _load(self, parts: Iterable[list[Named]]) -> int:
        """Load ``parts``; return the number of tensors."""
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
        """Receive a version as rank ``first_rank`` + this worker's, or on its own device, and load it.

        Returns digest and nbytes, or why the weights must not be used: ``failed`` (another transfer may
        succeed), ``damaged``, ``unloadable`` (it would fail again). An exception would end vLLM's engine.
        """
        rendezvous = Rendezvous(**meeting)
        try:
            file = self._receive(rendezvous, first_rank + self.rank)
        except TransferFailed as error:
            self._leave_weight_group()
            return {"failed": str(error)}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        except Exception as error:
            self._leave_weight_group()
            return {"unloadable": str(error) if isinstance(error, LoadFailed) else _reason(error)}
        return {"digest": file.digest, "nbytes": file.nbytes, **self._proof()}

    def _receive(self, rendezvous: Rendezvous, rank: int) -> WeightFile:
        received = list[WeightFile]()
        if rendezvous.on_devices:
            receiver = DeviceReceiver(rendezvous, rank - 1, self.device)
            self._update(lambda load: received.append(receiver.receive(load)))
            return received[0]
        if self._weight_group is None or self._weight_group.name != rendezvous.group:
            self._leave_weight_group()
            device = next(self.model_runner.get_model().parameters()).device
            self._weight_group = WeightGroup(rendezvous, rank, device)
        group = self._weight_group
        try:
            self._update(lambda load: received.append(group.receive(rendezvous, load)))
        except (TransferFailed, LoadFailed, WeightsDamaged):
            raise
        except Exception as error:  # in veRL's steps around the buckets: the others would wait for this rank
            raise LoadFailed(group.give_up(rendezvous, error)) from error
        return received[0]

    def _leave_weight_group(self) -> None:
        if self._weight_group is not None:
            self._weight_group.close()
        self._weight_group = None

    def begin_unadapted(self) -> None:
        """Load an adapter of zeros under the name of the run's.

        Every request names it from the start, so that requests in flight continue with the first version.
        """
        manager = self.model_runner.lora_manager
        with manager.dummy_lora_cache():
            manager.add_dummy_lora(adapter_request(), 1)

    def _update(self, feed: Callable[[Load], object]) -> None:
        """Load what ``feed`` passes to its argument, by veRL's steps. Raises what ``feed`` raises.

        Raises ValueError where the engine no longer holds what the load before has left.
        """
        before, self._held = self._held, ""
        if before and before != self._own_digest():
            raise ValueError("the engine's weights were changed since they were loaded")
        if self.model_runner.vllm_config.lora_config:
            self._update_adapter(feed)
        else:
            self._update_model(feed)

    def _update_adapter(self, feed: Callable[[Load], object]) -> None:
        """Update an adapter as veRL does, whose configuration is needed before the first bucket.

        Raises ValueError for a whole model, or where a part of the adapter would be ignored.
        """
        named = list[Named]()
        feed(lambda part: named.extend((name, tensor.clone()) for name, tensor in part))
        tensors, peft = adapters.taken_apart(named)
        lora_dtype = str(self.model_runner.vllm_config.lora_config.lora_dtype).removeprefix("torch.")
        add(self._dtypes, map(pattern, tensors), lora_dtype)  # vLLM converts them before all else
        self.remove_lora(verl_rollout.VLLM_LORA_INT_ID)
        self._update_weights(list(tensors.items()), peft_config=peft, base_sync_done=True)
        manager = self.model_runner.lora_manager._adapter_manager
        loaded = manager.get_adapter(verl_rollout.VLLM_LORA_INT_ID).loras
        adapters.refuse_left_out(loaded, manager.modules)
        if held_weights.is_on() and not self._stacks_experts(manager):
            adapters.refuse_other_values(tensors, peft, lora_dtype, loaded)

    def _stacks_experts(self, manager: Any) -> bool:
        """Return whether vLLM leaves out, slices or pads the adapter's experts."""
        return bool(getattr(manager, "_is_moe", False))

    def forget_held(self) -> None:
        """Forget the digest of the weights: they are about to leave the device."""
        self._held = ""

    def _proof(self) -> Answer:
        """Return the digest of what this worker holds, and what it proves; empty where it is off."""
        config = self.model_runner.vllm_config
        moves = getattr(getattr(config, "parallel_config", None), "enable_eplb", False)
        if moves or not held_weights.is_on():  # EPLB moves experts between two loads
            return {}
        self._held = self._own_digest()
        if config.lora_config:
            experts = self._stacks_experts(self.model_runner.lora_manager._adapter_manager)
            proof = "same in all engines" if experts else "equals what arrived"
        else:
            proof = "recorded" if self._quantisation_device() else "same in all engines"
        return {"held": self._held, "proof": proof}

    def _own_digest(self) -> str:
        """Return the digest of the parameters; of an adapted model, the adapter's as its layers read it."""
        config = self.model_runner.vllm_config
        named: Iterable[Named] = self.model_runner.get_model().named_parameters()
        if config.lora_config:
            layers = self.model_runner.lora_manager._adapter_manager.modules.items()
            named = [
                (f"{name}.{attribute}.{place}", tensor)
                for name, layer in layers
                for attribute, stacked in sorted(vars(layer).items())
                if attribute.endswith("_stacked")
                for place, tensor in enumerate(stacked)
            ]
        width = getattr(getattr(config, "parallel_config", None), "world_size", 1)
        return held_weights.digest(named, f"{self.rank} of {width} on {self.device.type}")

    def _update_model(self, feed: Callable[[Load], object]) -> None:
        """Update a whole model as veRL does.

        After a failed transfer the layers are processed all the same: a quantised model, whose layers were
        prepared for loading, is complete again for the next one.
        """
        broken: list[Exception] = []
        device, observed = self._quantisation_device, self._observing

        class Buckets:
            """Replaces veRL's receiver."""

            def __init__(self, **_: object) -> None: ...

            def receive_weights(self, on_bucket_received: Callable[[list[Named], bool], object]) -> None:
                def load(named: list[Named]) -> None:  # whether a bucket is the last matters to adapters only
                    on_bucket_received(_on(device(), named), False)

                try:
                    feed(observed(load))
                except (TransferFailed, WeightsDamaged) as error:
                    broken.append(error)

        with torch.no_grad(), patch.object(bucketed_weight_transfer, "BucketedWeightReceiver", Buckets):
            self.update_weights_from_ipc()
        if broken:
            raise broken[0]
        self._observed = True

    def _observing(self, load: Load) -> Load:
        """Return ``load``, observed for the first version. Call it when the layers are ready to be loaded."""
        if self._observed:
            return load
        copies = ObservedCopies(self._iter_all_models(), self._dtypes)

        def load_observed(named: list[Named]) -> None:
            copies.arrive(named)
            with copies:
                load(named)

        return load_observed

    def _quantisation_device(self) -> torch.device | None:
        """Return the device on which veRL quantises arriving weights, None if it doesn't."""
        if hasattr(verl_rollout, "is_quantized_model"):
            quantised = verl_rollout.is_quantized_model(self.model_runner.vllm_config)
        else:  # veRL 0.9.0, which knows FP8 alone
            quantised = verl_rollout.is_fp8_model(self.model_runner.vllm_config)
        return self.device if quantised else None

    def mask_vocabulary(self, size: int, banned: Sequence[int] = ()) -> None:
        """Give tokens ≥ ``size`` and the ``banned`` ones probability 0, in a draft model too.

        This is verl's rollout's rule (``monkey_patch_model``, 0.9.1), so that the sampling policy is the one
        that is trained; it also holds at ranks without logits.
        """
        forbidden = torch.tensor(list(banned), dtype=torch.long)
        for model in self._iter_all_models():
            _mask(model, size, forbidden)


def grouped_in_parts(weights: Iterable[Named]) -> Iterator[list[Named]]:
    """Group ``weights`` in lists of at least PART_BYTES; the last may have less."""
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
            forbidden = forbidden.to(logits.device)  # once: each copy to a GPU waits for its running kernels
            logits[..., size:] = float("-inf")
            logits.index_fill_(-1, forbidden, float("-inf"))
        return logits

    model.compute_logits = MethodType(compute_logits, model)  # type: ignore[method-assign]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
