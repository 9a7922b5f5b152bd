"""Mode serve on a real engine: its weights are the newest checkpoint's, while it answers, until Ctrl-C."""

import re

import openai
import pytest
import torch
import yaml
from safetensors.torch import load_file


def checkpoint(job, model, step, seed):
    """What veRL leaves of a step, of weights that no other seed has."""
    actor = job / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    torch.manual_seed(seed)
    tensors = load_file(model / "model.safetensors")
    changed = {name: tensor + 0.5 * torch.randn_like(tensor) for name, tensor in tensors.items()}
    torch.save(changed, actor / "model_world_size_1_rank_0.pt")
    (job / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_newest_checkpoint_is_served_until_ctrl_c(run, tmp_path, toy):
    config = {
        "mode": "serve",
        "project": "toy",
        "name": "grpo",
        "model": {"model_path": str(toy / "model"), "max_prompt_tokens": 64, "max_response_tokens": 16},
        "cluster": {"node_num": 1, "gpu_per_node": 1},
        "explorer": {"proxy_port": 0, "service_status_check_interval": 1},
    }
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
    one = run(yaml=tmp_path / "x.yaml", options=["--device", "cpu"])
    checkpoint(one.job, toy / "model", 2, seed=0)
    one.start()

    def tells(step):
        return re.search(
            rf"serves the weights of step {step} at (http://127\.0\.0\.1:\d+/v1); Ctrl-C", one.out
        )

    one.wait_for(lambda: tells(2), timeout=300)
    client = openai.OpenAI(base_url=tells(2)[1], api_key="EMPTY", max_retries=0)

    def answers(**more):
        asked = [{"role": "user", "content": "sort 4321"}]
        made = client.chat.completions.create(
            model="", messages=asked, temperature=0.0, logprobs=True, **more
        )
        return [(each.message.content, each.logprobs.content[0].logprob) for each in made.choices]

    before = answers(n=2)
    assert before[0] == before[1] == answers()[0]
    with pytest.raises(openai.BadRequestError, match="leaves no room"):
        client.chat.completions.create(model="", messages=[{"role": "user", "content": "4321" * 99}])
    checkpoint(one.job, toy / "model", 4, seed=1)
    one.wait_for(lambda: tells(4), timeout=60)
    assert answers()[0] != before[0]
    one.ctrl_c()
    one.finish(60)
    assert one.code == 130
    assert one.out.splitlines()[-2:] == ["stopped; the same command serves again", str(one.job)]
    assert one.alive() == []
