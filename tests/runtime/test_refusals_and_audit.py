"""The audit never promises what a run refuses: both read the same list."""

import pytest

from trinity_compat.audit import AuditOptions
from trinity_compat.audit.collect import audit_launch
from trinity_compat.errors import UserError
from trinity_compat.launch import read_argv
from trinity_compat.runtime.plan import refusals
from trinity_compat.translate import Status, to_verl, translate_launch
from trinity_compat.translate.options import Options
from trinity_compat.verl_config import compose_pinned

ROLLOUT = "actor_rollout_ref.rollout"
GIVEN = ["actor_rollout_ref.model.path=org/m", "data.train_files=/d/t.parquet", "data.val_files=/d/v.parquet"]


@pytest.mark.parametrize(
    "word",
    [
        f"{ROLLOUT}.name=lmdeploy",
        "distillation.enabled=True",
        f"+{ROLLOUT}.quantization=torchao",
        f"{ROLLOUT}.enable_rollout_routing_replay=True",
        f"{ROLLOUT}.expert_parallel_size=3",
        f"{ROLLOUT}.pipeline_model_parallel_size=2",
        "reward.reward_manager.name=collabllm",
        f"+{ROLLOUT}.agent.agent_loop_manager_class=mine.M",
        f"++{ROLLOUT}.qat.enable=True",
        f"+{ROLLOUT}.engine_kwargs.vllm.worker_cls=mine.W",
        "actor_rollout_ref.actor.fsdp_config.qat.enable=True",
    ],
)
def test_what_a_run_refuses_the_audit_does_not_promise(tmp_path, word):
    names = [] if word.startswith(f"{ROLLOUT}.name") else [f"{ROLLOUT}.name=vllm"]
    launch = read_argv(["python3", "-m", "verl.trainer.main_ppo", *GIVEN, *names, word]).launches[0]
    translation, _ = translate_launch(launch, Options())
    verl = compose_pinned(to_verl(translation.config))
    with pytest.raises(UserError, match="cannot be run decoupled"):
        refusals.check(verl, {}, cwd=tmp_path)
    key = word.lstrip("+").partition("=")[0]
    (found,) = [f for f in audit_launch(launch, AuditOptions()).findings if f.key == key]
    assert found.status is not Status.UNSUPPORTED_UPSTREAM
    assert "our runtime refuses it" in found.reason or "our own runtime refuses it" in found.reason
