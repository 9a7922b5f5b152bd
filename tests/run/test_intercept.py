"""Which words start a veRL training main: decided without running anything."""

import re
import subprocess
import sys

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.launch import ray_submit
from trinity_compat.run.script.invocation import find_main, read_submission

MAIN = "verl.trainer.main_ppo"


@pytest.mark.parametrize(
    ("name", "words", "arguments"),
    [
        ("python3", ["-m", MAIN, "a=b"], ("a=b",)),
        ("python", ["-u", "-X", "faulthandler", "-W", "ignore", "-m", MAIN], ()),
        ("python3.11", ["-um", MAIN, "a=b"], ("a=b",)),
        ("python3", [f"-m{MAIN}", "a=b"], ("a=b",)),
        ("python3", ["-m", "recipe.dapo.main_dapo", "x=1"], ("x=1",)),
        ("python3", ["/src/verl/trainer/main_ppo.py", "a=b"], ("a=b",)),
        ("torchrun", ["--nproc_per_node=1", "-m", MAIN, "a=b"], ("a=b",)),
        ("accelerate", ["launch", "-m", MAIN, "a=b"], ("a=b",)),
        ("uv", ["run", "--active", "python3", "-m", MAIN, "a=b"], ("a=b",)),
        ("uv", ["run", "--python", "python3.11", "--with", "x", "python3", "-m", MAIN, "a=b"], ("a=b",)),
        ("python3", ["/opt/conda/bin/torchrun", "--standalone", "-m", MAIN, "a=b"], ("a=b",)),
        ("python", ["-m", "cProfile", "-o", "x", "/opt/bin/torchrun", "-m", MAIN, "a=b"], ("a=b",)),
        ("uv", ["run", "python", "verl/trainer/main_ppo.py", "a=b"], ("a=b",)),
    ],
)
def test_a_training_main_is_found(name, words, arguments):
    found = find_main([name, *words])
    assert found is not None
    assert found.arguments == arguments
    assert found.module in (MAIN, "recipe.dapo.main_dapo")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("python3", ["tool.py", "-m", MAIN]),
        ("python3", ["-c", "print()", "-m", MAIN]),
        ("python3", ["-m", "pip", "download", MAIN]),
        ("python3", ["-m", "verl.model_merger", "merge", "--note", MAIN]),
        ("python3", ["main_preprocess.py", "--out", "data/x.parquet"]),
        ("python3", ["-m", "my_package.trainer", "--epochs", "3"]),
        ("coverage", ["report", "-m", "verl/trainer/main_ppo.py"]),
        ("python3", ["-"]),
        ("python3", ["-m"]),
        ("grep", ["-m", MAIN]),
    ],
)
def test_somebody_else_s_words_are_left_alone(name, words):
    assert find_main([name, *words]) is None


def test_any_number_of_launchers_in_each_other_is_looked_through_quickly():
    words = ["uv", "run", "python3", "-m", "coverage", "run"] * 5000
    assert find_main([*words, "-m", MAIN]) is None
    assert find_main(["uv", "run", "python3", "-m", "coverage", "run", "-m", MAIN]) is not None


@pytest.mark.parametrize("address", ["http://[far", "http://far:x"])
def test_what_is_no_address_is_not_this_machine(address):
    assert ray_submit.is_local(address) is False


SUBMIT = ["job", "submit"]


def test_a_submission_s_environment_and_entry_point():
    words = [
        *SUBMIT,
        "--runtime-env-json",
        '{"env_vars": {"A": 1}, "working_dir": "/w"}',
        "--no-wait",
        "--",
        "python3",
        "-m",
        MAIN,
    ]
    read = read_submission(words, {})
    assert read.entrypoint == ("python3", "-m", MAIN)
    assert (read.env, read.cwd, read.address) == ({"A": "1"}, "/w", "")


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("", True),
        ("auto", True),
        ("http://127.0.0.1:8265", True),
        ("localhost:8265", True),
        ("http://10.0.0.5:8265", False),
    ],
)
def test_which_clusters_are_this_machine(address, local):
    read = read_submission([*SUBMIT, f"--address={address}", "--", "python3"], {})
    assert ray_submit.is_local(read.address) is local


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"RAY_ADDRESS": "http://far:1"}, "http://far:1"),
        ({"RAY_ADDRESS": "http://far:1", "RAY_API_SERVER_ADDRESS": "http://far:2"}, "http://far:2"),
    ],
)
def test_a_submission_without_an_address_goes_where_ray_sends_it(environ, address):
    assert read_submission([*SUBMIT, "--", "python3"], environ).address == address


def test_what_a_script_says_is_only_read_where_the_interceptor_repeats_it():
    command = [sys.executable, "-m", "trinity_compat.run.script.intercept"]
    done = subprocess.run([*command, "", "nowhere\x1b[2J\n::error::m"], capture_output=True, text=True)
    assert done.returncode == 127
    assert "nowhere\\u001b[2J\n\\::error::m: command not found\n" in done.stderr
    assert not re.search(r"[\x00-\x08\x0b-\x1f]|^::", done.stderr, re.M)


@pytest.mark.parametrize("text", ["{oops", "[1]"])
def test_a_runtime_environment_that_is_none_is_one_message(text):
    with pytest.raises(UserError, match=r"the runtime environment (cannot be read|is not a mapping)"):
        read_submission([*SUBMIT, "--runtime-env-json", text, "--", "python3", "-m", MAIN], {})


def test_a_submission_with_two_runtime_environments_is_refused_as_by_ray():
    both = ["--runtime-env=e.yaml", "--runtime-env-json", "{}"]
    with pytest.raises(UserError, match="--runtime-env or --runtime-env-json, not both"):
        read_submission([*SUBMIT, *both, "--", "python3", "-m", MAIN], {})


def test_a_runtime_env_file_is_read_as_data(tmp_path):
    (tmp_path / "env.yaml").write_text("env_vars:\n  NCCL_DEBUG: WARN\n")
    read = read_submission([*SUBMIT, f"--runtime-env={tmp_path}/env.yaml", "--", "python3"], {})
    assert read.env == {"NCCL_DEBUG": "WARN"}
