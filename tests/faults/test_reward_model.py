"""Runs that are scored by a model which the run itself serves: what is stored, what is learned, what a death
says."""

import os
import signal

import psutil
import pytest
from judge_toy import check_learned, check_scores, make_judge_toy, trained_answers
from transformers import AutoModelForSequenceClassification

from trinity_compat.run.toy import make_tokenizer

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
    return make_judge_toy(tmp_path_factory.mktemp("toy"))


def rewards_by_step(one):
    """Of every trained answer: {step: [(stored reward, the text that veRL gives to the model)]}."""
    tokenizer = make_tokenizer()

    def text_of(task, part):
        answer = tokenizer.decode(part.response_ids).replace(tokenizer.eos_token, "")
        chat = [*task["raw_prompt"], {"role": "assistant", "content": answer}]
        return tokenizer.apply_chat_template(chat, tokenize=False)

    return {
        step: [(part.reward, text_of(task, part)) for task, part in parts]
        for step, parts in trained_answers(one).items()
    }


@pytest.mark.runtime
@pytest.mark.nightly
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
    check_scores(model, [pair for parts in stored.values() for pair in parts[::8]])
    check_learned([[reward for reward, _ in stored[step]] for step in sorted(stored)])
    assert "serves " in (one.job / "log" / "reward_model.log").read_text()


@pytest.mark.runtime
@pytest.mark.nightly
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
