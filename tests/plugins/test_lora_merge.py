"""A model that is handed over with its adapters merged in has all of them, the root unit's own too."""

import inspect

import pytest
import torch
from lora_rank import SCALE, go

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path_factory.mktemp("lora") / "toy", ToySpec(train_rows=8, val_rows=2, warm_steps=1))


def merged(toy, folder, world, *, patched):
    """What each layer that is adapted should have been handed over as, and what it was; the engine's weights
    before and after."""
    torch.multiprocessing.spawn(go, (str(toy / "model"), str(folder), world, patched), nprocs=world)
    before, found, after = (torch.load(folder / f"{name}.pt") for name in ("before", "merged", "after"))
    pairs = {}
    for name in (name for name in before if name.endswith(".base_layer.weight")):
        layer = name.removesuffix(".base_layer.weight")
        a, b = (before[f"{layer}.lora_{part}.default.weight"].float() for part in "AB")
        wanted = before[name].float() + SCALE * b @ a
        pairs[layer] = wanted, found[f"{layer.removeprefix('base_model.model.')}.weight"].float()
    return pairs, before, after


def lacking(pairs):
    """Layers whose adapter is not in what was handed over, which is bfloat16."""
    close = {layer: torch.allclose(*pair, rtol=2**-7, atol=1e-4) for layer, pair in pairs.items()}
    return {layer.rsplit(".", 1)[1] for layer, is_close in close.items() if not is_close}


def test_stock_verl_leaves_out_the_roots_own(toy, tmp_path):
    pairs, *_ = merged(toy, tmp_path, 1, patched=False)
    assert lacking(pairs) == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize("world", [1, 2])
def test_every_adapter_is_in_it_and_the_engine_is_left_as_it_was(toy, tmp_path, world):
    pairs, before, after = merged(toy, tmp_path, world, patched=True)
    assert not lacking(pairs)
    assert len(pairs) >= 7
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_actor_s_worker_applies_it():
    from trinity_compat.trainer.training_processes import TrainingOnlyWorker

    assert "lora_merge.apply()" in inspect.getsource(TrainingOnlyWorker.init_model)
