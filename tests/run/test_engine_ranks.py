"""Data-parallel ranks of each training engine, as its own ``get_data_parallel_size`` counts them."""

import pytest
from test_gpu_split import ACTOR, SP, gpus
from toy_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.common.training_engines import NAMES, engine_of
from trinity_compat.run.job_dir.export import to_hf
from trinity_compat.run.plan.gpu_split import groups_fitted
from trinity_compat.run.plan.verl_view import REF, VerlView
from trinity_compat.synchronizer.shards import load_fsdp_state_dict_from_verl_checkpoint
from trinity_compat.verl_config import compose_pinned

TURBO = f"{ACTOR}.fsdp_config.turbo_config.distributed"
GPUS = {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 8}


def view(strategy, settings):
    return VerlView.of(compose_pinned({f"{ACTOR}.strategy": strategy, **GPUS, **settings}))


@pytest.mark.parametrize(
    ("strategy", "settings", "ranks"),
    [
        ("fsdp", {}, 16),
        ("fsdp", {SP: 2}, 8),
        # FSDPActorConfig takes the engine's own size where the actor's is 1.
        ("fsdp2", {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, 4),
        ("fsdp2", {SP: 2, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 4}, 8),
        ("fsdp_turbo", {f"{TURBO}.ulysses_parallel_size": 2, SP: 4}, 8),
        (
            "veomni",
            {f"{ACTOR}.veomni.ulysses_parallel_size": 4, f"{ACTOR}.veomni.expert_parallel_size": 8},
            4,
        ),
        (
            "torchtitan",
            {f"{ACTOR}.torchtitan.tensor_parallel_size": 2, f"{ACTOR}.torchtitan.context_parallel_size": 2},
            4,
        ),
        ("automodel", {f"{ACTOR}.automodel.tp_size": 2, f"{ACTOR}.automodel.cp_size": 4}, 2),
        (
            "megatron",
            {
                f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
                f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
                f"{ACTOR}.megatron.context_parallel_size": 2,
            },
            2,
        ),
        # Every rank has every row then: its dispatch has one part.
        ("megatron", {f"{ACTOR}.megatron.dynamic_context_parallel": True}, 1),
        ("an_engine_of_the_users", {SP: 4}, 16),
    ],
)
def test_each_engine_counts_its_ranks_by_its_own_sizes(strategy, settings, ranks):
    assert view(strategy, settings).ranks(ACTOR) == ranks


def test_every_engine_of_verl_is_listed():
    from verl.workers.engine import EngineRegistry

    registered = {name for kind in EngineRegistry._engines.values() for name in kind}
    assert registered <= {*NAMES}
    assert {"fsdp", "fsdp2", "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel"} == {*NAMES}


def test_an_unknown_engine_has_fsdp_s_section_and_no_sizes():
    engine = engine_of("mine")
    assert (engine.is_known, engine.section, engine.shared) == (False, "fsdp_config", ())
    assert engine_of(None) is engine_of("fsdp")


def test_ulysses_size_of_fsdp_s_own_section_is_halved_as_the_actor_s():
    key = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
    given = ["trainer.n_gpus_per_node=8", f"{key}=8"]
    verl = planned(*given, device="cuda", mode="both").spec.verl
    assert verl["actor_rollout_ref"]["actor"]["fsdp_config"]["ulysses_sequence_parallel_size"] == 4
    assert gpus(*given, mode="both")[:2] == ((1, 4), (1, 4))


@pytest.mark.parametrize(
    ("strategy", "settings", "gpus", "fitted"),
    [
        ("torchtitan", {"data_parallel_shard_size": 8}, 4, {"data_parallel_shard_size": 4}),
        (
            "torchtitan",
            {"data_parallel_shard_size": 2, "tensor_parallel_size": 2, "data_parallel_replicate_size": 2},
            4,
            {"data_parallel_shard_size": 1},
        ),
        ("torchtitan", {"data_parallel_shard_size": 4}, 4, {}),
        ("veomni", {"expert_parallel_size": 8}, 4, {"expert_parallel_size": 4}),
        ("veomni", {"expert_parallel_size": 2}, 4, {}),
    ],
)
def test_groups_that_split_weights_are_as_large_as_the_trainer_holds(strategy, settings, gpus, fitted):
    told = {f"{role}.{strategy}.{name}": size for role in (ACTOR, REF) for name, size in settings.items()}
    given = view(strategy, {**told, "trainer.nnodes": 1, "trainer.n_gpus_per_node": gpus})
    made, lines = groups_fitted(given)
    for role in (ACTOR, REF):
        for name, size in {**settings, **fitted}.items():
            assert made.size(f"{role}.{strategy}.{name}") == size
    assert len(lines) == 2 * len(fitted)
    assert all(f"{strategy}.{name} = {size}, not" in lines[0] for name, size in fitted.items())


def test_a_checkpoint_that_verl_s_merger_does_not_read_is_refused_by_its_engine(tmp_path):
    (tmp_path / "config").mkdir()
    planned("model_engine=torchtitan", device="cuda").spec.save(tmp_path / "config" / "run.json")
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    with pytest.raises(UserError, match="does not read checkpoints of strategy=torchtitan"):
        to_hf(tmp_path, step=2, out=None)


def test_a_folder_of_torchtitan_s_is_named_where_shards_of_fsdp_are_sought(tmp_path):
    (tmp_path / "step-2").mkdir()
    with pytest.raises(UserError, match="holds no shards of an FSDP checkpoint") as caught:
        load_fsdp_state_dict_from_verl_checkpoint(tmp_path)
    assert "torchtitan's checkpoint" in caught.value.hint
