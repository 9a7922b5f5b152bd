"""The GPUs that a launch names are split between generation and training. No GPU is needed to say how."""

import pytest
from test_plan import planned

from trinity_compat.errors import UserError
from trinity_compat.gpus import engine_count
from trinity_compat.runtime.split import split_gpus
from trinity_compat.verl_config import compose_pinned

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
TP, SP = f"{ROLLOUT}.tensor_model_parallel_size", f"{ACTOR}.ulysses_sequence_parallel_size"
ENGINES = "explorer.rollout_model.engine_num"


def gpus(*words, sets=(), **options):
    """((trainer's nodes, GPUs of one), (rollout's …), tensor parallel size, ulysses size)."""
    verl = planned(*words, sets=sets, device="cuda", **options).spec.verl
    rollout, trainer = verl["actor_rollout_ref"]["rollout"], verl["trainer"]
    return (
        (trainer["nnodes"], trainer["n_gpus_per_node"]),
        (rollout["nnodes"], rollout["n_gpus_per_node"]),
        rollout["tensor_model_parallel_size"],
        verl["actor_rollout_ref"]["actor"]["ulysses_sequence_parallel_size"],
    )


@pytest.mark.parametrize(
    ("words", "sets", "split"),
    [
        (["trainer.n_gpus_per_node=8"], [], ((1, 4), (1, 4), 1, 1)),
        (["trainer.n_gpus_per_node=8", f"{TP}=2"], [], ((1, 4), (1, 4), 2, 1)),
        (["trainer.n_gpus_per_node=8", f"{TP}=8"], [], ((1, 4), (1, 4), 4, 1)),  # 8 would leave none
        (["trainer.n_gpus_per_node=8", f"{SP}=8"], [], ((1, 4), (1, 4), 1, 4)),
        (["trainer.n_gpus_per_node=8", "trainer.nnodes=4"], [], ((2, 8), (1, 16), 1, 1)),
        (["trainer.n_gpus_per_node=8"], [f"{ENGINES}=6"], ((1, 2), (1, 6), 1, 1)),
        (["trainer.n_gpus_per_node=8"], ["trainer.n_gpus_per_node=4"], ((1, 2), (1, 2), 1, 1)),
        (["trainer.n_gpus_per_node=1"], [f"{ENGINES}=2"], ((1, 1), (0, 1), 1, 1)),
        (["trainer.n_gpus_per_node=1"], [], ((1, 1), (0, 1), 1, 1)),  # one GPU: both take turns
    ],
)
def test_the_launch_s_gpus_are_split(words, sets, split):
    assert gpus(*words, sets=tuple(sets)) == split


def test_several_explorers_share_the_engines():
    assert gpus("trainer.n_gpus_per_node=8", explorers=2)[1] == (1, 2)
    with pytest.raises(UserError, match="the explorers' 4 GPUs hold 4 engine"):
        gpus("trainer.n_gpus_per_node=8", explorers=5)


def test_a_cpu_splits_nothing_and_has_the_engines_that_it_is_told_to():
    words = ("trainer.n_gpus_per_node=8", "trainer.nnodes=2")
    assert planned(*words).spec.verl["actor_rollout_ref"]["rollout"]["nnodes"] == 0
    made = planned(*words, sets=(f"{ENGINES}=4",), explorers=2)
    assert engine_count(made.spec.verl["actor_rollout_ref"]["rollout"], "cpu") == 2
    with pytest.raises(UserError, match="engine_num=1: each of --explorers 2 needs one"):
        planned(*words, sets=(f"{ENGINES}=1",), explorers=2)


def test_gpus_of_the_rollout_s_own_stay():
    verl = compose_pinned({f"{ROLLOUT}.nnodes": 1, f"{ROLLOUT}.n_gpus_per_node": 2})
    assert split_gpus(verl, {}, mode="both", explorers=1, device="cuda") == []
    assert verl["trainer"]["n_gpus_per_node"] == 8


def test_the_split_is_told_and_what_was_lowered_for_it():
    notes = "\n".join(planned("trainer.n_gpus_per_node=8", f"{TP}=8", f"{SP}=8", device="cuda").notes)
    assert "8 GPUs = 4 for generation (1 engine(s) of 4) + 4 for training; --set" in notes
    assert "rollout.tensor_model_parallel_size = 4: the explorer's share" in notes
    assert "actor.ulysses_sequence_parallel_size = 4: the trainer's share" in notes


def test_a_split_that_cannot_run_is_refused_with_those_that_can():
    with pytest.raises(UserError, match="leave none for the trainer") as error:
        gpus("trainer.n_gpus_per_node=8", sets=(f"{ENGINES}=8",))
    assert "N may be 4, 6, 7" in error.value.hint


def test_a_megatron_model_that_fills_all_gpus_is_refused():
    given = {
        f"{ACTOR}.strategy": "megatron",
        f"{ACTOR}.megatron.tensor_model_parallel_size": 8,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        "trainer.n_gpus_per_node": 8,
    }
    verl = compose_pinned(given, "ppo_megatron_trainer")
    with pytest.raises(
        UserError, match=r"8 GPUs, 4 of them for the explorer: .* no whole groups of 8"
    ) as error:
        split_gpus(verl, {}, mode="both", explorers=1, device="cuda")
    assert "more GPUs, smaller parallel sizes" in error.value.hint
