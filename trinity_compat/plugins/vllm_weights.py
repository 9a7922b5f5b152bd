"""What the explorer asks of vLLM's workers (``worker_extension_cls``, called by ``collective_rpc``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import torch


class WeightReceiver:
    """Mixed into vLLM's worker class; ``model_runner`` is the worker's."""

    model_runner: Any
    rank: int
    _weight_group: Any = None

    def receive_file(self, path: str, digest: str, nbytes: int) -> dict[str, Any]:
        """Load a published version. Returns the number of ``tensors``, or as ``damaged`` or ``failed`` why
        they are not in place, never other weights in silence.

        An exception here would end vLLM's wait at rank 0's and leave the other ranks' answers in their
        queues, for the next call to take for its own.
        """
        from trinity_compat.synchronizer.files import WeightFile, WeightsDamaged, read_file

        try:
            return {"tensors": self.receive_tensors(dict(read_file(WeightFile(path, digest, nbytes))))}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    def receive_broadcast(self, meeting: Mapping[str, Any], first_rank: int) -> dict[str, Any]:
        """Take part in a handover as rank ``first_rank`` + this worker's, load what comes. Returns digest and
        nbytes, or as ``failed`` or ``damaged`` why the weights must not be used now (an exception would
        end vLLM's engine).
        """
        from trinity_compat.synchronizer.collective import HandoverFailed, Meeting, WeightGroup
        from trinity_compat.synchronizer.files import WeightsDamaged

        where = Meeting(**meeting)
        device = next(self.model_runner.get_model().parameters()).device
        try:
            if self._weight_group is None or self._weight_group.name != where.group:
                self._leave_weight_group()
                self._weight_group = WeightGroup(where, first_rank + self.rank, device)
            file = self._weight_group.receive(where, lambda named: self.receive_tensors(dict(named)))
        except HandoverFailed as error:
            self._leave_weight_group()
            return {"failed": str(error)}
        except WeightsDamaged as error:
            return {"damaged": str(error)}
        return {"digest": file.digest, "nbytes": file.nbytes}

    def _leave_weight_group(self) -> None:
        if self._weight_group is not None:
            self._weight_group.close()
        self._weight_group = None

    def receive_tensors(self, tensors: dict[str, torch.Tensor]) -> int:
        """Load named tensors (Hugging Face names) in place. Returns their number."""
        with torch.inference_mode():
            self.model_runner.get_model().load_weights(tensors.items())
        return len(tensors)

    def mask_vocabulary(self, size: int, banned: Sequence[int] = ()) -> None:
        """Give tokens ≥ ``size`` and the ``banned`` ones probability 0.

        As verl's rollout does (``monkey_patch_compute_logits`` in workers/rollout/vllm_rollout/utils.py,
        0.9.1), so that the policy that samples is the policy that is trained.
        """
        model = self.model_runner.get_model()
        original = model.compute_logits
        forbidden = torch.tensor(list(banned), dtype=torch.long)

        def compute_logits(_self: Any, *args: Any, **kwargs: Any) -> Any:
            logits = original(*args, **kwargs)
            if logits is not None:
                logits[..., size:] = float("-inf")
                logits.index_fill_(-1, forbidden.to(logits.device), float("-inf"))
            return logits

        model.compute_logits = MethodType(compute_logits, model)
