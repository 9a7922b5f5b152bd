"""What a scheduler sets for the commands of a job is known from the job's own file."""

import pytest

from trinity_compat.launch import read_script, read_text

SKY = """\
name: x
num_nodes: 2
resources:
  accelerators: H100:8
envs:
  A: "1"
run: |
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    python3 -m verl.trainer.main_ppo trainer.nnodes=$SKYPILOT_NUM_NODES n=$SKYPILOT_NUM_GPUS_PER_NODE a=$A
  fi
"""


def arguments(path):
    (launch,) = read_script(path).launches
    return [word.text for word in launch.arguments]


def test_skypilots_first_node_is_read(tmp_path):
    (tmp_path / "task.yaml").write_text(SKY)
    assert arguments(tmp_path / "task.yaml") == ["trainer.nnodes=2", "n=8", "a=1"]


def test_a_task_without_accelerators_has_one_node_and_no_gpus(tmp_path):
    text = SKY.replace("num_nodes: 2\n", "").replace("  accelerators: H100:8\n", "  cpus: 4\n")
    (tmp_path / "task.yaml").write_text(text)
    assert arguments(tmp_path / "task.yaml") == ["trainer.nnodes=1", "n=0", "a=1"]


def test_accelerators_without_a_count_are_one(tmp_path):
    for text in ("H100", "{H100: 1}"):
        (tmp_path / "task.yaml").write_text(SKY.replace("H100:8", text))
        assert arguments(tmp_path / "task.yaml")[1] == "n=1"


BATCH = """\
#!/bin/bash
#SBATCH --job-name=x
{}

set -e
python3 -m verl.trainer.main_ppo n=$SLURM_NNODES g=$SLURM_GPUS_ON_NODE j=${{SLURM_JOB_NUM_NODES:-1}}
#SBATCH --nodes=9
"""


def batch(*lines, env=None):
    """(the words of the launch, the messages about SLURM's variables)."""
    text = BATCH.format("\n".join(f"#SBATCH {line}" for line in lines))
    reading = read_text(text, name="job.sh", env=env)
    words = [word.text for word in reading.launches[0].arguments]
    return words, [str(note) for note in reading.diagnostics if note.code == "TP121"]


@pytest.mark.parametrize(
    ("lines", "nodes", "gpus"),
    [
        (["--nodes=4 --gpus-per-node=8"], "4", "8"),
        (["-N 2   # two", "--gres=gpu:a100:4,tmp:1"], "2", "4"),
        (["-N2", "--gres gpu:nvidia_a100-sxm4-80gb:1"], "2", "1"),
        (["--nodes=3-3", "--gpus-per-node=h100:8"], "3", "8"),
        (["--nodes=2", "-G 16"], "2", "8"),
        (["--nodes=2", "--gpus-per-task=2", "--ntasks-per-node=4"], "2", "8"),
        (["--gres=gpu"], "1", "1"),
    ],
)
def test_a_jobs_lines_say_what_slurm_sets(lines, nodes, gpus):
    words, told = batch(*lines)
    assert words == [f"n={nodes}", f"g={gpus}", f"j={nodes}"]
    assert len(told) == 2 or len(lines) == 1


def test_each_value_is_announced_with_the_line_that_it_comes_from():
    _, told = batch("--time=1", "--nodes=4", "--gres=gpu:8")
    assert told == [
        "job.sh:4: warning TP121 $SLURM_NNODES is 4 (--nodes=4), as sbatch would set it;"
        " another value: --env SLURM_NNODES=…",
        "job.sh:5: warning TP121 $SLURM_GPUS_ON_NODE is 8 (--gres=gpu:8), as sbatch would set it;"
        " another value: --env SLURM_GPUS_ON_NODE=…",
    ]


def test_the_environment_counts_before_the_jobs_lines():
    words, told = batch("--nodes=4", "--gres=gpu:8", env={"SLURM_NNODES": "2"})
    assert words == ["n=2", "g=8", "j=4"] and "SLURM_NNODES is" not in "".join(told)


@pytest.mark.parametrize("lines", [["--nodes=2-4"], ["--ntasks=8"], ["--gpus=12"]])
def test_a_number_that_slurm_chooses_stays_unset(lines):
    assert batch(*lines)[0][0] == "n="


def test_a_script_without_such_lines_has_no_scheduler():
    (launch,) = read_text("python3 -m verl.trainer.main_ppo n=$SLURM_NNODES").launches
    assert [word.text for word in launch.arguments] == ["n="]


def test_a_job_that_a_script_hands_in_has_the_commands_options_first(tmp_path):
    (tmp_path / "job.sh").write_text(BATCH.format("#SBATCH --nodes=4 --gres=gpu:8"))
    (tmp_path / "start.sh").write_text("sbatch --nodes=2 job.sh\n")
    (launch,) = read_script(tmp_path / "start.sh", cwd=tmp_path).launches
    assert [word.text for word in launch.arguments] == ["n=2", "g=8", "j=2"]


def test_a_job_that_stands_in_the_script_itself_is_followed():
    text = "for n in 1 2; do\nsbatch <<EOF\n" + BATCH.format("#SBATCH --nodes=$n").replace(
        "$SLURM", "\\$SLURM"
    )
    reading = read_text(text.replace("${SLURM", "\\${SLURM") + "EOF\ndone\n")
    assert [launch.arguments[0].text for launch in reading.launches] == ["n=1", "n=2"]
