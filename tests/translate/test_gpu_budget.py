"""Splits of a machine's GPUs between both sides: those that can run, and the reason why another cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinity_compat.common.errors import UserError
from trinity_compat.translate.model import Severity
from trinity_compat.translate.sections.gpus import GpuBudget

from .helpers import translated

NODES = GpuBudget(nodes=4, per_node=8, engine=2, auxiliary=0, experiences=96, sequence=2)
ONE = GpuBudget(nodes=1, per_node=8, engine=2, auxiliary=1, experiences=60, sequence=1)


@pytest.mark.parametrize(
    ("machine", "rollout", "said"),
    [
        (NODES, 8, None),  # three whole nodes train
        (NODES, 16, None),
        (NODES, 24, None),
        (NODES, 20, "the trainer's 12 GPUs are not whole nodes of 8"),
        (NODES, 0, "0 rollout GPU(s) cannot be divided into engines of 2"),
        (NODES, 3, "3 rollout GPU(s) cannot be divided into engines of 2"),
        (NODES, 32, "32 of 32 GPUs for rollout leave none for the trainer"),
        (ONE, 2, None),
        (ONE, 4, None),
        (ONE, 6, None),
        (ONE, 8, "8 of 8 GPUs for rollout leave none for the trainer"),
        (
            GpuBudget(1, 8, 1, 0, 96, 4),
            2,
            "the trainer's 6 GPUs are not whole groups of 4 for one sequence",
        ),
        (GpuBudget(1, 8, 1, 0, 64, 1), 2, "buffer.train_batch_size=64 does not divide by 6 trainer ranks"),
        (GpuBudget(1, 8, 1, 0, 3, 2), 2, None),  # three groups of two share the batch
        (GpuBudget(1, 8, 1, 0, 3, 2, every_gpu=True), 2, "=3 does not divide by 6 trainer ranks"),
        (GpuBudget(4, 8, 12, 0, 96, 1), 24, "an engine of 12 GPUs does not fill whole nodes of 8"),
        (GpuBudget(2, 8, 3, 0, 120, 1), 12, "4 engines of 3 GPUs, each on one node, do not fit on 2 of 8"),
        (GpuBudget(2, 8, 2, 0, 96, 1), 4, "the trainer's 12 GPUs are not whole nodes of 8"),
        (GpuBudget(2, 8, 2, 0, 96, 1, spread=True), 4, None),  # six of each node
        (GpuBudget(2, 8, 3, 0, 96, 1, spread=True), 4, "cannot be divided into engines of 3"),
    ],
)
def test_a_split_runs_or_says_what_does_not_fit(machine, rollout, said):
    fault = machine.fault(rollout)
    assert fault is None if said is None else said in fault


def test_the_choices_are_all_splits_that_run_and_the_nearest_half_is_one_of_them():
    assert NODES.choices() == [8, 16, 24, 26, 28, 30]
    assert ONE.choices() == [2, 4, 6]
    assert ONE.nearest_half([2, 4, 6]) == 4
    assert NODES.nearest_half([8, 24]) == 24  # of two the larger


machines = st.builds(
    GpuBudget,
    nodes=st.integers(1, 4), per_node=st.integers(1, 8), engine=st.sampled_from([1, 2, 4, 8]),
    auxiliary=st.integers(0, 2), experiences=st.integers(1, 4096), sequence=st.sampled_from([1, 2, 4]),
)  # fmt: skip


@given(machines)
def test_every_offered_split_is_one_that_upstream_takes(machine):
    for rollout in machine.choices():
        trainer = machine.total - rollout - machine.auxiliary
        assert rollout % machine.engine == 0 and trainer >= 1
        assert machine.experiences % (trainer // machine.sequence) == 0
        assert trainer <= machine.per_node or trainer % machine.per_node == 0


def test_of_two_splits_as_near_to_a_half_the_explorer_gets_more():
    machine = GpuBudget(nodes=1, per_node=8, engine=1, auxiliary=0, experiences=15, sequence=1)
    assert machine.choices() == [3, 5, 7]  # 15 experiences divide by 5, 3 and 1 trainer ranks
    assert machine.nearest_half(machine.choices()) == 5


def test_a_split_that_cannot_run_is_refused_with_those_that_can():
    with pytest.raises(UserError) as error:
        translated("actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
                   rollout_gpus=2)  # fmt: skip
    assert "2048 does not divide" in str(error.value)
    assert "numbers that can run: 4, 6" in str(error.value)


@pytest.mark.parametrize(
    ("size", "run_takes_fewer"), [("data_parallel_size", True), ("pipeline_model_parallel_size", False)]
)
def test_an_engine_that_needs_every_gpu_leaves_none_to_train_and_the_comment_says_so(size, run_takes_fewer):
    """As in veRL's run_qwen3_30b_veomni.sh: the engine's ranks are eight, the tensor parallel size is one."""
    made, _ = translated(
        "trainer.n_gpus_per_node=8",
        f"actor_rollout_ref.rollout.{size}=8",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    )
    note = made.provenance["explorer.rollout_model.engine_num"]
    assert note.startswith("an engine of 8 on 8 GPUs leaves no GPU for training (TW004)")
    assert ("`trinity-compat run` takes fewer for generation" in note) is run_takes_fewer
    (caution,) = [each for each in made.warnings if each.code == "TW004"]
    assert "8 of 8 GPUs for rollout leave none for the trainer" in caution.message
    assert size in caution.hint and "batch size" not in caution.hint


@pytest.mark.parametrize(
    ("words", "options", "status"),
    [
        ((), {}, "derived"),
        ((), {"sync_offset": 1}, "approximated"),
        # An engine is on one machine: a run halves it too.
        (("trainer.n_gpus_per_node=4", "trainer.nnodes=2"), {}, "approximated"),
    ],
)
def test_a_size_that_only_the_split_lowers_is_the_same_in_turns(words, options, status):
    sizes = {"rollout.tensor_model_parallel_size": 8, "actor.ulysses_sequence_parallel_size": 8}
    keys = {f"actor_rollout_ref.{name}": size for name, size in sizes.items()}
    given = ["trainer.n_gpus_per_node=8", *(f"{key}={size}" for key, size in keys.items()), *words]
    made, config = translated("actor_rollout_ref.model.use_remove_padding=True", *given, **options)
    assert config["explorer"]["rollout_model"]["tensor_parallel_size"] == 4
    width, sequence = (next(each for each in made.findings if each.key == key) for key in keys)
    assert width.status.value == status
    assert sequence.status.value == ("approximated" if options else "derived")  # its ranks span machines
    told = [each for each in made.warnings if each.code == "TW004" and "lowered from 8" in each.message]
    assert len(told) == 2
    for each in told:
        kept = "colocates both on all 8 GPUs, as veRL does, and keeps 8" in each.message
        assert kept == (each.rank is Severity.NOTE)
        assert kept == (status == "derived" or ("ulysses" in each.message and not options))
