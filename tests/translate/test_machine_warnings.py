"""Lines of a script that disagree on its machines and GPUs are named, both of them."""

import pytest

from trinity_compat.translate import TranslateOptions, translate_launch
from trinity_compat.translate.model import Severity
from trinity_compat.translate.translator import translate_partially
from trinity_compat.verl_config.effective import effective_config

from .helpers import BASICS, script

TRAIN = f"python3 -m verl.trainer.main_ppo {' '.join(BASICS)} algorithm.adv_estimator=grpo"
EIGHT = f"{TRAIN} actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8"
FOUR = EIGHT.replace("node=8", "node=4")
HOSTS = '$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
HEAD = "srun -N1 -n1 -w a ray start --head --num-gpus 8 --block &"
WORKERS = "srun -N1 -n1 -w b ray start --address=a:6379 --num-gpus 8 --block &"


def said(*lines, **known):
    """The warnings of a script's only launch."""
    launch = script("\n".join(["#!/bin/bash", *lines]), **known)
    translation = translate_partially(effective_config(launch), TranslateOptions()).translation
    return [caution for caution in translation.warnings if caution.code == "TW032"]


def messages(*lines, **known):
    return [caution.message for caution in said(*lines, **known)]


@pytest.mark.parametrize(
    ("directive", "asked", "does"),
    [
        ("#SBATCH --nodes=4", 2, "the others stay idle"),
        ("#SBATCH -N 2", 4, "veRL waits for the others, or ends"),
        ("#PBS -l select=2:ncpus=64:ngpus=8", 4, "veRL waits for the others, or ends"),
        ("#PBS -l nodes=4:ppn=8", 2, "the others stay idle"),
    ],
)
def test_machines_of_the_job_and_of_the_launch(directive, asked, does):
    (found,) = said(directive, f"{EIGHT} trainer.nnodes={asked}")
    assert found.rank is Severity.DECIDE and found.where.line == 3
    assert found.message.startswith(f"trainer.nnodes={asked}, and the job has ")
    assert "(run.sh:2)" in found.message and found.message.endswith(does)
    assert found.hint.startswith("write trainer.nnodes=")


def test_a_default_is_named_as_one():
    (found,) = messages("#SBATCH --nodes=2", EIGHT)
    assert found.startswith("trainer.nnodes=1 (default of verl 0.9.1), and the job has 2 machine(s)")


@pytest.mark.parametrize(
    "directives",
    ["--gres=gpu:4", "--gpus-per-node=a100:4", "-N1 -G 4", "--ntasks-per-node=4 --gpus-per-task=1"],
)
def test_gpus_of_a_machine_of_the_job(directives):
    (found,) = messages(f"#SBATCH {directives}", f"{EIGHT} trainer.nnodes=1")
    assert found.startswith("trainer.n_gpus_per_node=8, and a machine has 4 GPU(s), --")
    assert "(run.sh:2): veRL waits" in found


def test_gpus_that_ray_is_told_of_and_does_not_see():
    (found,) = said(
        "export CUDA_VISIBLE_DEVICES=0,1,2,3",
        "ray start --head --num-gpus 8",
        "unset CUDA_VISIBLE_DEVICES",
        EIGHT,
    )
    assert (
        found.where.line == 3 and "CUDA_VISIBLE_DEVICES=0,1,2,3 (run.sh:2) leaves 4 GPU(s)" in found.message
    )
    (found,) = said("#SBATCH --gres=gpu:4", "ray start --head --num-gpus=8", EIGHT)
    assert found.where.line == 3 and "--gres=gpu:4 (run.sh:2) leaves 4 GPU(s)" in found.message


def test_fewer_gpus_of_ray_than_the_launch_wants():
    (found,) = said("ray start --head --num-gpus 4", EIGHT)
    assert (
        found.where.line == 3 and "a machine has 4 GPU(s), ray start --num-gpus 4 (run.sh:2)" in found.message
    )
    (found,) = said("CUDA_VISIBLE_DEVICES=0,1 ray start --head", FOUR)
    assert "a machine has 2 GPU(s), CUDA_VISIBLE_DEVICES=0,1 (run.sh:2)" in found.message
    (found,) = said("ray start --head --num-gpus 8", "ray stop", "ray start --head --num-gpus 4", EIGHT)
    assert "ray start --num-gpus 4 (run.sh:4)" in found.message


def test_visible_gpus_of_the_launch_are_said_once():
    assert not said("export CUDA_VISIBLE_DEVICES=0,1", "ray start --head", FOUR.replace("node=4", "node=2"))
    launch = script(f"export CUDA_VISIBLE_DEVICES=0,1\nray start --head\n{FOUR}\n")
    codes = [caution.code for caution in translate_launch(launch, TranslateOptions())[0].warnings]
    assert codes.count("TW029") == 1 and "TW032" not in codes


@pytest.mark.parametrize("lines", [("#SBATCH --nodes=2", HEAD), ("ray start --head --num-gpus 8",)])
def test_ray_on_one_machine_only(lines):
    (found,) = said(*lines, f"{EIGHT} trainer.nnodes=2")
    place = f"`ray start --head` (run.sh:{len(lines) + 1})"
    assert f"starts Ray on one machine only, {place}" in found.message


@pytest.mark.parametrize(
    "lines",
    [
        ("#SBATCH --nodes=2", HEAD, WORKERS),
        ("#SBATCH --nodes=2", HEAD, "srun -n1 -w b bash worker.sh &"),
        ("#SBATCH --nodes=2", "# on the other: ray start --address=a:6379", HEAD),
        ("ray start --head", "sleep 60"),
        ("ray start --head", "until ray status | grep -q 16.0; do :; done"),
        ("ray start --head", "ssh b 'ray start --address=a:6379'"),
    ],
)
def test_machines_that_may_join(lines):
    assert not said(*lines, f"{EIGHT} trainer.nnodes=2")


@pytest.mark.parametrize(
    "lines",
    [
        (f"nodes={HOSTS}", 'for node in "$nodes"; do srun -w $node hostname; done'),
        (f'for node in "{HOSTS}"; do srun -w $node hostname; done',),
        ('nodes=$(sort -u "$PBS_NODEFILE")', 'for node in "${nodes}"; do ssh $node hostname; done'),
        ('nodes="a b c"', 'for node in "$nodes"; do ssh $node ray start --address=a:6379; done'),
        (f"nodes={HOSTS}", 'list=("$nodes")', "other=${list[1]}"),
        (f'list=("{HOSTS}")', "count=${#list[@]}"),
    ],
)
def test_a_quoted_list_of_hosts_is_one_word(lines):
    (found,) = said(*lines, EIGHT)
    assert "the quotes make one word of the list of hosts" in found.message and found.where.file == "run.sh"
    assert not said(*(line.replace('"', "") for line in lines), EIGHT)


@pytest.mark.parametrize(
    "lines",
    [
        (f"nodes={HOSTS}", 'for node in "$(echo "$nodes" | head -n 1)"; do srun -w $node hostname; done'),
        ('names="a b c"', 'for name in "$names"; do echo $name; done'),
        (f"nodes={HOSTS}", 'list=("$nodes")', "for node in ${list[@]}; do srun -w $node hostname; done"),
    ],
)
def test_quotes_that_lose_no_host(lines):
    assert not said(*lines, EIGHT)


@pytest.mark.parametrize(
    "lines",
    [
        ("#SBATCH --nodes=4", f"{EIGHT} trainer.nnodes=$NNODES"),
        ("#SBATCH --nodes=4", f"{EIGHT} trainer.nnodes=${{NNODES:-2}}"),
        ("#SBATCH --nodes=4", f"{EIGHT} trainer.nnodes=$(cat count)"),
        ("#SBATCH --nodes=2-4", f"{EIGHT} trainer.nnodes=8"),
        ("#SBATCH --job-name=x", f"{EIGHT} trainer.nnodes=2"),
        ("#SBATCH --nodes=4", f"{EIGHT} trainer.nnodes=$SLURM_NNODES"),
        ("#SBATCH --nodes=1", "#SBATCH hetjob", "#SBATCH --nodes=2", f"{EIGHT} trainer.nnodes=3"),
        ("#SBATCH --nodes=4", "#PBS -l select=2", f"{EIGHT} trainer.nnodes=3"),
        ("#PBS -l select=4:ngpus=4", f"{EIGHT} trainer.nnodes=2"),
        ("#PBS -l select=16:ngpus=1", f"{EIGHT} trainer.nnodes=2"),
        ("#PBS -l select=1:ngpus=8+3:ngpus=4", f"{EIGHT} trainer.nnodes=2"),
        ("#SBATCH --nodes=1", "ray start --address=other:6379", f"{EIGHT} trainer.nnodes=4"),
        ("#SBATCH --nodes=1", "export RAY_ADDRESS=other:6379", f"{EIGHT} trainer.nnodes=4"),
        ("#SBATCH --nodes=1", f"ray job submit -- {EIGHT} trainer.nnodes=4"),
        ("ray start --head --num-gpus $COUNT", EIGHT),
        ("#SBATCH --gres=gpu:8", "ray start --head --num-gpus $COUNT", FOUR),
        ("#SBATCH --nodes=1", "#SBATCH --array=0-3", f"{EIGHT} trainer.nnodes=4"),
        ("export CUDA_VISIBLE_DEVICES=$DEVICES", "ray start --head --num-gpus 8", EIGHT),
        ("ray start --head --num-gpus 8", f"{EIGHT} trainer.nnodes=1"),
        # the rest of the job may be for something else
        ("#SBATCH --nodes=4", "srun -w d vllm serve judge &", f"{EIGHT} trainer.nnodes=2"),
        ("#SBATCH --gres=gpu:8", "python3 judge.py &", FOUR),
        ("#SBATCH --nodes=2", f"{EIGHT} trainer.nnodes=1 &", f"{EIGHT} trainer.nnodes=1"),
        ("#SBATCH --gres=gpu:4", f"{EIGHT} trainer.device=npu"),
    ],
)
def test_nothing_is_said_of_what_is_not_known_or_agrees(lines):
    assert not said(*lines)


def test_the_users_own_number_of_nodes_counts():
    assert not said("#SBATCH --nodes=4", f"{EIGHT} trainer.nnodes=2", env={"SLURM_NNODES": "2"})
