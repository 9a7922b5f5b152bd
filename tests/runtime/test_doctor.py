"""The doctor's single checks, and the command's exit code."""

import socket

import pytest
from click.testing import CliRunner

from trinity_compat.cli.doctor import command
from trinity_compat.runtime.checks import doctor
from trinity_compat.runtime.checks.doctor import Check
from trinity_compat.runtime.plan import attention


@pytest.mark.parametrize(
    ("env", "state"),
    [({}, "note"), ({"WANDB_API_KEY": "k"}, "ok"), ({"WANDB_MODE": "offline"}, "ok")],
)
def test_wandb_without_a_key_is_noticed_with_the_way_out(monkeypatch, tmp_path, env, state):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    check = doctor._wandb()
    assert check.state == state
    assert ("export WANDB_API_KEY" in check.mend) == (state == "note")


def test_a_key_in_netrc_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert doctor._wandb().state == "ok"


def test_a_taken_port_is_told_with_the_command_that_frees_it(monkeypatch):
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        monkeypatch.setenv("MASTER_PORT", str(holder.getsockname()[1]))
        found = {check.name: check for check in doctor._ports()}
    assert found["MASTER_PORT"].state == "problem"
    assert found["MASTER_PORT"].mend == "unset MASTER_PORT"


def test_a_wrong_version_and_a_missing_package(monkeypatch):
    have = {"verl": "0.8.0", "ray": None, "psutil": None}
    monkeypatch.setattr(doctor, "version", lambda name: have.get(name, "1"))
    found = {check.name: check for check in doctor._packages()}
    assert found["verl"].mend == "pip install 'verl==0.9.1'"
    assert sorted(found["packages"].found.split(": ")[1].split(", ")) == ["psutil", "ray"]
    assert found["packages"].mend.startswith("pip install 'trinity-compat[run]'")
    assert "ray" not in found and "torch" not in found


def test_what_is_not_installed_is_not_tried(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: None)
    monkeypatch.setattr(doctor, "_python_says", lambda code, **more: pytest.fail("tried"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert doctor._verl_platform("cpu") == doctor._ray_address() == doctor._ray_starts() == []
    assert doctor._memory().found == "not measured: psutil is not installed"


def test_broken_flash_attention_shows_python_s_own_words(monkeypatch):
    monkeypatch.setattr(attention, "installed", lambda: True)
    check = doctor._flash_attention("cuda")
    assert check.state == "problem"
    assert "flash_attn_2_cuda" in check.found
    assert check.mend.startswith("pip install flash-attn")


@pytest.mark.parametrize(
    ("device", "state", "found"),
    [
        ("cuda", "note", "runs get sdpa in its place (profile no_flash_attn), Ulysses is refused"),
        ("cpu", "ok", "not needed on cpu"),
        ("npu", "ok", "not needed on npu"),
    ],
)
def test_a_run_does_without_flash_attention_and_doctor_says_what_installs_it(
    monkeypatch, device, state, found
):
    monkeypatch.setattr(attention, "installed", lambda: False)
    check = doctor._flash_attention(device)
    assert (check.state, found in check.found) == (state, True)
    assert device != "cuda" or check.mend == attention.INSTALL


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_only_a_problem_fails_the_command(monkeypatch, state, code):
    monkeypatch.setattr(doctor, "examine", lambda folder: iter([Check("ray", state, "found", "mend it")]))
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert result.return_value == code
    assert ("mend it" in result.output) == (state != "ok")
