"""The environment of a start, as the job records it and a resume gets it."""

import json

import pytest

from trinity_compat.run.job_dir.environment import RecordedEnvironment

SCRIPT = 'export A=1\npython3 -m m data.train_files="$DATA" x=${NAME:-x} n=${#LIST} y=$PWD z=${API_KEY}\n'
YAML = "path: ${oc.env:ROOT,x}\n"
ENVIRON = {
    "DATA": "/data",
    "API_KEY": "sk-1",
    "NCCL_DEBUG": "INFO",
    "HF_TOKEN": "hf-1",
    "https_proxy": "http://me:pw@proxy:1",
    "EDITOR": "vi",
    "SSH_CLIENT": "::1",
    "PWD": "/x",
    "PATH": "/bin",
    "ROOT": "/r",
}


@pytest.fixture
def recorded():
    return RecordedEnvironment.of(ENVIRON, SCRIPT + YAML)


def test_what_the_script_and_its_libraries_read_is_recorded(recorded):
    assert recorded.values == {"DATA": "/data", "NCCL_DEBUG": "INFO", "PATH": "/bin", "ROOT": "/r"}
    assert recorded.unset == {"NAME", "LIST"}


def test_a_secret_is_recorded_by_its_name(recorded):
    assert recorded.secrets == {"API_KEY", "HF_TOKEN", "https_proxy"}
    assert not any(word in recorded.as_text() for word in ("sk-1", "hf-1", "pw@"))


def test_what_ray_tells_a_submitted_job_is_not_recorded():
    told = {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"WANDB_API_KEY": "k3y"}}}'}
    recorded = RecordedEnvironment.of({**told, "RAY_ADDRESS": "10.0.0.2:6379"}, SCRIPT)
    assert recorded.values == {"RAY_ADDRESS": "10.0.0.2:6379"} and not recorded.secrets
    assert recorded.applied(told) == {**told, **recorded.values}  # it is this start's


def test_another_start_gets_the_same_variables(recorded):
    now = {
        "DATA": "/other",
        "NAME": "set since",
        "CUDA_VISIBLE_DEVICES": "0",
        "EDITOR": "ed",
        "HF_TOKEN": "hf-2",
        "WANDB_API_KEY": "w-2",
        "https_proxy": "http://me:new@proxy:1",
    }
    kept = {name: now[name] for name in ("EDITOR", "HF_TOKEN", "WANDB_API_KEY", "https_proxy")}
    assert recorded.applied(now) == {**kept, **recorded.values}


def test_it_is_read_as_it_was_written(recorded):
    assert RecordedEnvironment.of_text(recorded.as_text()) == recorded


BROKEN = [
    *("", "[]", "{}", '{"values": {"A": 1}, "secrets": [], "unset": []}'),
    *('{"values": {}, "secrets": "AB", "unset": []}', '{"values": {}, "secrets": [1], "unset": []}'),
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_no_start_wrote_is_refused(text):
    with pytest.raises(ValueError):
        RecordedEnvironment.of_text(text)


def test_a_name_that_the_kernel_refuses_is_refused():
    for name, value in (("A=B", "x"), ("", "x"), ("A", "x\0y"), ("A\0", "x")):
        record = {"values": {name: value}, "secrets": [], "unset": []}
        with pytest.raises(ValueError):
            RecordedEnvironment.of_text(json.dumps(record))
