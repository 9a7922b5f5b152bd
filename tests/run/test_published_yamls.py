"""The published guide's own files train: a tiny model and data in place of the paths, nothing else changed.

``published/`` holds what the guides print, without their comments: ppo.yaml and grpo.yaml (align_with_verl),
and the stages of the configuration guide, which stand on grpo.yaml here. Their 15 epochs of so few rows are
one batch of 256 tasks; the first stage says a hundred steps itself.
"""

import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trinity_compat.run.job_dir.export import to_hf

PUBLISHED = Path(__file__).parent / "published"
MODELS = ("Qwen2-7B-Instruct", "deepseek-llm-7b-chat")
REWARD_MODEL = "FsfairX-LLaMA3-RM-v0.1"
LOCAL = {"deepseek-ai/deepseek-llm-7b-chat": "${oc.env:HOME}/models/deepseek-llm-7b-chat"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folders that the files name, below a home of their own: a model that answers ``say 3`` by ``####``
    and any digit, and a reward model of random weights."""
    folder = tmp_path_factory.mktemp("home")
    write_models(folder / "models")
    for name, count in (("gsm8k", 18), ("math", 1)):
        write_tasks(folder / "data" / name, count)
    write_conversations(folder / "data" / "warm")
    return folder


def write_models(folder):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

    from trinity_compat.run.toy import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    sizes = {
        "vocab_size": len(tokenizer) + 5,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    }
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    policy = Qwen2Config(tie_word_embeddings=True, bos_token_id=None, **sizes, **special)
    model = Qwen2ForCausalLM(policy).float()
    learn_the_form(model.train(), tokenizer)
    judge = Qwen2Config(num_labels=1, initializer_range=0.2, bos_token_id=None, **sizes, **special)
    made = dict.fromkeys(MODELS, model) | {REWARD_MODEL: Qwen2ForSequenceClassification(judge).float()}
    for name, each in made.items():
        each.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def learn_the_form(model, tokenizer):
    import torch

    rng, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        pairs = [(rng.randrange(10), rng.randrange(10)) for _ in range(64)]
        chats = [[{"role": "user", "content": f"say {asked}"}] for asked, _ in pairs]
        texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
        answers = [f"#### {said}{tokenizer.eos_token}" for _, said in pairs]
        whole = ["".join(both) for both in zip(texts, answers, strict=True)]
        ids = torch.tensor(tokenizer(whole, add_special_tokens=False)["input_ids"])
        labels = torch.full_like(ids, -100)
        labels[:, -7:] = ids[:, -7:]
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()


def write_tasks(folder, count):
    """In veRL's columns, as its own preparation of GSM8K writes them."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True)
    for split, number_of in (("train", count), ("test", 2)):
        rows = [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"say {number % 10}"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(number % 10)},
                "extra_info": {"split": split, "index": number},
            }
            for number in range(number_of)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")


def write_conversations(folder):
    folder.mkdir(parents=True)
    said = [("user", "say {}"), ("assistant", "#### {}")]
    rows = [
        {"message": [{"role": role, "content": text.format(number % 10)} for role, text in said]}
        for number in range(640)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(home, folder, text, *options):
    file = folder / "x.yaml"
    file.write_text(text)
    env = {
        **os.environ,
        "HOME": str(home),
        # Else vLLM looks at each architecture anew, in a process that imports torch.
        "VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm")),
        "TRINITY_DATASET_PATH": str(home / "data" / "warm"),
        "WANDB_MODE": "offline",
    }
    command = [sys.executable, "-m", "trinity_compat", "run", "x.yaml", "--device", "cpu", *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    config = yaml.safe_load(text)
    return folder / "checkpoints" / config["project"] / config["name"], done.stdout


def published(name):
    """The file's text, with the model of a hub at a place of this machine."""
    text = (PUBLISHED / name).read_text()
    for hub, local in LOCAL.items():
        text = text.replace(hub, local)
    return text


def rows(job, statement):
    with sqlite3.connect(f"file:{job}/buffer/experiences.db?mode=ro", uri=True) as connection:
        return connection.execute(statement).fetchall()


def metrics(job, name):
    """Step → value of one of the trainer's metrics."""
    told = rows(job, "select step, metrics from metrics where role = 'trainer' order by step")
    return {step: found[name] for step, text in told if name in (found := json.loads(text))}


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def differ(one, other):
    return any((one[name] != value).any() for name, value in other.items() if name in one)


@pytest.mark.runtime
@pytest.mark.nightly
def test_the_guide_s_ppo_file_trains_on_what_its_reward_model_likes(home, tmp_path):
    job, _ = run(home, tmp_path, published("ppo.yaml"))
    assert rows(job, "select trainer_step, count(*) from ledger group by 1") == [(1, 256)]
    rewards = [reward for (reward,) in rows(job, "select distinct reward from experiences")]
    assert len(rewards) > 10  # a model's, not a rule's 0 and 1
    assert all(value > 0 for value in metrics(job, "critic/vf_loss").values())
    left = to_hf(job, step=1, out=tmp_path / "hf")
    assert differ(weights(left), weights(home / "models" / "Qwen2-7B-Instruct"))


@pytest.mark.runtime
@pytest.mark.nightly
def test_the_guide_s_grpo_file_trains(home, tmp_path):
    job, _ = run(home, tmp_path, published("grpo.yaml"))
    assert rows(job, "select trainer_step, count(*) from ledger group by 1") == [(1, 2048)]


@pytest.mark.runtime
@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_guide_s_stages_train_and_the_second_begins_where_the_first_ended(home, tmp_path):
    text = f"{published('grpo.yaml')}\n{published('stages.yaml')}"
    job, told = run(home, tmp_path, text)
    warm, rft = job / "sft_warmup", job / "rft"
    losses = metrics(warm, "actor/loss")
    assert sorted(losses) == list(range(1, 101)) and losses[100] < losses[1]
    left = warm / "global_step_100" / "hf"  # merged: with an interval of its own veRL writes shards alone
    assert f"stage rft begins with the model {left}" in told
    assert rows(rft, "select trainer_step, count(*) from ledger group by 1") == [(1, 2048)]
    assert differ(weights(left), weights(home / "models" / "deepseek-llm-7b-chat"))
    status = subprocess.run(
        [sys.executable, "-m", "trinity_compat", "status", str(job)], capture_output=True, text=True
    )
    assert "1 sft_warmup  done, checkpoint of step 100" in status.stdout
    assert "2 rft         done, checkpoint of step 1" in status.stdout
