"""What a scheduler sets for the commands of a job is known from the job's own file."""

from trinity_compat.launch import read_script

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
