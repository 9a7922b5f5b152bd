"""vLLM's own models and loaders, one process for each kind of model: what of a trainer's weights arrives.

Arguments: the model's folder, and one to write in. Prints JSON.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

from trinity_compat.plugins.vllm_weights import WeightReceiver
from trinity_compat.synchronizer.engine_dtypes import merged, pattern, rounded
from trinity_compat.synchronizer.transports.files import write_file


def worker_of(config):
    worker = WeightReceiver(vllm_config=config)
    model = get_model(vllm_config=config)
    worker.rank = worker.local_rank = 0
    worker.device = torch.device("cpu")
    worker.model_runner = SimpleNamespace(model=model, get_model=lambda: model, vllm_config=config)
    return worker


def state(worker):
    named = worker.model_runner.get_model().state_dict().items()
    return {name: tensor.double() for name, tensor in named if tensor.numel()}


def loaded(worker, folder, version, tensors):
    """The model after a version, from parameters of zeros; and the version's number of bytes."""
    for parameter in worker.model_runner.get_model().parameters():
        parameter.data.zero_()
    worker.forget_held()  # else the worker finds out that its weights were changed
    file = write_file(folder, version, tensors)
    answer = worker.receive_file(file.path, file.digest, file.nbytes)
    assert "tensors" in answer, answer
    return state(worker), file.nbytes


def different(left, right):
    return sorted(name for name in left if not torch.equal(left[name], right[name]))


def main(folder, scratch):
    arguments = EngineArgs(model=folder, dtype="bfloat16", skip_tokenizer_init=True, enforce_eager=True)
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{scratch}/store", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        worker = worker_of(config)
        at_start, wanted = dict(worker.dtypes()), state(worker)
        trained = dict(
            pair for path in Path(folder).glob("*.safetensors") for pair in load_file(path).items()
        )
        first, whole = loaded(worker, scratch, 1, trained.items())
        dtypes = merged([worker.dtypes()])
        found, sent = loaded(worker, scratch, 2, (rounded(named, dtypes) for named in trained.items()))
    exact = [
        name for name in trained.keys() & found.keys() if torch.equal(found[name], trained[name].double())
    ]
    return {
        "at start": at_start,
        "dtypes": dtypes,
        "apart": different(found, wanted),
        "apart from stock's": different(found, first),
        "exact": sorted({pattern(name) for name in exact}),
        "share": sent / whole,
    }


if __name__ == "__main__":
    print("FOUND", json.dumps(main(*sys.argv[1:])))
