"""What a run on this machine would end with, as a dry run tells the page Start."""

import pytest

from trinity_compat.run import dry_run
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.dry_run import Blocker
from trinity_compat.run.plan.source import RunOptions

SCRIPT = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/no/t.parquet \\
  data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8 trainer.logger=wandb \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """One without GPU and key, whose veRL takes every configuration."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())


def blockers(tmp_path, text=SCRIPT, **options):
    (tmp_path / "run.sh").write_text(text)
    (found,) = dry_run.launches("run.sh", (), RunOptions(dry_run=True, **options))
    return list(found.blockers)


def test_missing_data_gpus_and_keys_are_blockers(tmp_path):
    data, gpus, key = blockers(tmp_path)
    assert data == Blocker("run.sh:1: data.train_files: /no/t.parquet does not exist")
    assert gpus.message == "the launch is for 8 GPUs, and none is here"
    assert gpus.fix == "--device cpu trains it on the CPU"
    assert "no API key is set" in key.message and "WANDB_MODE=offline" in key.fix


def test_a_cpu_that_was_asked_for_and_a_key_of_the_script_are_none(tmp_path):
    (data,) = blockers(tmp_path, f"export WANDB_MODE=offline\n{SCRIPT}", device="cpu")
    assert "does not exist" in data.message


def test_gpus_that_ray_lacks_are_a_blocker_of_a_dry_run_for_them(tmp_path):
    assert "Ray has 0" in blockers(tmp_path, device="cuda")[1].message
    assert not [each for each in blockers(tmp_path, device="cuda", gpus=8) if "GPUs" in each.message]
