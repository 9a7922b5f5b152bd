"""What looks like a secret is neither demanded nor written: names, values, the header's command line."""

from __future__ import annotations

import re

import pytest
import yaml

from trinity_compat.common.redaction import is_secret, masked, referred, shown
from trinity_compat.common.resources import data_path
from trinity_compat.translate import TranslateOptions, translate_launch

from .helpers import script
from .test_symbols import SCRIPT


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "MAX_TOKEN_LEN",
        "AUTHOR",
        "MONKEY",
        "KEYS_DIR",
        "PATH",
        "PASSES",
        "COMPATIBLE",
        "max_token_len",
        "tokenizer_path",
        "key_padding_mask",
        "num_key_value_heads",
        "eos_token",
        "prompt_key",
        "reward_fn_key",
        "solution_key",
        "tool_name_key",
        "forward_pass",
        "PWD",
    ],
)
def test_a_word_that_only_contains_one_is_no_secret(name):
    assert not is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "GH_PAT",
        "DB_PASSWORD",
        "HTTP_AUTH",
        "my_secret",
        "openai_key",
        "openaiKey",
        "openaikey",
        "OPENAI_KEY_2",
        "accessToken",
        "key",
        "token",
        "dbpassword",
        "client_secret_value",
        "db_pwd",
    ],
)
def test_a_name_with_a_whole_secret_word_is_secret(name):
    assert is_secret(name)


def test_no_key_of_veRL_or_Trinity_is_but_those_that_hold_one():
    # The table of upstream's symbols and the schemas of reports have names of ours and of code, not keys.
    files = [
        file
        for file in data_path("translators").rglob("*.json")
        if file.name != "upstream_symbols.json" and file.parent.name != "schemas"
    ]
    quoted = {name for file in files for name in re.findall(r'"([\w.-]+)"', file.read_text(encoding="utf-8"))}
    names = {name.rpartition(".")[2] for name in quoted}
    assert "reward_fn_key" in names
    assert "enable_thinking_key" in names
    held = {"OPENAI_API_KEY", "Secrets", "api_key", "hf_token"}
    assert {name for name in names if is_secret(name)} == {*held, "key", "token"}


def test_only_secrets_are_left_out_of_the_explorers_environment():
    exports = "export TOKENIZERS_PARALLELISM=true\nexport MAX_TOKENS=9\n"
    translation, text = translate_launch(script(exports + SCRIPT), TranslateOptions())
    kept = {"NCCL_DEBUG": "WARN", "TOKENIZERS_PARALLELISM": "true", "MAX_TOKENS": "9"}
    assert yaml.safe_load(text)["explorer"]["env_vars"] == kept
    [said] = [caution for caution in translation.warnings if caution.code == "TW012"]
    assert said.message.endswith(": HF_TOKEN")


def test_resolve_does_not_ask_for_a_secret():
    exports = "export WANDB_API_KEY=$MY_KEY\nexport DATABASE=$DB\n"
    environ = {"HOME": "/home/u", "USER": "u", "DB": "x"}
    _, text = translate_launch(script(exports + SCRIPT), TranslateOptions(resolve=True, environ=environ))
    assert yaml.safe_load(text)["explorer"]["env_vars"] == {"NCCL_DEBUG": "WARN", "DATABASE": "x"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env", "HF_TOKEN=abc,d"], ["--env", "HF_TOKEN=***"]),
        (["--env=HF_TOKEN=abc"], ["--env=HF_TOKEN=***"]),
        (["--set", "explorer.env_vars.HF_TOKEN=abc"], ["--set", "explorer.env_vars.HF_TOKEN=***"]),
        (["++ray_kwargs.env_vars.HF_TOKEN=abc"], ["++ray_kwargs.env_vars.HF_TOKEN=***"]),
        (["+env_vars={A: b, HF_TOKEN: abc}"], ["+env_vars={A: b, HF_TOKEN: ***}"]),
        (['+env_vars={"HF_TOKEN": "abc", "A": 1}'], ['+env_vars={"HF_TOKEN": "***", "A": 1}']),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["trainer.token=abc"], ["trainer.token=***"]),
        (["p=postgresql://me:a/b@c@host:5432/db"], ["p=postgresql://me:***@host:5432/db"]),
        (["data.x=https://h/f?token=abc&y=1"], ["data.x=https://h/f?token=***&y=1"]),
        (["+reward_kwargs.openai_key=abc"], ["+reward_kwargs.openai_key=***"]),
        (["+k={key: abc, x: 1}"], ["+k={key: ***, x: 1}"]),
        (["+k.base_url=https://:abc@h/v1"], ["+k.base_url=https://:***@h/v1"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words, expected):
    assert list(masked(words)) == expected


@pytest.mark.parametrize(
    "word",
    [
        "data.prompt_key=prompt",
        "data.reward_fn_key=data_source",
        "data.max_token=3",
        "--env",
        "MAX_TOKENS=3",
        "a=https://host:8000/x",
        "trainer.logger=['console']",
        "error: unknown key: trainer.foo",
        "step:3 - rollout_corr/chi2_token:0.17 - x:1",
    ],
)
def test_what_is_none_is_shown_as_it_is(word):
    assert list(masked([word, "x"])) == [word, "x"]


@pytest.mark.timeout(120)
def test_a_word_of_any_length_is_gone_through_once():
    """Gone through from each of its letters, this one takes an hour."""
    word = "a" * 300_000
    assert shown(f"{word} api_key={word}") == f"{word} api_key=***"


def test_the_name_of_a_teacher_s_data_is_none():
    word = "distillation.teacher_models.gsm8k.key=openai/gsm8k"
    assert shown(f"++{word}") == f"++{word}"
    assert list(masked([word])) == [word]
    tree = {"verl": {"distillation.teacher_models.gsm8k.key": "openai/gsm8k", "judge.key": "sk-1"}}
    assert referred(tree)[0] == {"verl": tree["verl"] | {"judge.key": "${oc.env:KEY}"}}
    assert shown("judge.key=sk-1") == "judge.key=***"
