"""A script and the YAML that translate writes of it are one run: one plan, one job, the same answers."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from trinity_compat.common.nested import leaves
from trinity_compat.job import fingerprint
from trinity_compat.launch import read_script
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.script import static_reading
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch

TOY = (Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh").read_text()
PPO = """
{before}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files={files} \\
  data.val_files=/v.parquet actor_rollout_ref.model.path=$HOME/m actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 data.train_batch_size=8 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.project_name=p {words}
"""
SFT = """
{before}
BACKEND=${{BACKEND:-fsdp}}
torchrun --nproc_per_node=1 -m verl.trainer.sft_trainer data.train_files=$HOME/t.parquet model.path=$HOME/m \\
  engine=$BACKEND optim=$BACKEND optim.lr=${{LR:-1e-5}} data.train_batch_size=8 \\
  data.micro_batch_size_per_gpu=4 \\
  trainer.project_name=p trainer.experiment_name=e-$BACKEND trainer.n_gpus_per_node=1 {words}
"""
CKPTS = "CKPTS_DIR=${CKPTS_DIR:-$HOME/ckpts/p/e}"
DIRECTORY = "trainer.experiment_name=e trainer.default_local_dir=$CKPTS_DIR"


def ppo(before="", words="trainer.experiment_name=e", files="/t.parquet"):
    return PPO.format(before=before, words=words, files=files)


def sft(before="", words=""):
    return SFT.format(before=before, words=words)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_script(text, *sets, device="cuda"):
    """The plan of ``run x.sh``."""
    script = Path("x.sh")
    script.write_text(text)
    call = ScriptCall(str(script), (), RunOptions(sets=sets), str(Path.cwd()), dict(os.environ))
    source, options = source_of(next(iter(static_reading.invocations(call))), call)
    return make_plan(source.config, options, cwd=Path.cwd(), device=device)


def of_yaml(text, *sets, device="cuda"):
    """The plan of ``translate x.sh > x.yaml; run x.yaml``: translate is not told the environment."""
    Path("x.sh").write_text(text)
    launch = read_script("x.sh", env={}).launches[0]
    Path("x.yaml").write_text(translate_launch(launch, TranslateOptions())[1])
    return make_plan(from_yaml(Path("x.yaml")).config, RunOptions(sets=sets), cwd=Path.cwd(), device=device)


def differences(one, other):
    left, right = (json.loads(json.dumps(asdict(made.spec), default=str)) for made in (one, other))
    first, second = dict(leaves(left)), dict(leaves(right))
    return sorted(key for key in first | second if first.get(key) != second.get(key))


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (TOY, "checkpoints/toy/grpo"),
        (ppo(), "checkpoints/p/e"),
        (ppo(words="trainer.experiment_name=e trainer.default_local_dir=ck"), "ck/p/e"),
        (ppo(words="trainer.experiment_name=e trainer.default_local_dir=ck/p/e"), "ck/p/e"),
        (ppo(words="trainer.experiment_name=e trainer.default_local_dir=ck/p/e/"), "ck/p/e"),
        (ppo(CKPTS, DIRECTORY), "ckpts/p/e"),
        (ppo(words="trainer.experiment_name=lr${LR:-1e-6}-${ETA:-0.10}"), "checkpoints/p/lr1e-6-0.10"),
        (sft(CKPTS, "trainer.default_local_dir=$CKPTS_DIR"), "ckpts/p/e/p/e-fsdp"),
        (sft("CK=${CK:-$HOME/ck/p/e-fsdp}", "trainer.default_local_dir=$CK"), "ck/p/e-fsdp"),
        (sft(words="trainer.resume_mode=${RESUME_MODE:-disable}"), "checkpoints/p/e-fsdp"),
        (ppo("export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}"), "checkpoints/p/e"),
        (ppo("FILES=${FILES:-\"['$HOME/a','$HOME/b']\"}", files='"$FILES"'), "checkpoints/p/e"),
        (
            ppo(words="trainer.experiment_name=e +distillation.teacher_models.x.key=openai/gsm8k"),
            "checkpoints/p/e",
        ),
    ],
)
def test_a_script_and_its_yaml_are_one_run(text, job, home):
    script, yaml = of_script(text), of_yaml(text)
    assert differences(script, yaml) == []
    assert script.job.root == yaml.job.root == home / job
    assert fingerprint.made(script.spec, cwd=home) == fingerprint.made(yaml.spec, cwd=home)


def test_a_list_of_one_file_is_a_list_in_both(home):
    text = ppo("FILE=${FILE:-$HOME/a}", files="\"['$FILE']\"")
    script, yaml = of_script(text), of_yaml(text)
    assert differences(script, yaml) == []
    assert fingerprint.made(script.spec, cwd=home) == fingerprint.made(yaml.spec, cwd=home)


@pytest.mark.parametrize("folder", ["/x", "/x/p/e"])
def test_they_are_so_where_a_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("CKPTS_DIR", folder)
    text = ppo(CKPTS, DIRECTORY)
    assert of_script(text).job.root == of_yaml(text).job.root == Path("/x/p/e")


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("trainer.experiment_name=other", "checkpoints/p/other"),
        ("trainer.project_name=other", "checkpoints/other/e"),
        ("trainer.default_local_dir=ck", "ck/p/e"),
    ],
)
def test_set_names_the_job_of_both_in_verl_s_spelling(said, job, home):
    script, yaml = of_script(ppo(), said), of_yaml(ppo(), said)
    assert script.job.root == yaml.job.root == home / job


def make_job(folder):
    (folder / "buffer").mkdir(parents=True)
    return folder


def about_jobs(made):
    return [note for note in made.notes if " job " in note and note.startswith("note")]


def test_a_job_that_set_renames_is_named(home):
    job = make_job(home / "checkpoints/p/e")
    made = of_yaml(ppo(), "trainer.experiment_name=other")
    assert about_jobs(made) == [
        f"note: --set names another job than {job}: `--job {job}` goes on with that one"
    ]
    make_job(made.job.root)
    assert about_jobs(of_yaml(ppo(), "trainer.experiment_name=other")) == []


def test_of_a_file_by_hand_the_names_are_appended_as_trinity_rft_does(home):
    text = (Path(__file__).parents[2] / "examples" / "trinity" / "grpo.yaml").read_text()
    root = home / "toy" / "trinity-grpo"
    Path("x.yaml").write_text(text.replace("./checkpoints", str(root)))
    made = make_plan(from_yaml(Path("x.yaml")).config, RunOptions(), cwd=home, device="cpu")
    assert made.job.root == root / "toy" / "trinity-grpo"
