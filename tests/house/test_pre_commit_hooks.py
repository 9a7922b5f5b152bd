"""The hooks of .pre-commit-hooks.yaml: pre-commit calls each entry with the names of the changed files."""

import shlex
from pathlib import Path

import pytest
import yaml

from trinity_compat.cli import main

ROOT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
NEW = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
OLD = """python3 -m verl.trainer.main_ppo data.train_files=t.parquet data.val_files=v.parquet \\
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm \\
    +actor_rollout_ref.rollout.swap_space=4 \\
    reward_model.reward_manager=dapo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
"""


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_passes_todays_script_and_fails_an_old_one(hook, tmp_path, capsys):
    old = tmp_path / "old.sh"
    old.write_text(OLD)
    program, *words = shlex.split(hook["entry"])
    assert program == "trinity-compat"
    for script, code in ((NEW, 0), (old, 1)):
        with pytest.raises(SystemExit) as ended:
            main([*words, str(script)])
        assert (ended.value.code or 0) == code, capsys.readouterr()
