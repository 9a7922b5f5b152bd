import pytest
from toy_job import HERE

from trinity_compat.job.run_spec import RunSpec, SyncSpec

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def plain():
    """veRL's configuration of the toy, composed once."""
    from pathlib import Path

    from toy_job import verl_config

    return verl_config(Path("/nowhere/toy"), HERE)


def config(plain, *, resume=True, mode="both", device="cpu", offloads=False, handover="files", **values):
    from omegaconf import OmegaConf

    from trinity_compat.trainer.config import trainer_config

    verl = OmegaConf.create(plain)
    for key, value in values.items():
        OmegaConf.update(verl, key.replace("__", "."), value, force_add=True)
    sync = SyncSpec(directory="/dev/shm/x")
    verl = OmegaConf.to_container(verl)
    spec = RunSpec("", "", verl, 1, None, sync, device, mode, offloads, handover, resume=resume)
    return trainer_config(spec)


def test_every_rank_writes_into_the_run_s_folder_of_weights(plain):
    transport = config(plain).actor_rollout_ref.rollout.checkpoint_engine
    told = {"directory": "/dev/shm/x", "recycle": True, "shared": True}
    assert dict(transport.engine_kwargs[transport.backend]) == told
    on_devices = config(plain, handover="device").actor_rollout_ref.rollout.checkpoint_engine
    assert on_devices.backend == "trinity_device" != transport.backend
    assert dict(on_devices.engine_kwargs[on_devices.backend]) == told  # what fails there is written


def test_a_job_that_must_not_resume_does_not(plain):
    assert config(plain).trainer.resume_mode == "auto"
    assert config(plain, resume=False).trainer.resume_mode == "disable"


def test_one_that_is_started_again_goes_on_from_its_own_run_s_checkpoint(plain, monkeypatch):
    monkeypatch.setenv("TRINITY_COMPAT_OWN_CHECKPOINT", "1")
    assert config(plain, resume=False).trainer.resume_mode == "auto"


def test_lora_is_merged_where_versions_are_whole_models_and_only_there(plain):
    def merges(**more):
        return bool(config(plain, **more).actor_rollout_ref.model.lora.get("merge"))

    rank = {"actor_rollout_ref__model__lora_rank": 8}
    assert [merges(), merges(**rank)] == [False, False]
    assert merges(**rank, actor_rollout_ref__rollout__quantization="fp8")


def test_what_else_a_launch_says_of_its_lora_is_kept_where_it_is_merged():
    from omegaconf import OmegaConf

    from trinity_compat.trainer.config import hand_over_whole

    for lora, kept in (({"rank": 8}, {"rank": 8, "merge": True}), (None, {"merge": True})):
        told = OmegaConf.create({"actor_rollout_ref": {"model": {"lora": lora}}})
        hand_over_whole(told)
        assert told.actor_rollout_ref.model.lora == kept


def test_the_callers_configuration_is_left_as_it_was(plain):
    before = plain["trainer"]["use_v1"]
    assert config(plain).trainer.use_v1 is False
    assert plain["trainer"]["use_v1"] is before is True


def test_a_distilled_run_has_its_loss_but_neither_servers_nor_gpus_of_its_teachers(plain):
    from verl.trainer.ppo.utils import Role, need_teacher_policy

    from trinity_compat.trainer.verl_v0.adapter import _Roles

    pool = {"distillation__n_gpus_per_node": 4, "distillation__nnodes": 2}
    made = config(plain, distillation__enabled=True, **pool)
    assert need_teacher_policy(made)
    assert (made.distillation.n_gpus_per_node, made.distillation.nnodes) == (4, 2)  # as workers check them
    _, pools, _ = _Roles().build(made, "cpu")
    assert list(pools.resource_pool_spec) == ["global_pool"]
    assert pools.mapping[Role.TeacherModel] == "global_pool"


def test_a_pool_of_no_gpus_is_refused_in_verls_words(plain):
    from trinity_compat.trainer.verl_v0.adapter import _Roles

    with pytest.raises(ValueError, match=r"distillation\.nnodes must be greater than 0"):
        _Roles().build(config(plain, distillation__enabled=True), "cpu")


def test_a_trainer_that_has_no_room_beside_the_engines_offloads_every_model(plain):
    offload = {"param_offload": False, "optimizer_offload": False}
    made = {"mode": "colocate", "device": "cuda", "actor_rollout_ref__actor__megatron": offload}
    shared = config(plain, offloads=True, **made)
    for section in (
        shared.actor_rollout_ref.actor.megatron,
        shared.actor_rollout_ref.actor.fsdp_config,
        shared.actor_rollout_ref.ref.fsdp_config,
        shared.critic.fsdp,
    ):
        assert section.param_offload
        assert section.optimizer_offload


@pytest.mark.parametrize("mode", ["both", "colocate"])
def test_another_offloads_as_the_launch_says(plain, mode):
    only = {"actor_rollout_ref__actor__fsdp_config__optimizer_offload": True}
    own = config(plain, mode=mode, device="cuda", **only).actor_rollout_ref.actor.fsdp_config
    assert (own.param_offload, own.optimizer_offload) == (False, True)


@pytest.mark.parametrize(("mode", "replays"), [("disabled", False), ("R3", True), (None, False)])
def test_the_self_test_is_left_out_where_the_rollout_s_routing_is_replayed(plain, mode, replays):
    from trinity_compat.trainer.publisher import _replays_routing

    actor = {"actor_rollout_ref__actor__strategy": "megatron"}
    if mode:
        actor["actor_rollout_ref__actor__megatron__router_replay__mode"] = mode
    assert _replays_routing(config(plain, **actor)) is replays
