"""Patch: ``DefaultModelLoader.get_all_weights`` is observed for the dtypes in which vLLM holds a checkpoint.

Why: vLLM's models rename, fuse and slice what they load, each in its own ``load_weights``, and no list of it
exists. So each copy of a loaded tensor is followed to the parameter or buffer that it ends in, as vLLM's own
``CopyCounter`` counts such copies (vLLM 0.24 to 0.28, model_loader/reload/meta.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trinity_compat.synchronizer.engine_dtypes import add, pattern
from trinity_compat.synchronizer.transports.safetensors_io import Named

_COPY = torch.ops.aten.copy_.default
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)


class ObservedCopies(TorchDispatchMode):
    """Follows tensors into ``models``, while they are loaded inside this context.

    ``seen`` gets the dtypes of the parameters and buffers that they were copied into, by the names' patterns:
    "" where these differ, or where a model computed with a tensor instead of copying it.
    """

    def __init__(self, models: Iterable[torch.nn.Module], seen: dict[str, str]) -> None:
        super().__init__()
        self._seen = seen
        held = chain.from_iterable(chain(model.parameters(), model.buffers()) for model in models)
        self._held = {_storage(tensor) for tensor in held}
        self._arrived: dict[StorageWeakRef, list[tuple[int, int, str]]] = {}

    def arrive(self, named: Sequence[Named]) -> None:
        """Follow ``named``; several may share a storage, which an earlier bucket may have had."""
        for storage in {_storage(tensor) for _, tensor in named}:
            self._arrived.pop(storage, None)
        for name, tensor in named:
            self._follow(tensor, [pattern(name)])

    def _follow(self, tensor: torch.Tensor, names: Iterable[str]) -> None:
        begin = tensor.data_ptr()
        ranges = self._arrived.setdefault(_storage(tensor), [])
        ranges += [(begin, begin + tensor.nbytes, name) for name in names]

    def _names(self, tensor: torch.Tensor) -> set[str]:
        ranges = self._arrived.get(_storage(tensor), ())
        start = tensor.data_ptr() if ranges else 0
        return {name for begin, end, name in ranges if begin <= start < end}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, and note what it does with a tensor that is followed."""
        result = func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        source = given[1:] if func is _COPY else given
        names = set[str]().union(*map(self._names, source))
        if not names:
            return result
        if func is _COPY and _storage(given[0]) in self._held:
            add(self._seen, names, str(given[0].dtype).removeprefix("torch."))
        elif func is _COPY or func in _MOVES:
            self._follow(result, names)
        elif func._schema.is_mutable or not _are_views(result, given):
            add(self._seen, names, "")
        return result


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _are_views(result: Any, given: Sequence[torch.Tensor]) -> bool:
    known = {_storage(tensor) for tensor in given}
    results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
    return bool(results) and all(_storage(each) in known for each in results)


def observe(seen: dict[str, str]) -> None:
    """Patch this process's loader so that what it loads from now on is added to ``seen``."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    original = getattr(DefaultModelLoader.get_all_weights, "_original", DefaultModelLoader.get_all_weights)

    def get_all_weights(self: Any, config: Any, model: torch.nn.Module) -> Iterator[Named]:
        with ObservedCopies([model], seen) as copies:
            for named in original(self, config, model):
                copies.arrive([named])
                yield named

    get_all_weights._original = original  # type: ignore[attr-defined]
    DefaultModelLoader.get_all_weights = get_all_weights
