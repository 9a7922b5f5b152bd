"""How weights travel: memory on one GPU, NCCL on several, files where an adapter is trained."""

import pytest

from .helpers import translated

RANK = "actor_rollout_ref.model.lora_rank"


@pytest.mark.parametrize(
    ("nodes", "per_node", "rank", "method"),
    [
        (1, 1, 0, "memory"),
        (1, 2, 0, "nccl"),
        (2, 1, 0, "nccl"),
        (2, 8, 0, "nccl"),
        (1, 1, 16, "checkpoint"),
        (1, 2, 16, "checkpoint"),
    ],
)
def test_the_method_follows_the_size_of_the_cluster_and_the_adapter(nodes, per_node, rank, method):
    size = (f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={per_node}", f"{RANK}={rank}")
    _, config = translated(
        *size, "data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=64"
    )
    assert config["synchronizer"]["sync_method"] == method
