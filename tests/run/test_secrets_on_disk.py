"""No secret in what a run writes, and the run gets it all the same."""

import json

import pytest
import yaml
from toy_plan import planned, source

from trinity_compat.common.redaction import hidden, referred, resolved
from trinity_compat.job import runtime_env
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run import config_files
from trinity_compat.run.acquire_job import differing
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.supervise.sides import commands_of

WANDB, API = "w4ndb-clear", "sk-clear"
WORDS = (
    f"+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY={WANDB}",
    f"+reward.custom_reward_function.reward_kwargs.api_key={API}",
    "+reward.custom_reward_function.reward_kwargs.model=judge",
)


def test_no_file_of_the_job_holds_a_secret(tmp_path):
    made, rest = source(*WORDS)
    options = RunOptions(sets=("explorer.env_vars.HF_TOKEN=hf-clear", *rest.sets), job=str(tmp_path / "job"))
    laid = make_plan(made.config, options, cwd=tmp_path, device="cpu")
    laid.job.create()
    config_files.write(laid, made, options, StartReport(engine={"hf_token": "hf-clear", "seed": 1}))
    written = {path.name: path.read_text() for path in (laid.job.root / "config").iterdir()}
    assert written.keys() >= {"run.json", "launch.json", "trinity.yaml", "verl.yaml", "audit.json"}
    for secret in (WANDB, API, "hf-clear"):
        assert [name for name, text in written.items() if secret in text] == []
        assert secret not in "\n".join([*laid.notes, *describe(laid)])
    assert "judge" in written["verl.yaml"]


def test_the_run_s_processes_get_them_through_their_environment(tmp_path, monkeypatch):
    laid = planned(*WORDS, job=str(tmp_path / "job"))
    laid.job.create()
    laid.spec.save(laid.job.spec_path)
    kwargs = ("reward", "custom_reward_function", "reward_kwargs", "api_key")
    assert at(laid.job.load_spec(), *kwargs).startswith("${oc.env:")
    commands = commands_of(laid, "127.0.0.1:1")
    assert {command.env["WANDB_API_KEY"] for command in commands} == {WANDB}  # of the runtime environment
    for name, value in commands[-1].env.items():
        monkeypatch.setenv(name, value)
    loaded = RunSpec.load(laid.job.spec_path)
    assert at(loaded, *kwargs) == API
    assert loaded == laid.spec
    assert runtime_env.variables(loaded.verl)["WANDB_API_KEY"] == WANDB


def at(spec, *path):
    node = spec.verl
    for name in path:
        node = node[name]
    return node


def test_another_key_is_no_other_run(tmp_path):
    laid = planned(*WORDS, job=str(tmp_path / "job"))
    laid.job.create()
    laid.spec.save(laid.job.spec_path)
    other = planned(*(word.replace(API, "sk-other") for word in WORDS), job=str(tmp_path / "job"))
    assert list(differing(laid.job.load_spec(), other.spec)) == []


def test_the_yaml_refers_to_the_environment_and_runs_with_it(tmp_path, monkeypatch):
    made, _ = source(*WORDS)
    path = tmp_path / "x.yaml"
    path.write_text(made.yaml_text)
    assert "${oc.env:API_KEY}" in made.yaml_text
    monkeypatch.setenv("API_KEY", API)
    laid = make_plan(from_yaml(path).config, RunOptions(), cwd=tmp_path, device="cpu")
    assert at(laid.spec, "reward", "custom_reward_function", "reward_kwargs", "api_key") == API


def test_a_yaml_with_secrets_of_its_own_is_recorded_without_them(tmp_path):
    made, _ = source(*WORDS)
    path = tmp_path / "x.yaml"
    path.write_text(made.yaml_text.replace("${oc.env:API_KEY}", API))
    given = from_yaml(path)
    assert API not in given.yaml_text
    assert API in json.dumps(given.config)
    assert yaml.safe_load(given.yaml_text).keys() == given.config.keys()


@pytest.mark.parametrize("key", ["data.prompt_key", "data.max_prompt_length", "pad_token"])
def test_a_value_that_is_not_secret_is_shown(key):
    assert hidden(key, "value") == "value"


def test_references_come_back_whole():
    tree = {"a": {"api_key": "x", "list": [{"token": "y"}], "n": 3, "url": "http://u:p@h"}}
    saved, variables = referred(tree, named="path")
    assert "x" not in variables.keys() | {saved["a"]["api_key"]}
    assert "p" not in saved["a"]["url"].split("@")[0].split(":")
    assert resolved(saved, variables) == tree
    assert resolved(saved, {}) == saved
    assert referred(saved, named="path") == (saved, {})


def test_a_url_is_shown_without_its_password():
    tree = {"path": "postgresql://u:p@h/db", "base_url": "https://u:${oc.env:MINE}@h"}
    saved, variables = referred(tree)
    assert saved == {"path": "postgresql://u:${oc.env:PATH_PASSWORD}@h/db", "base_url": tree["base_url"]}
    assert variables == {"PATH_PASSWORD": "p"}, "PATH means something else"
    assert hidden("", saved) == saved
    assert resolved(saved, variables) == {**tree, "path": tree["path"]}


def test_a_sentence_is_no_secret_for_a_word_in_it():
    prompt = {"system_prompt": "Write the token: one word.\nAnswer with password=… where you can."}
    assert referred(prompt) == (prompt, {})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("${oc.env:OPENAI_API_KEY}", "${oc.env:OPENAI_API_KEY}"),
        ("${oc.env:OPENAI_API_KEY,sk-clear}", "${oc.env:OPENAI_API_KEY}"),  # ${OPENAI_API_KEY:-sk-clear}
        ("Bearer ${oc.env:TOKEN}", "Bearer ${oc.env:TOKEN}"),
    ],
)
def test_a_script_s_own_variable_keeps_its_name(text, kept):
    assert referred({"api_key": text}) == ({"api_key": kept}, {})
