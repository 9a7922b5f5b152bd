"""The audit never promises what a run refuses: both read the same list."""

import re
from pathlib import Path

import pytest

from trinity_compat.audit import AuditOptions
from trinity_compat.audit.collect import audit_launch
from trinity_compat.common.errors import UserError
from trinity_compat.job.vllm_arguments import SECTION
from trinity_compat.launch import read_argv
from trinity_compat.run.plan import refusals
from trinity_compat.translate import Status, to_verl, translate_launch
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.run_refusals import GONE
from trinity_compat.translate.run_refusals import refusals as every_refusal
from trinity_compat.verl_config import compose_pinned

PAGE = Path(__file__).parents[2] / "docs" / "starts.md"
ROLLOUT = "actor_rollout_ref.rollout"
GIVEN = ["actor_rollout_ref.model.path=org/m", "data.train_files=/d/t.parquet", "data.val_files=/d/v.parquet"]


@pytest.mark.parametrize(
    "word",
    [
        f"{ROLLOUT}.name=lmdeploy",
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
    translation, _ = translate_launch(launch, TranslateOptions())
    verl = compose_pinned(to_verl(translation.config))
    with pytest.raises(UserError, match="cannot be run decoupled"):
        refusals.check(verl, {}, cwd=tmp_path)
    key = word.lstrip("+").partition("=")[0]
    (found,) = [f for f in audit_launch(launch, AuditOptions()).findings if f.key == key]
    assert found.status is not Status.UNSUPPORTED_UPSTREAM
    assert "trinity-compat refuses it" in found.reason


def test_the_page_has_three_keys_that_verl_carries_out_and_names_every_other():
    text = PAGE.read_text()
    below = text[text.index("## Keys that a run refuses") :].split("\n## ")[0]
    assert len(re.findall(r"^\| `", below, re.MULTILINE)) == 3
    asked = {refusal.key for refusal in every_refusal(lambda key: "something")} | set(GONE)
    keys = {key for key in asked if not key.startswith(SECTION)}  # vLLM's own arguments have a sentence
    assert len(keys) >= 13 and "an argument of vLLM that the explorer sets" in below
    for key in keys:
        assert key.rpartition(".")[2] in below or ".".join(key.split(".")[-2:]) in below, key
