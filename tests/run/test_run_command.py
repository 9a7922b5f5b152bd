"""`trinity-compat run` on small scripts, from the outside. Nothing here starts Ray."""

import json
import os
import re
import subprocess
import sys

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml


@pytest.fixture
def run(tmp_path):
    def call(text, *words, env=None):
        (tmp_path / "run.sh").write_text(text)
        command = [sys.executable, "-m", "trinity_compat", "run", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **(env or {})}
        )

    return call


@pytest.fixture
def without_verl(tmp_path):
    """An environment in which a dry run has nobody to judge the configuration: eight seconds less."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_VERL)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])}


WITHOUT_VERL = """
import importlib.metadata as metadata
version = metadata.version

def without(name):
    if name == "verl":
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = without
"""
LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 "


def test_hydra_s_cfg_prints_the_composed_configuration(run):
    done = run(LAUNCH + '"$@"', "run.sh", "--", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["data"]["train_batch_size"] == 64


def test_multirun_is_refused_with_the_reason(run):
    done = run(LAUNCH + "--multirun", "run.sh")
    assert done.returncode == 2
    assert "--multirun starts one job per combination" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_s_own_work_and_status_pass_through(run):
    done = run('echo before; python3 -c "print(6 * 7)"; echo $1 >&2; exit 9', "run.sh", "--", "word")
    assert (done.returncode, done.stdout) == (9, "before\n42\n")
    assert done.stderr.startswith("word\n")
    assert "ended without starting a veRL training main" in done.stderr


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("", "nope.sh", "no such script: nope.sh"),
        ("", ".", ". is a folder"),
        (" \n", "run.sh", "run.sh is empty"),
        ("echo hello", "run.sh", "veRL training main"),
        ("", "nope.yaml", "cannot read nope.yaml"),
    ],
)
def test_what_starts_no_training_is_one_clear_error(run, dry, text, source, said):
    done = run(text, source, *dry)
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
    assert "Traceback" not in done.stderr


def test_a_script_behind_a_link_is_read_where_bash_runs_it(run, tmp_path, tmp_path_factory):
    wrong = "python3 -m verl.trainer.main_ppo a=1\n"
    shared = tmp_path_factory.mktemp("shared") / "run.sh"
    shared.write_text(wrong)
    (tmp_path / "linked.sh").symlink_to(shared)
    named, linked = run(wrong, "run.sh"), run(wrong, "linked.sh")
    assert named.returncode == linked.returncode == 2 and "run.sh:1: Hydra would refuse" in named.stderr
    assert linked.stderr == named.stderr.replace("run.sh", "linked.sh")


def test_a_failing_launch_fails_the_run_even_behind_tee(run):
    done = run(LAUNCH + "--multirun 2>&1 | tee log.txt", "run.sh")
    assert done.returncode == 2
    assert "--multirun" in done.stdout


def test_a_local_ray_job_submission_is_caught(run):
    done = run(f"ray job submit --no-wait -- {LAUNCH} --cfg job", "run.sh")
    assert done.returncode == 0, done.stderr
    assert "train_batch_size: 64" in done.stdout


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python3 -m recipe.prime.main_prime a=1", "this recipe also trains its reward model"),
        ("python3 -m recipe.prime.main_prime a=1", "also trains its reward model"),
        ("python3 main_ppo.py a=1", "its path is not that of veRL's own main"),
        ("env -i /usr/bin/python3 -m verl.trainer.main_ppo a=1", "would train stock veRL"),
        (f"env -i /opt/ray job submit --address=http://h:1 -- {LAUNCH}", "would train stock veRL"),
    ],
)
def test_what_a_run_would_not_catch_is_refused_before_anything_is_executed(run, tmp_path, dry, line, said):
    done = run(f"touch executed\n{line}\n", "run.sh", *dry)
    assert done.returncode == 2
    assert "error: run.sh:2: " in done.stderr and said in done.stderr and "hint: " in done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_main_that_only_shows_up_at_run_time_is_refused_there(run, tmp_path):
    """What it starts is the output of a program, which reading doesn't run."""
    (tmp_path / "which.py").write_text("print('recipe.prime.main_prime')")
    done = run("echo before\nmain=$(python3 which.py)\npython3 -m $main a=1\n", "run.sh")
    assert (done.returncode, done.stdout) == (2, "before\n")
    assert "this recipe also trains its reward model" in done.stderr


def test_a_key_that_verl_does_not_have_is_named_with_its_line(run):
    done = run("\n" + LAUNCH + "data.train_batch_sise=1", "run.sh")
    assert done.returncode == 2
    assert "run.sh:2" in done.stderr and "data.train_batch_sise" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_executes_nothing_of_the_script(run, tmp_path):
    words = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.name=vllm"
        " actor_rollout_ref.actor.use_dynamic_bsz=True"
    )
    done = run(f"touch executed\n{LAUNCH} {words}", "run.sh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
    assert re.match(r"checked   veRL .* accept this configuration\n(  .*\n)*job       ", done.stdout)
    assert not re.search("^(# |synchronizer:)", done.stdout, re.M)
    assert re.search(r"\d+ keys: \d+ mapped, .*`trinity-compat audit`", done.stdout)


WHOLE = (
    "algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_mini_batch_size=32"
    " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.name=vllm"
    " actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct trainer.total_training_steps=4"
    " trainer.n_gpus_per_node=8"
)


def test_a_dry_run_for_gpus_writes_its_files_and_names_unchecked_parts(run, tmp_path):
    words = ["run.sh", "--dry-run", "--device", "cuda", "--job", "job"]
    done = run(f"{LAUNCH} {WHOLE}", *words)
    assert done.returncode == 0, done.stderr
    config = tmp_path / "job" / "config"
    names = [
        "audit.json",
        "engine.json",
        "environment.json",
        "launch.json",
        "private",
        "run.json",
        "start.json",
        "trinity.yaml",
        "verl.yaml",
    ]
    assert sorted(path.name for path in config.iterdir()) == names
    assert not (tmp_path / "job" / "buffer").exists()
    engine = json.loads((config / "engine.json").read_text())
    assert (engine["model"], engine["tensor_parallel_size"]) == ("Qwen/Qwen2.5-7B-Instruct", 2)
    assert json.loads((config / "run.json").read_text())["device"] == "cuda"
    assert "note: data.train_files" in done.stdout
    assert "checked with the configuration of Qwen2.5-7B" in done.stdout
    assert "only a GPU can refuse them" in done.stdout
    again = run(f"{LAUNCH} {WHOLE}", *words, "--gpus", "4")
    assert again.returncode == 2
    assert "the run wants 8 GPUs, and --gpus gives 4" in again.stderr


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_verl_refuses_in_its_first_seconds_is_said_before_ray_starts(run, tmp_path, dry):
    bad = "actor_rollout_ref.actor.policy_loss.loss_mode=mine"
    whole = f"{WHOLE} trainer.n_gpus_per_node=1 trainer.logger=console"
    data = tmp_path / "rows.parquet"
    row = {"prompt": [{"role": "user", "content": "1"}], "data_source": "x", "reward_model": {"a": "1"}}
    pq.write_table(pa.Table.from_pylist([row] * 64), data)
    files = f"data.train_files={data} data.val_files={data}"
    done = run(f"{LAUNCH} {whole} {files} \\\n  {bad}", "run.sh", *dry)
    assert done.returncode == 2
    assert f"run.sh:2: {bad}: veRL 0.9.1 refuses to start: Unsupported loss mode: mine" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_the_script_ends_with_a_command_that_is_killed(tmp_path):
    (tmp_path / "run.sh").write_text("echo $$; exec sleep 600")
    command = [sys.executable, "-m", "trinity_compat", "run", "run.sh"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    script = psutil.Process(int(run.stdout.readline()))
    run.kill()
    _, left = psutil.wait_procs([script], timeout=60)
    for process in left:
        process.kill()
    run.communicate()
    assert left == []


def test_status_of_a_folder_that_is_not_a_job(run, tmp_path):
    command = [sys.executable, "-m", "trinity_compat", "status", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not a job directory" in done.stderr


GPUS = "$(nvidia-smi -L | wc -l)"


@pytest.mark.parametrize(
    ("text", "source_line", "said"),
    [
        (f"set -u\n{LAUNCH} data.train_files=$NOPE_/a", 2, "$NOPE_ is not set; under set -u bash ends"),
        (f'{LAUNCH} \\\n  data.seed=1 2>&1 \\\n  | tee "log', 3, "without closing quote"),
        (f"exit 1\n{LAUNCH}", 1, "the script ends here before it starts a training main"),
    ],
)
def test_a_dry_run_refuses_what_bash_would_not_reach(run, text, source_line, said):
    done = run(text, "run.sh", "--dry-run")
    assert done.returncode == 2
    assert f"error: run.sh:{source_line}: " in done.stderr and said in done.stderr
    assert re.search(rf"^run.sh:{source_line}: (warning|error) TP\d+ ", done.stderr, re.MULTILINE)


def test_a_dry_run_reports_bash_errors_and_passes_harmless_ones(run, without_verl):
    done = run(
        f"{LAUNCH} {WHOLE} \\\n  # a note\n  trainer.nnodes=2\nfi", "run.sh", "--dry-run", env=without_verl
    )
    assert done.returncode == 0, done.stderr
    assert "run.sh:3: warning TP002 bash reads 'trainer.nnodes' as a command" in done.stderr
    assert "run.sh:4: error TP001" in done.stderr  # behind the launch, which bash has made by then


def test_a_dry_run_takes_a_word_that_set_gives_and_says_how_to_give_it(run, without_verl):
    text = f"{LAUNCH} \\\n  {WHOLE} trainer.n_gpus_per_node={GPUS}"
    refused = run(text, "run.sh", "--dry-run", env=without_verl)
    assert refused.returncode == 2
    assert f"run.sh:2: {GPUS} is known only at run time" in refused.stderr
    assert "--set trainer.n_gpus_per_node=…" in refused.stderr and "environment" not in refused.stderr
    done = run(
        text,
        "run.sh",
        "--dry-run",
        "--show-yaml",
        "--set",
        "trainer.n_gpus_per_node=4",
        "--device",
        "cuda",
        env=without_verl,
    )
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["cluster"]["gpu_per_node"] == 4
    named = run(
        f"GPUS_={GPUS}\n{LAUNCH} trainer.n_gpus_per_node=$GPUS_", "run.sh", "--dry-run", env=without_verl
    )
    assert "GPUS_=… in the environment says what it will be" in named.stderr


def test_a_variable_that_nobody_sets_is_named_and_the_words_keep_their_lines(run, without_verl):
    text = f"{LAUNCH} \\\n  {WHOLE} \\\n  trainer.experiment_name=a$NOPE_ trainer.project_name=p"
    done = run(text, "run.sh", "--dry-run", "--show-yaml", env=without_verl)
    assert done.returncode == 0, done.stderr
    assert "# warning: run.sh:3: $NOPE_ is not set: it is empty under bash" in done.stdout
    assert yaml.safe_load(done.stdout)["name"] == "a"
    assert done.stdout.index("# job  ") < done.stdout.index("\nmode: ") < done.stdout.rindex("run.sh:3")
    assert "argv:" not in done.stdout
    wrong = run(f"{text} data.train_batch_sise=1", "run.sh", "--dry-run", env=without_verl)
    assert wrong.returncode == 2 and "error: run.sh:3: " in wrong.stderr


def test_a_launch_whose_process_is_killed_is_not_taken_for_none(run):
    """The script kills the process that runs its launch, as the kernel's out-of-memory killer does."""
    begun = "ls $TRINITY_COMPAT_SESSION/running-*"
    text = f"{LAUNCH} & for _ in $(seq 3000); do {begun} && break; sleep 0.1; done\n"
    done = run(text + "kill -9 $!; wait $!\n", "run.sh")
    assert done.returncode == 137
    assert "was killed" in done.stdout and "ended without starting" not in done.stderr
