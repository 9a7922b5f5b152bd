"""A real engine and a task beside trinity-rft, whose plugin for vLLM imports what the pinned vLLM lacks."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml
from beside import ROOT, modules

EXAMPLES = ROOT / "examples" / "workflows"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    made = made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=64, val_rows=6, warm_steps=1))
    subprocess.run([sys.executable, EXAMPLES / "questions.py", made], check=True)
    return made


@pytest.mark.runtime
@pytest.mark.upstream
def test_an_engine_starts_and_answers_a_class_of_trinity_rft_s(tmp_path, toy):
    path = os.pathsep.join([str(modules(tmp_path / "modules")), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("VLLM_PLUGINS", None)
    registered = [sys.executable, "-c", "from importlib.metadata import entry_points as of; print(of())"]
    assert "trinity.common.models.vllm_patch" in subprocess.check_output(registered, env=env, text=True)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "-m", "trinity_compat", "debug", str(_yaml(tmp_path, toy)), "--port", port]
    words += ["--plugin-dir", str(EXAMPLES / "plugins"), "--module"]
    log = tmp_path / "serve.log"
    with log.open("w") as file:
        serving = subprocess.Popen(
            [*words, "inference_model"], env=env, cwd=tmp_path, stdout=file, stderr=file
        )
    try:
        until = time.monotonic() + 600
        while "serving" not in log.read_text():
            assert serving.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.2)
        asked = [*words, "workflow", "--task", "3"]
        done = subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("by the policy") == 8, done.stdout
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(120)


def _yaml(tmp_path, toy):
    config = yaml.safe_load((EXAMPLES / "plugin.yaml").read_text())
    config["checkpoint_root_dir"] = str(tmp_path / "checkpoints")
    config["model"]["model_path"] = f"{toy}/model"
    given = config["buffer"]["explorer_input"]
    given["default_workflow_type"] = "simple_workflow"
    for kind, part in (("tasksets", "train"), ("eval_tasksets", "val")):
        given[kind][0]["path"] = f"{toy}/data/{part}.jsonl"
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    return file
