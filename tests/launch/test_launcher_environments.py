"""Variables that a launcher's options set, hand on and clear, in the script that it starts."""

import pytest

from trinity_compat.launch import read_script, read_text

TRAIN = "python3 -m verl.trainer.main_ppo lr=${LR:-none} n=${N:-none}\n"
SETS = [
    "sbatch --export=ALL,LR=5 train.sh",
    "sbatch --export ALL,LR=5 --nodes 2 train.sh",
    "srun --export=LR=5,N -n 8 bash train.sh",
    "sudo LR=5 bash train.sh",
    "sudo -u me -E LR=5 bash train.sh",
    "mpirun -np 8 -x LR=5 bash train.sh",
    "mpiexec -genv LR 5 -n 2 bash train.sh",
    "export LR=5; mpiexec -genvlist X,LR -n 2 bash train.sh",
    "apptainer exec --env LR=5,X=1 image.sif bash train.sh",
    "singularity exec --cleanenv --env-file my.env image.sif bash train.sh",
    "docker run --env-file my.env image bash train.sh",
    "docker run --env-file=my.env -e N=7 image bash train.sh",
    "podman run -eLR=5 image bash train.sh",
    "LR=5 docker run -e LR image bash train.sh",
    "export LR=5; docker exec --env LR box bash -c 'bash train.sh'",
    "kubectl exec pod -- env LR=5 bash train.sh",
    "uv run --env-file my.env bash train.sh",
    "conda run -n v env LR=5 bash train.sh",
    "tmux new-session -d -e LR=5 'bash train.sh'",
    "tmux send-keys 'export LR=5' C-m 'bash train.sh' C-m",
    "tmux send-keys -t w 'export LR=5' Enter; tmux send-keys -t w:0 'bash train.sh' Enter",
    "tmux send-keys -t v 'export LR=7' C-m; tmux send-keys -t w 'export LR=5; bash train.sh' C-m",
    "screen -S w -X stuff $'export LR=5\\n'; screen -S w -X stuff $'bash train.sh\\n'",
    "systemd-run --setenv=LR=5 bash train.sh",
    "bsub -env 'all, LR=5' bash train.sh",
    "qsub -v LR=5,X=2 bash train.sh",
    "export LR=5; qsub -V bash train.sh",
    "export LR=5; srun -n 8 bash train.sh",
    "export LR=5; mpirun -np 8 bash train.sh",
    "torchrun --no-python env LR=5 bash train.sh",
    "ray job submit --runtime-env rt.yaml -- bash train.sh",
    'ray job submit --runtime-env-json \'{"env_vars": {"LR": "5"}}\' -- bash train.sh',
    "env LR=5 srun --export=ALL bash train.sh",
    "env -S 'X=1 LR=5' bash train.sh",
    "export LR=5; apptainer exec --env X=1 image.sif bash train.sh",
    "export LR=5; qsub -V -v X=1 bash train.sh",
    "export SINGULARITYENV_LR=5; singularity exec --cleanenv image.sif bash train.sh",
    "APPTAINERENV_LR=5 apptainer run image.sif bash train.sh",
    "export LR=5; podman run --env-host image bash train.sh",
    "export UV_ENV_FILE=my.env; uv run bash train.sh",
    "cp my.env .env; pipenv run bash train.sh",
    "docker run -e LR=5 --env-file low.env image bash train.sh",
    "docker run -it --entrypoint bash -e LR=5 --gpus all image train.sh",
    "docker run --entrypoint=/bin/bash -e LR=5 image -c 'bash train.sh'",
    "srun --export=ALL,X=1 singularity exec --env LR=5 image.sif bash train.sh",
    "srun --export=ALL,LR=5 singularity exec --env X=1 image.sif bash train.sh",
    "enroot start -e LR=5 image bash train.sh",
    "ray job submit --runtime-env rt.yaml -- X=1 bash train.sh",
    "tmux setenv -g LR 5; tmux new-session -d 'bash train.sh'",
    "tmux set-environment -t work LR 5; tmux new-window -t work:1 'bash train.sh'",
    "export LR=1; tmux -L other setenv -t w LR 5; tmux split-window -t w bash train.sh",
    "kubectl set env deployment/box -n rl LR=5; kubectl exec -n rl deployment/box -- bash train.sh",
    "oc set env dc/box -e LR=5; oc exec dc/box -- bash train.sh",
    "systemctl --user set-environment LR=5 X=1; systemd-run --user bash train.sh",
    "conda env config vars set -n v LR=5; conda run -n v bash train.sh",
    "export LR=1; cd project; pixi run bash ../train.sh",
    "pixi run --manifest-path project/pixi.toml bash train.sh",
    "cd packaged && pixi run -- bash ../train.sh",
    "ray job submit -- LR=5 bash train.sh",
    "sbatch --export=ALL,LR=5 --wrap 'bash train.sh'",
    "sbatch rate.slurm",
    "qsub -v LR=5 train.sh",
    "qsub rate.pbs",
    "LR=5 bsub < train.sh",
    "LR=5 batch < train.sh",
    "export LR=5; kernprof -l bash train.sh",
    "export SBATCH_EXPORT=LR=5; sbatch train.sh",
]
CLEARS = [
    "sbatch --export=NONE train.sh",
    "sbatch --export=NIL train.sh",
    "srun --export=X=1 bash train.sh",
    "sudo bash train.sh",
    "docker run image bash train.sh",
    "docker run -e X=1 image bash train.sh",
    "apptainer exec --cleanenv image.sif bash train.sh",
    "singularity exec -e image.sif bash train.sh",
    "ssh host bash train.sh",
    "qsub bash train.sh",
    "systemd-run bash train.sh",
    "env -i bash train.sh",
    "LR=5 env -u LR bash train.sh",
    "su - me -c 'bash train.sh'",
    "mpiexec -genvnone -n 2 bash train.sh",
    "mpiexec -genvlist X -n 2 bash train.sh",
    "export SBATCH_EXPORT=NONE; sbatch train.sh",
    "export SLURM_EXPORT_ENV=NIL; srun bash train.sh",
    "sbatch --export=NONE rate.slurm",
    "enroot start image bash train.sh",
]
UNKNOWN = [
    "docker run --env-file nowhere.env image bash train.sh",
    "uv run --env-file $(find_it) bash train.sh",
    "ray job submit --runtime-env nowhere.yaml -- bash train.sh",
    "srun --export=ALL,$(list) bash train.sh",
    "rlaunch --gpu 8 -- bash train.sh",
    "./with_env bash train.sh",
    "python3 gen.py > my.env; docker run --env-file my.env image bash train.sh",
    "sed -i s/5/6/ my.env; uv run --env-file my.env bash train.sh",
    "python3 gen.py --out my.env; export $(grep -v '^#' my.env | xargs); bash train.sh",
    "yq -i .env_vars.LR=6 rt.yaml; ray job submit --runtime-env rt.yaml -- bash train.sh",
    "python3 gen.py > my.env; set -a; source my.env; bash train.sh",
    "sbatch --export-file=my.env train.sh",
    "systemd-run -p Environment=LR=5 bash train.sh",
    "tmux setenv -g LR 5; tmux setenv -g N 2; tmux send-keys -t w 'bash train.sh' Enter",
    "tmux setenv -t a LR 5; tmux setenv -t a N 2; tmux new-window -t b 'bash train.sh'",
    "tmux setenv -gu LR; tmux setenv -g N $(nproc); tmux new-window 'bash train.sh'",
    "kubectl set env deployment/box --from=configmap/rates; kubectl exec deployment/box -- bash train.sh",
    "kubectl set env deployment/box LR=5 N=2; kubectl exec pod/other -- bash train.sh",
    "kubectl set env deployment/box LR- N-; kubectl exec deployment/box -- bash train.sh",
    "pixi run bash train.sh",
    "cd scripted; pixi run bash ../train.sh",
    "cd featured; pixi run -e gpu bash ../train.sh",
    "ssh -o SendEnv=LR host 'bash train.sh'",
    'ray job submit --runtime-env-json "{\\"env_vars\\": $(list)}" -- bash train.sh',
]


PROJECTS = [  # folder, file, text
    ("project", "pixi.toml", "[activation.env]\nLR = '5'\n"),
    ("packaged", "pyproject.toml", "[tool.pixi.activation]\nenv = {LR = '5'}\n"),
    ("scripted", "pixi.toml", "[activation]\nscripts = ['env.sh']\n"),
    (
        "featured",
        "pixi.toml",
        "[activation.env]\nLR = '5'\n[feature.gpu.activation.env]\nLR = '6'\n"
        "[target.linux-64.activation.env]\nN = '$HOME'\n",
    ),
]


def read(script, folder, env=None, *, whole=False):
    (folder / "train.sh").write_text(TRAIN)
    (folder / "my.env").write_text("# the rate\nLR=5\nexport QUOTED='a b'\nFOLDER=$HOME/x\n")
    (folder / "low.env").write_text("LR=1\n")
    (folder / "rate.slurm").write_text(f"#!/bin/bash\n#SBATCH --export=ALL,LR=5\n{TRAIN}")
    (folder / "rate.pbs").write_text(f"#!/bin/bash\n#PBS -N x -v LR=5\n{TRAIN}")
    (folder / "rt.yaml").write_text("env_vars:\n  LR: '5'\n")
    for name, file, text in PROJECTS:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_text(text)
    reading = read_text(script + "\n", name="run.sh", cwd=folder, env=env or {})
    return reading if whole else reading.launches


@pytest.mark.parametrize("line", SETS)
def test_a_variable_that_a_launcher_sets_arrives(line, tmp_path):
    (launch,) = read(line, tmp_path)
    assert (launch.arguments[0].text, launch.arguments[0].open) == ("lr=5", ())


@pytest.mark.parametrize("line", CLEARS)
def test_a_variable_that_a_launcher_does_not_hand_on_is_unset(line, tmp_path):
    (launch,) = read(f"export LR=5\n{line}", tmp_path)
    assert (launch.arguments[0].text, launch.arguments[0].open) == ("lr=none", ())


@pytest.mark.parametrize("line", UNKNOWN)
def test_a_variable_that_an_unknown_environment_may_set_is_open(line, tmp_path):
    (launch,) = read(line, tmp_path)
    assert [bool(word.open) for word in launch.arguments] == [True, True]
    (launch,) = read(line, tmp_path, env={"LR": "5", "N": "7"})
    assert [word.text for word in launch.arguments if not word.open] == ["lr=5", "n=7"]


def test_of_a_runtime_environment_only_what_holds_an_open_piece_is_open(tmp_path):
    text = '"{\\"env_vars\\": {\\"LR\\": \\"5\\", \\"N\\": \\"$(nproc)\\"}}"'
    (launch,) = read(f"ray job submit --runtime-env-json={text} -- bash train.sh", tmp_path)
    assert [word.text for word in launch.arguments] == ["lr=5", "n="]
    assert [word.open[0].expression for word in launch.arguments if word.open] == ["$(nproc)"]


def test_a_value_of_an_env_file_that_holds_a_variable_is_open(tmp_path):
    code = 'bash -c \'python3 -m verl.trainer.main_ppo a="$QUOTED" b="$FOLDER"\''
    (launch,) = read(f"podman run --env-file my.env image {code}", tmp_path)
    assert [(word.text, bool(word.open)) for word in launch.arguments] == [
        ("a=a b", False),
        ("b=$HOME/x", True),
    ]
    (launch,) = read(f"docker run --env-file my.env image {code}", tmp_path)  # which takes no quotes off
    assert [word.text for word in launch.arguments] == ["a='a b'", "b=$HOME/x"]
    assert not any(word.open for word in launch.arguments)


def test_what_a_sourced_file_sets_is_open_where_a_program_may_have_changed_it(tmp_path):
    main = "python3 -m verl.trainer.main_ppo lr=$LR n=${N:-1} a=$A"
    (launch,) = read(f"A=2; LR=3; python3 patch.py my.env; . ./my.env; {main}", tmp_path)
    assert [(word.text, bool(word.open)) for word in launch.arguments][::2] == [
        ("lr=5", True),
        ("a=2", False),
    ]
    assert launch.arguments[1].open


def test_an_env_file_that_the_script_writes_is_read_line_by_line(tmp_path):
    write = "X=4; cat > new.env <<EOF\nLR=$X # rate\nN=${OUTER}\nEOF\n"
    (launch,) = read(f"{write}podman run --env-file new.env image bash train.sh", tmp_path)
    assert [word.text for word in launch.arguments] == ["lr=4", "n=none"]
    assert launch.arguments[1].env_refs


MANIFEST = """apiVersion: batch/v1
kind: Job
spec:
  containers:
    - image: verl
      env: [{name: MODEL, value: Qwen/Qwen3-4B}]
      command: [python3, -m, verl.trainer.main_ppo]
      args: ["m=$(MODEL)", "n=$(UNSET)", "d=$$(MODEL)", "x=$MODEL"]
"""
RAY_JOB = """apiVersion: ray.io/v1
kind: RayJob
spec:
  entrypoint: bash -c 'python3 -m verl.trainer.main_ppo lr=${LR:-none} n=$N'
  runtimeEnvYAML: |
    env_vars: {N: "2", LR: "5"}
"""


@pytest.mark.parametrize(
    ("text", "arguments"),
    [(MANIFEST, ["m=Qwen/Qwen3-4B", "n=$(UNSET)", "d=$(MODEL)", "x=$MODEL"]), (RAY_JOB, ["lr=5", "n=2"])],
)
def test_a_manifest_gives_its_variables(text, arguments, tmp_path):
    (tmp_path / "job.yaml").write_text(text)
    (launch,) = read_script(str(tmp_path / "job.yaml"), cwd=tmp_path).launches
    assert [word.text for word in launch.arguments] == arguments


MAPS = """apiVersion: v1
kind: ConfigMap
metadata: {name: rates}
data: {LR: "5", N: "2"}
---
apiVersion: v1
kind: Pod
spec:
  containers:
    - image: verl
      envFrom: [{prefix: A_, configMapRef: {name: rates}}%s]
      env:
        - {name: BASE, value: /data}
        - {name: MODEL, value: $(BASE)/$(A_LR)}
        - {name: EARLY, value: $(LATE)}
        - {name: LATE, value: late}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
        - {name: RATE, valueFrom: {configMapKeyRef: {name: rates, key: LR}}}
      command: [bash, -c]
      args:
        - python3 -m verl.trainer.main_ppo m=$(MODEL) b=$MODEL e=$EARLY t=$TOKEN r=$RATE n=$A_N x=${X:-q}
"""
HEAD = (
    RAY_JOB
    + """  rayClusterSpec:
    headGroupSpec:
      template: {spec: {containers: [{env: [{name: N, value: "7"}, {name: X, value: "8"}]}]}}
"""
)


def test_a_manifest_gives_the_variables_of_its_maps_and_those_that_others_name(tmp_path):
    (tmp_path / "job.yaml").write_text(MAPS % "")
    (launch,) = read_script(str(tmp_path / "job.yaml"), cwd=tmp_path).launches
    assert [word.text for word in launch.arguments] == [
        "m=/data/5", "b=/data/5", "e=$(LATE)", "t=", "r=5", "n=2", "x=q",
    ]  # fmt: skip
    assert [word.open[0].expression for word in launch.arguments if word.open] == ["valueFrom of TOKEN"]
    assert launch.arguments[3].open[0].where.line == 17
    (launch,) = read_script(str(tmp_path / "job.yaml"), cwd=tmp_path, env={"TOKEN": "6"}).launches
    assert launch.arguments[3].text == "t=6"


def test_a_map_of_another_file_may_set_any_variable(tmp_path):
    (tmp_path / "job.yaml").write_text(MAPS % ", {configMapRef: {name: elsewhere}}")
    (launch,) = read_script(str(tmp_path / "job.yaml"), cwd=tmp_path).launches
    assert [word.open[0].expression for word in launch.arguments if word.open] == [
        "valueFrom of TOKEN", "envFrom",
    ]  # fmt: skip


def test_a_ray_job_has_the_variables_of_its_heads_container(tmp_path):
    (tmp_path / "job.yaml").write_text(HEAD.replace("n=$N", "n=$N x=$X"))
    (launch,) = read_script(str(tmp_path / "job.yaml"), cwd=tmp_path).launches
    assert [word.text for word in launch.arguments] == ["lr=5", "n=2", "x=8"]


BOTH = "ray job submit --runtime-env rt.yaml --runtime-env-json '{}'"


@pytest.mark.parametrize("line", [f"{BOTH} -- bash train.sh", f"{BOTH} bash train.sh"])
def test_a_job_with_two_runtime_environments_is_not_submitted(line, tmp_path):
    reading = read(line, tmp_path, whole=True)
    assert not reading.launches
    assert [(note.code, note.severity) for note in reading.diagnostics] == [("TP126", "error")]
