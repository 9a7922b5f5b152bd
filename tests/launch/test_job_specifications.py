"""Commands in YAML files of job programs: what they set for them, and what they mount."""

import pytest

from trinity_compat.launch import read_script
from trinity_compat.launch.job_files.job_spec import kind_of

MAIN = "python3 -m verl.trainer.main_ppo"


def launches(tmp_path, text, name="job.yaml"):
    (tmp_path / name).write_text(text)
    return read_script(tmp_path / name, cwd=tmp_path).launches


def words(launch):
    return [word.text for word in launch.arguments]


def test_a_script_of_a_config_map_is_read_where_it_is_mounted(tmp_path):
    text = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: scripts}}
data:
  run.sh: |
    {MAIN} model=$MODEL nodes=$1
  other.sh: "true"
---
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
    - image: verl
      env: [{{name: MODEL, value: m7}}]
      command: [bash, /opt/s/run.sh, "2"]
      volumeMounts: [{{name: s, mountPath: /opt/s/}}]
  volumes: [{{name: s, configMap: {{name: scripts}}}}]
"""
    (launch,) = launches(tmp_path, text)
    assert words(launch) == ["model=m7", "nodes=2"] and launch.where.line == 7
    one = text.replace("mountPath: /opt/s/", "mountPath: /opt/s/run.sh, subPath: run.sh")
    assert [words(launch) for launch in launches(tmp_path, one)] == [words(launch)]
    assert launches(tmp_path, text.replace("configMap: {name: scripts}", "configMap: {name: another}")) == ()


def test_commands_of_dstack_are_one_script_with_its_variables(tmp_path):
    text = f"""
type: task
nodes: 2
env: [LR=1e-6, TOKEN]
resources: {{gpu: "H100:80GB:8"}}
commands:
  - B=64
  - {MAIN} b=$B lr=$LR n=$DSTACK_NODES_NUM g=$DSTACK_GPUS_PER_NODE r=$DSTACK_NODE_RANK
"""
    (launch,) = launches(tmp_path, text)
    assert words(launch) == ["b=64", "lr=1e-6", "n=2", "g=8", "r=0"] and launch.where.line == 8


def test_a_step_of_a_workflow_has_the_nearest_variables_and_open_templates(tmp_path):
    text = f"""
env: {{A: "1", B: "1", C: "${{{{ inputs.c }}}}"}}
jobs:
  train:
    env: {{B: "2"}}
    steps:
      - uses: actions/checkout@v4
      - run: |
          {MAIN} a=$A b=$B c=$C lr=${{{{ inputs.lr }}}}
        working-directory: sub
"""
    (launch,) = launches(tmp_path, text)
    assert words(launch)[:2] == ["a=1", "b=2"] and launch.cwd == str(tmp_path / "sub")
    assert [bool(word.open) for word in launch.arguments] == [False, False, True, True]


def test_the_command_of_an_azure_ml_job_is_read_in_the_folder_of_its_code(tmp_path):
    text = f"""
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: src
command: {MAIN} lr=$LR data=${{{{inputs.data}}}}
environment_variables: {{LR: "2e-6"}}
"""
    (launch,) = launches(tmp_path, text)
    assert words(launch)[0] == "lr=2e-6" and launch.arguments[1].open and launch.cwd == str(tmp_path / "src")


@pytest.mark.parametrize(
    "text",
    [
        "type: task\nname: x\n",
        "jobs: {a: {needs: b}}\n",
        "command: ls\n",
        "actor_rollout_ref: {model: {path: x}}\n",
    ],
)
def test_another_yaml_is_none_of_them(tmp_path, text):
    assert kind_of(text) is None
