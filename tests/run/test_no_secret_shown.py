"""A launch with secrets wherever a user can put them, and every output of every command that reads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted_secrets import LAUNCH

SECRET = "s3cr3t"
KWARGS = "+custom_reward_function.reward_kwargs"
SCRIPT = f"""\
export WANDB_API_KEY={SECRET}-wandb
export JUDGE_URL=https://judge:{SECRET}-judge@host:8000/v1
export SERVICE_PASSWORD={SECRET}-service
export openai_key={SECRET}-exported
TOKEN={SECRET}-variable
HF_TOKEN={SECRET}-prefix python3 -m verl.trainer.main_ppo \\
{LAUNCH} trainer.experiment_name=e \\
    trainer.resume_mode=disable \\
    data.prompt_key=prompt data.reward_fn_key=data_source +data.max_token_len=77 \\
    custom_reward_function.path=reward.py custom_reward_function.name=compute_score \\
    {KWARGS}.base_url=https://me:{SECRET}-base@host:1/v1 \\
    {KWARGS}.openai_key={SECRET}-openai {KWARGS}.accessToken={SECRET}-camel \\
    {KWARGS}.key={SECRET}-key \\
    "{KWARGS}.headers={{Authorization: '{SECRET}-header', x: https://u:{SECRET}-inner@h}}" \\
    "{KWARGS}.urls=[https://u:{SECRET}-list@h,https://h]" \\
    {KWARGS}.from_variable_token=$TOKEN {KWARGS}.judge=$JUDGE_URL {KWARGS}.model=judge-model \\
    ++ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN={SECRET}-ray \\
    +trainer.unknown_secret={SECRET}-unknown +trainer.unknown_password={SECRET}-password \\
    "$@"
"""
ARGUMENTS = ["--", f"+trainer.argument_api_key={SECRET}-argument"]
SETS = ["--set", f"explorer.env_vars.DB_PASSWORD={SECRET}-set", "--set", f"+trainer.set_token={SECRET}-two"]
SET_URL = ["--set", f"{KWARGS}.set_url=https://u:{SECRET}-seturl@h"]
KEPT = ("data_source", "judge-model")  # what is no secret is shown


@pytest.fixture
def script(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text("def compute_score(**_):\n    return 0.0\n")
    return tmp_path


def outputs(folder, *words):
    """What a command prints, and what it leaves in the folder, by name."""
    command = [Path(sys.executable).with_name("trinity-compat"), *words]
    before = set(folder.rglob("*"))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ})
    written = {
        str(path): path.read_text(errors="replace")
        for path in set(folder.rglob("*")) - before
        if path.is_file()
    }
    return {"stdout": done.stdout, "stderr": done.stderr, **written}, done.returncode


def shows(found):
    return [
        f"{name}: {line.strip()}"
        for name, text in found.items()
        for line in text.splitlines()
        if SECRET in line
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "run.sh", "--env", f"openai_key={SECRET}-env", *ARGUMENTS],
        ["translate", "run.sh", "--resolve", *SET_URL, *ARGUMENTS],
        ["translate", "run.sh", "-o", "out.yaml", *SETS[:2]],
        ["audit", "run.sh", "--all", *SET_URL, *ARGUMENTS],
        ["audit", "run.sh", "--format", "json", *SETS[:2], *ARGUMENTS],
        ["audit", "run.sh", "--format", "html", "-o", "audit.html", *ARGUMENTS],
        ["audit", "run.sh", "--format", "md", "--all"],
        ["parse", "run.sh", *ARGUMENTS],
        ["parse", "run.sh", "--format", "json", *ARGUMENTS],
    ],
    ids=" ".join,
)
def test_no_command_shows_a_secret(script, words):
    found, code = outputs(script, *words)
    assert code == 0, found["stderr"]
    assert shows(found) == []
    assert any(KEPT[0] in text for text in found.values())


@pytest.mark.timeout(600)
def test_a_dry_run_and_the_files_of_a_plan_show_none(script):
    words = ["run", "run.sh", "--dry-run", "--job", "job", "--device", "cpu", *SETS, *SET_URL, *ARGUMENTS]
    found, code = outputs(script, *words)
    assert code == 0, found["stderr"]
    assert shows(found) == []
    written = {Path(name).name: text for name, text in found.items()}
    assert {"run.json", "launch.json", "audit.json", "verl.yaml", "trinity.yaml"} <= written.keys()
    for text in KEPT:
        assert text in written["verl.yaml"]
