"""FSDP1, what a GPU trains with unless the launch says otherwise: what it hands over and leaves on disk."""

import json

import pytest
import torch
from fsdp1_rank import go

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path_factory.mktemp("fsdp1") / "toy", ToySpec(train_rows=8, val_rows=2, warm_steps=1))


@pytest.fixture(params=[(1, 1, False), (2, 2, True)], ids=["one", "two"])
def trained(request, toy, tmp_path):
    """A folder in which every rank of a world has written; the ranks that shard; with offload or not."""
    world, group, offload = request.param
    arguments = (str(toy / "model"), str(tmp_path), world, group, offload)
    torch.multiprocessing.spawn(go, arguments, nprocs=world)
    return tmp_path


def test_its_versions_and_checkpoints_hold_the_model_that_it_trained(trained, toy):
    from safetensors.torch import load_file

    from trinity_compat.synchronizer.shards import actor_weights
    from trinity_compat.synchronizer.transports.files import WriterShare, assemble, read_file
    from trinity_compat.synchronizer.transports.safetensors_io import WeightPart

    whole = torch.load(trained / "whole.pt")
    shares = [json.loads(path.read_text()) for path in sorted(trained.glob("share-*.json"))]
    parts = [
        WriterShare(each["count"], tuple(WeightPart(**part) for part in each["parts"])) for each in shares
    ]
    version = dict(read_file(assemble(trained / "weights", 1, parts)))
    kept = actor_weights(trained / "actor")
    before = load_file(toy / "model" / "model.safetensors")
    assert set(before) <= set(version)
    for name, value in whole.items():
        name = name.replace("_fsdp_wrapped_module.", "")
        assert torch.equal(version[name], value), name
        assert torch.equal(kept[name], value), name
    assert not torch.equal(version["model.norm.weight"], before["model.norm.weight"])
