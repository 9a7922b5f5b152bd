"""Runs that are scored by a model which the run itself serves: what is stored, what is learned, what a death
says."""

import os
import signal

import psutil
import pytest
import torch
from transformers import AutoModelForSequenceClassification, Qwen2Config, Qwen2ForSequenceClassification

from trinity_compat.buffer import open_buffer
from trinity_compat.runtime.toy import ToySpec, make_tokenizer, make_toy

ON = ["reward.reward_model.enable=True", "reward.custom_reward_function.path=null"]
JUDGE = '''
"""Asks the served model for one token, and scores its log-probability: a generative reward model."""
import aiohttp


async def compute_score(data_source, solution_str, ground_truth, extra_info, reward_router_address,
                        reward_model_tokenizer):
    prompt = reward_model_tokenizer.apply_chat_template(
        [{"role": "user", "content": solution_str}], tokenize=False, add_generation_prompt=True)
    asked = {"model": "MODEL", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"http://{reward_router_address}/v1/completions", json=asked) as reply:
            reply.raise_for_status()
            (choice,) = (await reply.json())["choices"]
    return choice["logprobs"]["token_logprobs"][0]
'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Answers that differ, and beside them a reward model of random weights: what it likes can be learned."""
    folder = make_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=256, val_rows=8, warm_steps=20))
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 5,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        num_labels=1,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Qwen2ForSequenceClassification(config).float().save_pretrained(folder / "rm")
    tokenizer.save_pretrained(folder / "rm")
    return folder


def rewards_by_step(one):
    """Of every trained answer: {step: [(stored reward, the text that veRL gives to the model)]}."""
    tokenizer, found = make_tokenizer(), {}
    buffer = open_buffer(f"sqlite:///{one.job}/buffer/experiences.db")
    for group in buffer.groups("train"):
        for part in group.experiences:
            answer = tokenizer.decode(part.response_ids).replace(tokenizer.eos_token, "")
            chat = [*group.task["raw_prompt"], {"role": "assistant", "content": answer}]
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            found.setdefault(group.explorer_step, []).append((part.reward, text))
    buffer.close()
    return found


@pytest.mark.runtime
@pytest.mark.whole
def test_a_policy_learns_what_a_served_model_likes(run, toy):
    words = [
        *ON,
        f"reward.reward_model.model_path={toy}/rm",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.total_training_steps=10",
        "trainer.save_freq=-1",
    ]
    sizes = {"TRAIN_PROMPTS": "16", "MINI_PROMPTS": "8"}
    one = run(*words, env=sizes).start().finish()
    assert one.code == 0, one.out + one.err
    assert one.alive() == []
    stored = rewards_by_step(one)
    assert {step: len(parts) for step, parts in stored.items()} == dict.fromkeys(range(1, 11), 128)
    model = AutoModelForSequenceClassification.from_pretrained(toy / "rm").eval()
    tokenizer = make_tokenizer()
    for reward, text in [pair for parts in stored.values() for pair in parts[::8]]:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            assert reward == pytest.approx(model(input_ids=ids).logits[0, 0].item(), abs=1e-4)
    means = [sum(reward for reward, _ in stored[step]) / 128 for step in sorted(stored)]
    spread = torch.tensor([reward for reward, _ in stored[1]]).std().item()
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + spread / 2, means
    assert "serves " in (one.job / "log" / "reward_model.log").read_text()


@pytest.mark.runtime
@pytest.mark.whole
def test_a_judge_s_death_ends_the_run_by_its_name(run, toy, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE.replace("MODEL", f"{toy}/model"))
    words = [
        "reward.reward_model.enable=True",
        f"reward.reward_model.model_path={toy}/model",
        f"reward.custom_reward_function.path={tmp_path}/judge.py",
        "trainer.total_training_steps=1000",
    ]
    one = run(*words).start()
    one.wait_for(lambda: one.trained_steps() >= 2)
    (server,) = one.processes("reward_model.vllm_server")
    os.kill(server.pid, signal.SIGKILL)
    one.ends()
    assert one.code == 1
    (error,) = one.errors
    assert "the reward_model ended with exit code 1" in error
    assert "the reward model's server ended with exit code -9" in error
    assert one.alive() == []
    rewards = [reward for parts in rewards_by_step(one).values() for reward, _ in parts]
    assert len(rewards) >= 2 * 64 and all(reward < 0 for reward in rewards) and len(set(rewards)) > 1
    assert not psutil.pid_exists(server.pid)
