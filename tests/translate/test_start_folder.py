"""Relative paths of a launch that starts in another folder than the one its script is read for."""

import os
from pathlib import Path

import pytest

from trinity_compat.common.nested import value_at
from trinity_compat.launch import read_script
from trinity_compat.run import dry_run
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.script import run_launch
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch
from trinity_compat.translate.verl_from_trinity import to_verl

PPO = """
{before}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=8 \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.project_name=p trainer.experiment_name=e {words}
"""
SFT = """
{before}
torchrun --nproc_per_node=1 -m verl.trainer.sft_trainer data.train_batch_size=8 \\
  data.micro_batch_size_per_gpu=4 trainer.project_name=p trainer.experiment_name=e {words}
"""
REWARD, JOB = "reward.custom_reward_function.path", "trainer.default_local_dir"
MODEL, FILES = "actor_rollout_ref.model.path", "data.train_files"


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    (tmp_path / "sub" / "models" / "m").mkdir(parents=True)
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(before, words, form=PPO, env=None, script="run.sh"):
    Path(script).write_text(form.format(before=before, words=words))
    return read_script(script, cwd=".", env=env or {}).launches[0]


def translated(before, words, form=PPO, **options):
    return translate_launch(read(before, words, form), TranslateOptions(**options))


@pytest.mark.parametrize(
    "before, key, given, written",
    [
        ("cd sub", REWARD, "./rew.py", "sub/rew.py"),
        ("cd sub", REWARD, "a/rew.py", "sub/a/rew.py"),
        ("cd sub", REWARD, "../rew.py", "rew.py"),
        ("cd sub", REWARD, "/r/rew.py", "/r/rew.py"),
        ("cd sub", REWARD, "pkg://a.b", "pkg://a.b"),
        ("cd sub; cd ..", REWARD, "./rew.py", "./rew.py"),
        ('cd "$(dirname "$0")/sub"', REWARD, "rew.py", "sub/rew.py"),
        ("pushd sub", REWARD, "rew.py", "sub/rew.py"),
        ("cd /n/cluster", REWARD, "rew.py", "/n/cluster/rew.py"),
        ("cd nowhere", REWARD, "rew.py", "rew.py"),  # bash stays where it is
        ("cd sub", MODEL, "models/m", "sub/models/m"),
        ("cd sub", MODEL, "models/x", "models/x"),  # a name of the hub
        ("cd sub", FILES, "[a.parquet,/b.parquet]", ["sub/a.parquet", "/b.parquet"]),
        ("cd sub", "actor_rollout_ref.rollout.agent.agent_loop_config_path", "a.yaml", "sub/a.yaml"),
        ("cd $(cmd)", REWARD, "rew.py", "rew.py"),  # where that is, only a run knows
    ],
)
def test_a_path_is_written_as_the_readers_folder_sees_it(before, key, given, written):
    made, _ = translated(before, f"{key}={given}")
    assert to_verl(made.config)[key] == written


@pytest.mark.parametrize(
    "words, root",
    [
        ("", "./sub/checkpoints"),
        (f"{JOB}=./ck", "./sub/ck"),
        (f"{JOB}=../ck/p/e", "./ck"),
        (f"{JOB}=ck/$RUN", "./sub/ck/${oc.env:RUN,''}"),
        (f"{JOB}=${{CK:-ck}}/x", "./sub/ck/x"),  # CK=/ck would have no folder before it
        (f"{JOB}=${{CK:-/ck}}/x", "${oc.env:CK,/ck}/x"),
    ],
)
def test_the_job_is_where_the_run_has_it(words, root):
    made, _ = translated("cd sub", words)
    assert value_at(made.config, "checkpoint_root_dir") == root


def test_a_supervised_launch_has_its_files_and_its_job_there():
    made, _ = translated("cd sub", "data.train_files=t.parquet model.path=./m", SFT)
    assert value_at(made.config, "buffer.trainer_input.experience_buffer.path") == "sub/t.parquet"
    assert value_at(made.config, "model.model_path") == "sub/m"
    assert value_at(made.config, "checkpoint_root_dir").startswith("sub/checkpoints")


def plan_of(source, options):
    plan = make_plan(source.config, options, cwd=Path.cwd(), device="cuda")
    return plan.job.root, plan.spec.verl


def test_the_run_the_dry_run_and_the_yaml_are_one_job(folders, monkeypatch):
    """The script's own ``cd`` depends on a variable whose default is another folder."""
    launch = read("cd ${WHERE:-jobs}", f"{REWARD}=./rew.py", env={"WHERE": "sub"})
    monkeypatch.setenv("WHERE", "sub")
    _, text = translate_launch(launch, TranslateOptions())
    Path("x.yaml").write_text(text)
    job, verl = plan_of(from_yaml(Path("x.yaml")), RunOptions(dry_run=True))
    ((source, options),) = dry_run.sources("run.sh", (), RunOptions(dry_run=True))
    assert (job, verl) == plan_of(source, options)
    assert job == folders / "sub/checkpoints/p/e"
    assert value_at(verl, REWARD) == "sub/rew.py"

    script = str(folders / "run.sh")
    call = ScriptCall(script, (), RunOptions(), str(folders), dict(os.environ))
    words = tuple(word.text for word in launch.arguments)
    monkeypatch.chdir("sub")
    found = run_launch.in_its_folder(Invocation(launch.module, words))
    root, run = plan_of(*source_of(found, call))
    assert root == job
    assert value_at(run, REWARD) == "./rew.py"  # the run is there
