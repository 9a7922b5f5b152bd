"""Training engines with veRL's interface and none of FSDP's attributes: each rank holds the whole model.

Registered for the CPU as strategies ``plain`` and ``twins``, as a user's module would do it
(``model.external_lib``).
Source of the interface: verl 0.9.1, workers/engine/base.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits
from verl.workers.engine.base import BaseEngine, BaseEngineCtx, EngineRegistry
from verl.workers.engine.utils import detach_tree, postprocess_batch_func, prepare_micro_batches


class _Mode(BaseEngineCtx):
    def __enter__(self):
        super().__enter__()
        self.engine._net.train(self.mode == "train")

    def __exit__(self, *error):
        super().__exit__(*error)
        if self.mode == "train":
            self.engine.optimizer_zero_grad()


class PlainEngine(BaseEngine):
    """Gradients are averaged over the ranks after the backward pass. ``moved``: the calls of ``to``."""

    def __init__(self, model_config, engine_config, optimizer_config, checkpoint_config):
        self._model, self._settings, self._optim = model_config, engine_config, optimizer_config
        self.mode, self.moved = None, []

    @property
    def is_param_offload_enabled(self):
        return bool(self._settings.param_offload)

    @property
    def is_optimizer_offload_enabled(self):
        return bool(self._settings.optimizer_offload)

    def initialize(self):
        self._net = AutoModelForCausalLM.from_pretrained(
            self._model.local_path, dtype=torch.float32, attn_implementation="eager"
        )
        optim = self._optim
        if not self._settings.forward_only:
            self._adam = torch.optim.AdamW(
                self._net.parameters(),
                lr=optim.lr,
                betas=tuple(optim.betas),
                weight_decay=optim.weight_decay,
            )

    def train_mode(self, **kwargs):
        return _Mode(self, "train", **kwargs)

    def eval_mode(self, **kwargs):
        return _Mode(self, "eval", **kwargs)

    def optimizer_zero_grad(self):
        self._adam.zero_grad()

    def optimizer_step(self):
        for parameter in self._net.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.get_data_parallel_group())
                parameter.grad /= self.get_data_parallel_size()
        norm = torch.nn.utils.clip_grad_norm_(self._net.parameters(), self._optim.clip_grad)
        self._adam.step()
        return norm.item()

    def lr_scheduler_step(self):
        return self._optim.lr

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        tokens = data["loss_mask"].sum()
        dist.all_reduce(tokens, group=self.get_data_parallel_group())
        ranks = self.get_data_parallel_size()
        tu.assign_non_tensor(data, sp_size=1, batch_num_tokens=tokens.item(), dp_size=ranks)
        parts, indices = prepare_micro_batches(
            data, dp_group=self.get_data_parallel_group(), same_micro_num_in_dp=True
        )
        with torch.no_grad() if forward_only else nullcontext():
            outputs = [self._forward(part, loss_function, forward_only) for part in parts]
        return postprocess_batch_func(output_lst=outputs, indices=indices, data=data)

    def _forward(self, part, loss_function, forward_only):
        ids = part["input_ids"]
        lengths = ids.offsets().diff()
        heat = part["temperature"]
        heat = heat if isinstance(heat, torch.Tensor) else torch.full((len(lengths),), float(heat))
        dense = torch.nested.to_padded_tensor(ids, padding=0)
        mask = torch.arange(dense.shape[1])[None] < lengths[:, None]
        logits = self._net(input_ids=dense, attention_mask=mask.long(), use_cache=False).logits
        flat = (logits / heat[:, None, None])[mask]
        found = {"log_probs": _jagged(logprobs_from_logits(flat, torch.roll(ids.values(), -1)), ids)}
        if tu.get_non_tensor_data(part, key="calculate_entropy", default=False):
            found["entropy"] = _jagged(entropy_from_logits(flat), ids)
        loss, metrics = torch.tensor(1.0), {}
        if loss_function is not None:
            group = self.get_data_parallel_group()
            loss, metrics = loss_function(model_output=found, data=part, dp_group=group)
        if not forward_only:
            loss.backward()
        output = {"loss": loss.detach().item(), "metrics": metrics}
        return output | ({"model_output": detach_tree(found)} if forward_only else {})

    def get_per_tensor_param(self):
        return ((name, value.detach().clone()) for name, value in self._net.state_dict().items()), None

    def get_data_parallel_size(self):
        return dist.get_world_size()

    def get_data_parallel_rank(self):
        return dist.get_rank()

    def get_data_parallel_group(self):
        return dist.group.WORLD

    def is_mp_src_rank_with_outputs(self):
        return True

    def to(self, device, model=True, optimizer=True, grad=True):
        self.moved.append((device, model, optimizer, grad))

    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None, **kwargs):
        Path(local_path).mkdir(parents=True, exist_ok=True)
        if dist.get_rank() == 0:
            state = {"net": self._net.state_dict(), "adam": self._adam.state_dict()}
            torch.save(state, Path(local_path) / "plain.pt")
        dist.barrier()

    def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=True, **kwargs):
        if local_path is None:
            return
        kept = torch.load(Path(local_path) / "plain.pt", weights_only=True)
        self._net.load_state_dict(kept["net"])
        self._adam.load_state_dict(kept["adam"])


class TwinEngine(PlainEngine):
    """All ranks compute all rows, as those of a model-parallel group do: one data-parallel rank."""

    def initialize(self):
        super().initialize()
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self._alone = alone[dist.get_rank()]

    def get_data_parallel_size(self):
        return 1

    def get_data_parallel_rank(self):
        return 0

    def get_data_parallel_group(self):
        return self._alone

    def is_mp_src_rank_with_outputs(self):
        return dist.get_rank() == 0


def _jagged(values, like):
    return torch.nested.nested_tensor_from_jagged(values, like.offsets())


for name, engine in (("plain", PlainEngine), ("twins", TwinEngine)):
    if name not in EngineRegistry._engines.get("language_model", {}):
        EngineRegistry.register(model_type="language_model", backend=name, device="cpu")(engine)
