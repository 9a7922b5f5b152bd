"""The weight receiver against the source of the pinned GPU release of vLLM, not the CPU's release."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    from trinity_compat.runtime.toy import ToySpec, make_toy

    folder = tmp_path_factory.mktemp("vllm_024")
    toy = make_toy(folder / "toy", ToySpec(train_rows=8, val_rows=2, warm_steps=1))
    script = [str(ROOT / "scripts" / "unpack_vllm.sh"), "0.24.0"]
    source = subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_024_worker.py"), str(toy / "model"), str(folder / "w")],
        env={**os.environ, "PYTHONPATH": f"{source}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert told, done.stderr[-3000:]
    return json.loads(told[0].removeprefix("FOUND "))


def test_the_source_is_the_pinned_release_s(found):
    assert found["version"] == "0.24.0"


def test_experts_lie_as_the_kernel_wants_them_after_every_update(found):
    """On Blackwell vLLM swaps the halves of w13 once they are loaded: without that step gate and up are
    exchanged, in silence."""
    assert found["updates"] == [[{"tensors": 2}, True, False]] * 2


def test_damaged_weights_touch_no_layer(found):
    assert "are not what was published" in found["damaged"]["damaged"]


def test_a_quantised_model_is_taken_apart_loaded_and_put_together(found):
    assert found["quantised"] == ["prepare", "load", "process"]


def test_also_when_the_handover_breaks_off(found):
    assert found["quantised, broken off"] == ["prepare", "load", "process", "failed"]
