"""What our plugin does in each of vLLM's processes."""

import pytest

from trinity_compat.explorer.engine.arguments import engine_environment
from trinity_compat.plugins import vllm_entry
from trinity_compat.verl_config.pinned import compose_pinned

pytestmark = pytest.mark.verl


@pytest.mark.parametrize("asked", [True, False])
def test_full_determinism_is_taken_over_from_the_environment(monkeypatch, asked):
    from verl.workers.engine import utils

    from trinity_compat.plugins import vllm_unpacked_linear

    seeds = []
    monkeypatch.setattr(utils, "enable_full_determinism", seeds.append)
    monkeypatch.setattr(vllm_unpacked_linear, "apply", lambda: None)
    name = "actor_rollout_ref.rollout"
    verl = compose_pinned({f"{name}.name": "vllm", f"{name}.full_determinism": asked, f"{name}.seed": 7})
    for variable, value in engine_environment(verl, "cpu", index=1).items():
        monkeypatch.setenv(variable, value)
    vllm_entry.register()
    assert seeds == ([8] if asked else [])
