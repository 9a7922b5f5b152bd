"""A worker of vLLM 0.24.0 without a GPU: vLLM's own wrapper, configuration, model runners and post-load step;
the model is two experts in the layout that vLLM gives them on Blackwell. Prints JSON. Arguments: a model's
folder, one to write in, and a run's engine arguments for a GPU as JSON.
"""

import json
import sys
from types import SimpleNamespace
from unittest.mock import patch

import torch
import vllm
from torch import nn
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
from vllm.v1.worker.worker_base import WorkerBase, WorkerWrapperBase

from trinity_compat.synchronizer.transports.files import write_file
from trinity_compat.synchronizer.transports.nccl import TransferFailed

GATE_AND_UP = torch.arange(64.0).view(2, 8, 4)  # [experts, gate and up, hidden]
SWAPPED = torch.cat([GATE_AND_UP[:, 4:], GATE_AND_UP[:, :4]], 1)
SENT = {"experts.w13_weight": GATE_AND_UP, "experts.w2_weight": torch.ones(2, 4, 4)}


class FakeWorker(WorkerBase):
    """vLLM's base class, with our extension mixed in by vLLM."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.model = experts(), SimpleNamespace(layers=[])

    def load_weights(self, weights):
        places = dict(self.named_parameters())
        for name, tensor in weights:
            places[name].data.copy_(tensor)

    def compute_logits(self, hidden):
        return torch.zeros(len(hidden), 6)


def experts():
    layer = nn.Module()
    for name, tensor in SENT.items():
        layer.register_parameter(name.split(".")[1], nn.Parameter(torch.zeros_like(tensor), False))
    layer.moe_config = SimpleNamespace(is_act_and_mul=True)
    method = object.__new__(UnquantizedFusedMoEMethod)
    nn.Module.__init__(method)
    method.unquantized_backend = UnquantizedMoeBackend.FLASHINFER_CUTLASS
    method.moe_kernel = object()  # it is there: this is an update
    layer.quant_method = method
    return layer


def worker_of(model):
    arguments = EngineArgs(
        model=model,
        worker_extension_cls="trinity_compat.plugins.vllm_weights.WeightReceiver",
        skip_tokenizer_init=True,
        load_format="dummy",
    )
    config = arguments.create_engine_config()
    config.parallel_config.worker_cls = "__main__.FakeWorker"
    wrapper = WorkerWrapperBase(0)
    wrapper.init_worker(
        [{"vllm_config": config, "local_rank": 0, "rank": 0, "distributed_init_method": "none"}]
    )
    return wrapper.worker, config


def run_by(kind, config):
    """A runner as it is once it has loaded a model: V1 has it in what captures CUDA graphs, V2 as it is."""
    runner = object.__new__(kind)
    runner.vllm_config, runner.model = config, Model()
    if kind is RunnerV1:
        with patch.object(type(current_platform), "get_global_graph_pool"):
            runner.model = CUDAGraphWrapper(runner.model, config, CUDAGraphMode.FULL)
    return runner


def picked_for(arguments):
    """The runner that vLLM takes where there is a GPU (and Triton, which comes with torch there)."""
    from trinity_compat.explorer.engine.vllm import engine_args

    config = engine_args(arguments, "mp").create_engine_config()
    with patch("vllm.config.vllm.HAS_TRITON", True):
        return "V2" if config.use_v2_model_runner else "V1"


def layouts(worker, folder):
    """After each of two updates: how the gate and up halves lie."""
    file = write_file(folder, 1, SENT.items())
    for _ in range(2):
        answer = worker.receive_file(file.path, file.digest, file.nbytes)
        found = worker.model_runner.get_model().experts.w13_weight
        yield [answer, torch.equal(found, SWAPPED), torch.equal(found, GATE_AND_UP)]


def steps_of_quantised(worker, *, breaks):
    """What veRL is asked for around an FP8 model's buckets, in order."""
    steps = []
    quant = "verl.utils.vllm.vllm_quant_utils"
    rollout = "verl.workers.rollout.vllm_rollout.utils"

    def feed(load):
        load(list(SENT.items()))
        if breaks:
            raise TransferFailed("somebody died")

    with (
        patch(f"{rollout}.is_quantized_model", lambda config: True),
        patch(f"{rollout}.load_quanted_weights", lambda *_, **__: steps.append("load") or []),
        patch(f"{quant}.prepare_quanted_weights_for_loading", lambda model: steps.append("prepare")),
        patch(f"{quant}.process_quanted_weights_after_loading", lambda model, state: steps.append("process")),
    ):
        try:
            worker._update(feed)
        except TransferFailed:
            steps.append("failed")
    return steps


def by_runner(worker, config, folder):
    """What a runner's model holds after each update, and what is left of its logits (vocabulary 4, 1 banned);
    both runners ask ``self.model`` for logits."""
    for kind in (RunnerV1, RunnerV2):
        worker.model_runner = run_by(kind, config)
        worker.forget_held()  # another model, which the worker takes for a changed one
        updates = list(layouts(worker, folder))
        worker.mask_vocabulary(4, (1,))
        logits = worker.model_runner.model.compute_logits(torch.zeros(2, 3))
        yield updates, (logits[0] == 0).nonzero()[:, 0].tolist()


if __name__ == "__main__":
    worker, config = worker_of(sys.argv[1])
    runners = list(by_runner(worker, config, sys.argv[2]))
    found = {
        "version": vllm.__version__,
        "updates": [updates for updates, _ in runners],
        "allowed": [allowed for _, allowed in runners],
        "picked": [picked_for(json.loads(arguments)) for arguments in sys.argv[3:]],
        "damaged": worker.receive_file(f"{sys.argv[2]}/v00000001", "0" * 32, 7),
        "quantised": steps_of_quantised(worker, breaks=False),
        "quantised, broken off": steps_of_quantised(worker, breaks=True),
    }
    print("FOUND", json.dumps(found))
