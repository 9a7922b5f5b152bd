"""What the start check found is said at the launch's own word; models that are not here have stand-ins."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.job import known_models
from trinity_compat.job.known_models import stand_in
from trinity_compat.launch import read_argv
from trinity_compat.run.checks import error_keys, models, start_check
from trinity_compat.run.checks.report import StartRefusal, StartReport
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate import TranslateOptions, translate_launch

ARR = "actor_rollout_ref"
WORDS = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    f"{ARR}.actor.ppo_mini_batch_size=4",
    "data.seed=1",
    "reward_model.reward_manager=dapo",
    f"{ARR}.rollout.name=vllm",
    "+reward.reward_kwargs.x=1",
    f"{ARR}.model.path=Qwen/Qwen2.5-7B-Instruct",
    "trainer.total_training_steps=4",
]
RECORD = {
    "where": "run.sh:1",
    "arguments": [{"text": word, "where": f"run.sh:{line}"} for line, word in enumerate(WORDS, 2)],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    words = [word for word in WORDS if "reward" not in word]
    (launch,) = read_argv(["python3", "-m", "verl.trainer.main_ppo", *words]).launches
    config = yaml.safe_load(translate_launch(launch, TranslateOptions())[1])
    job = tmp_path_factory.mktemp("job")
    return make_plan(config, RunOptions(job=str(job)), cwd=Path.cwd(), device="cpu")


def told(made, monkeypatch, report):
    monkeypatch.setattr(start_check, "_new_report", lambda *_, **__: report)
    with pytest.raises(UserError) as caught:
        start_check.check(made, RECORD, execute=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("data.train_batch_size", "run.sh:3"),
        ("reward.reward_manager.name", "run.sh:6"),  # as older releases spell it
        (f"{ARR}.rollout", "run.sh:7"),  # a section: the last word that sets something in it
        (f"{ARR}.rollout.seed", "run.sh:1"),  # nobody set it: the launch
        ("", "run.sh:1"),
    ],
)
def test_a_refusal_names_the_line_of_its_word(made, monkeypatch, key, line):
    text = told(made, monkeypatch, StartReport(refused=[StartRefusal(key, "no", "veRL 0.9.1")]))
    assert text.startswith(f"{line}: ")
    assert "veRL 0.9.1 refuses to start: no" in text


def test_a_key_that_verl_does_not_have_is_named_at_its_line_with_the_nearest(made, monkeypatch, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("trainer:\n  trainer_config:\n    critic:\n      ppo_micro_batch_sz: 8\n")
    monkeypatch.setitem(RECORD, "yaml", str(file))
    why = "FSDPCriticConfig.__init__() got an unexpected keyword argument 'ppo_micro_batch_sz'"
    found = StartRefusal("critic.ppo_micro_batch_sz", why, "veRL 0.9.1")
    said = told(made, monkeypatch, StartReport(refused=[found]))
    assert said.startswith(f"{file}:4: ") and "__init__" not in said
    assert "veRL 0.9.1 has no such key; did you mean critic.ppo_micro_batch_size?" in said


def test_a_variable_that_is_not_set_is_named_where_the_file_names_it(made, monkeypatch, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("model:\n  model_path: ${oc.env:MY_MODEL}\n")
    monkeypatch.setitem(RECORD, "yaml", str(file))
    why = "KeyError raised while resolving interpolation: \"Environment variable 'MY_MODEL' not found\""
    twice = [StartRefusal(key, why, "veRL 0.9.1") for key in ("", "critic.model.path")]
    text = told(made, monkeypatch, StartReport(refused=twice))
    assert text.startswith(f"{file}:2: ${{oc.env:MY_MODEL}}: MY_MODEL is not set")
    assert text.count("MY_MODEL is not set") == 1
    assert "write ${oc.env:MY_MODEL,DEFAULT}" in text


def test_a_mapping_that_verl_cannot_set_is_told_where_to_write(made, monkeypatch):
    key = f"{ARR}.model.override_config.rope_scaling.type"
    text = told(made, monkeypatch, StartReport(refused=[StartRefusal(key, "no", "veRL 0.9.1")]))
    assert "write it into the model's config.json" in text


def test_all_that_was_found_is_said_and_what_was_judged_by_a_stand_in(made, monkeypatch):
    rollout = StartRefusal(f"{ARR}.rollout.name", "nor", "vLLM")
    found = [StartRefusal("data.train_batch_size", "no", "veRL 0.9.1"), rollout]
    text = told(made, monkeypatch, StartReport(refused=found, stand_ins={f"{ARR}.model.path": "Qwen2.5-7B"}))
    assert text.splitlines() == [
        "run.sh:3: data.train_batch_size=8: veRL 0.9.1 refuses to start: no",
        f"run.sh:7: {ARR}.rollout.name=vllm: vLLM refuses to start: nor",
        f"  hint: {ARR}.model.path is not here, and was checked with the configuration of Qwen2.5-7B",
    ]


def test_an_answer_serves_again_until_what_it_rests_on_changes(made, monkeypatch):
    asked = []
    monkeypatch.setattr(
        start_check,
        "_new_report",
        lambda *_, **__: asked.append(1) or StartReport(engine={"seed": 1}, versions={"verl": "0.9.1"}),
    )
    first = start_check.check(made, RECORD, execute=True)
    (made.job.root / "config").mkdir(exist_ok=True)
    made.job.write_config(start_check.texts(first))
    assert start_check.check(made, RECORD, execute=True) == first
    assert len(asked) == 1
    monkeypatch.setenv(start_check.VLLM_ELSEWHERE, "/elsewhere")
    start_check.check(made, RECORD, execute=True)
    assert len(asked) == 2


def test_neither_a_dry_run_s_answer_nor_that_of_a_dead_check_serves_a_run(made, monkeypatch):
    asked, answers = (
        [],
        [StartReport(versions={"verl": "0.9.1"}), StartReport(unchecked=["it died"]), StartReport()],
    )
    monkeypatch.setattr(
        start_check, "_new_report", lambda *_, **__: asked.append(1) or answers[len(asked) - 1]
    )
    (made.job.root / "config").mkdir(exist_ok=True)
    for execute, times in ((False, 1), (True, 2), (True, 3)):
        made.job.write_config(start_check.texts(start_check.check(made, RECORD, execute=execute)))
        assert len(asked) == times


def test_a_check_that_hangs_is_a_gap_too(made, monkeypatch):
    def hangs(argv, *, stdout, timeout, **_):
        stdout.write(b"imports vllm\n")
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(start_check.subprocess, "run", hangs)
    report = start_check._new_report(made, execute=True, native=False)
    assert report.unchecked == ["the start check itself did not end in 600 s: imports vllm"]


def test_a_check_that_dies_is_a_gap_that_is_said_and_stops_nothing(made, monkeypatch):
    monkeypatch.setenv(start_check.VLLM_ELSEWHERE, "")
    monkeypatch.setattr(start_check.python_command.sys, "executable", "/bin/false")
    report = start_check.check(made, RECORD, execute=True)
    assert report.refused == []
    assert "the start check itself failed" in " ".join(start_check.lines(report))


def test_a_report_survives_json():
    report = StartReport(
        [StartRefusal("a.b", "why", "veRL")], ["gap"], {"m": "Qwen"}, {"seed": 1}, {"verl": "0.9.1"}
    )
    assert StartReport.loads(report.dumps()) == report
    assert json.loads(report.dumps()) == asdict(report)


@pytest.mark.parametrize(
    ("path", "name", "layers"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B", 24),
        ("/models/Qwen2.5-Math-7B", "Qwen2.5-Math-7B", 28),
        ("~/models/Qwen2.5-VL-7B-Instruct", "Qwen2.5-VL-7B", 28),
        ("Qwen/Qwen3-30B-A3B-Base", "Qwen3-30B-A3B", 48),
        ("deepseek-ai/deepseek-llm-7b-chat", "deepseek-llm-7b-chat", 30),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", 32),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-1.5B", 28),
    ],
)
def test_a_stand_in_is_the_model_that_the_name_says(path, name, layers):
    chosen = stand_in(path)
    assert (chosen.name, chosen.config["num_hidden_layers"], chosen.generic) == (name, layers, False)


@pytest.mark.parametrize(
    ("path", "name", "experts"),
    [
        ("/models/Qwen3.5-122B-A10B", "Qwen3.5-122B-A10B", 256),
        ("Qwen/Qwen3.5-397B-A17B", "Qwen3.5-397B-A17B", 512),
        ("Qwen/Qwen3.6-35B-A3B", "Qwen3.5-35B-A3B", 256),
        ("/Qwen3-235B-A22B-Instruct-2507", "Qwen3-235B-A22B-2507", 128),
        ("tencent/Hy3", "Hy3", 192),
        ("/Qwen3-30B-MoE-merge", "Qwen3-30B-A3B", 128),
    ],
)
def test_the_stand_in_of_a_mixture_of_experts_has_its_experts(path, name, experts):
    chosen = stand_in(path)
    language = chosen.config.get("text_config", chosen.config)
    assert (chosen.name, language["num_experts"]) == (name, experts)


@pytest.mark.parametrize("path", ["/ckpt/step_100", "Qwen/Qwen3-8B"])
def test_expert_parallelism_is_judged_by_a_model_with_experts(tmp_path, path):
    arguments = {"cwd": tmp_path, "execute": True, "critic": False}
    tree = verl_of(path)
    tree["actor_rollout_ref"]["rollout"] = {"expert_parallel_size": 8}
    told = dict(models.localise(tree, tmp_path, **arguments))
    assert told == {"actor_rollout_ref.model.path": "Qwen3-30B-A3B (the name does not say which model it is)"}
    (tree := verl_of("Hy3"))["actor_rollout_ref"]["rollout"] = {"expert_parallel_size": 8}
    assert dict(models.localise(tree, tmp_path, **arguments)) == {"actor_rollout_ref.model.path": "Hy3"}


def test_a_name_that_says_nothing_gets_a_generic_one():
    assert stand_in("/ckpt/sft/step_100").generic


def test_every_stand_in_is_reachable_by_its_own_name():
    for entry in known_models._table()["models"]:
        assert stand_in(entry["name"]).name == entry["name"]


def verl_of(path):
    return {"actor_rollout_ref": {"model": {"path": str(path)}}, "critic": {"model": {"path": "org/critic"}}}


def test_a_model_that_is_here_serves_and_one_with_code_only_where_it_may_run(tmp_path):
    here = tmp_path / "model"
    here.mkdir()
    (here / "config.json").write_text('{"model_type": "qwen2"}')
    tree = verl_of(here)
    arguments = {"cwd": tmp_path, "critic": False}
    assert list(models.localise(tree, tmp_path / "new", execute=False, **arguments)) == []
    assert tree["actor_rollout_ref"]["model"]["path"] == str(here)
    (here / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "code.C"}}')
    assert list(models.localise(tree, tmp_path / "new", execute=True, **arguments)) == []
    (written,) = models.localise(tree, tmp_path / "new", execute=False, **arguments)
    assert written[0] == "actor_rollout_ref.model.path"


def test_a_stand_in_is_a_folder_with_configuration_and_tokenizer(tmp_path):
    tree = verl_of("Qwen/Qwen3-8B")
    told = dict(models.localise(tree, tmp_path, cwd=tmp_path, execute=True, critic=True))
    assert set(told) == {"actor_rollout_ref.model.path", "critic.model.path"}
    folder = Path(tree["actor_rollout_ref"]["model"]["path"])
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    assert (folder / "tokenizer.json").is_file() and (folder / "tokenizer_config.json").is_file()


KEYS = [
    "algorithm",
    "algorithm.use_kl",
    "a",
    "a.actor",
    "a.actor.clip_ratio",
    "a.rollout.n_gpus",
    "a.actor.x_y",
]


@pytest.mark.parametrize(
    ("text", "section", "key"),
    [
        ("clip_ratio must be positive", "a.actor", "a.actor.clip_ratio"),
        ("rollout.n_gpus must divide", "a.actor", "a.rollout.n_gpus"),  # spelled with its section
        ("n_gpus must divide", "a.actor", "a.actor"),  # of another section, by its bare name
        ("n_gpus must divide", "", "a.rollout.n_gpus"),
        ("x_y and use_kl", "algorithm.use_kl", "algorithm.use_kl"),  # known exactly already
        ("no words about it", "a", "a"),
        ("C.__init__() got an unexpected keyword argument 'old'\nfull_key: a.actor", "", "a.actor.old"),
    ],
)
def test_an_error_s_words_lead_to_its_key(text, section, key):
    assert error_keys.key_of(ValueError(text), section, KEYS) == key


def test_a_bare_assertion_is_told_by_its_code():
    with pytest.raises(AssertionError) as caught:
        exec(compile("assert 1 == 2", __file__, "exec"))
    assert error_keys.words_of(caught.value).startswith("it asserts `")
    assert error_keys.words_of(ValueError("two\nlines")) == "two lines"
    assert error_keys.words_of(NotImplementedError()) == "it raises NotImplementedError without a message"


def test_a_plugin_of_trinity_rft_s_does_not_end_the_check(monkeypatch):
    made = SimpleNamespace(env={})
    monkeypatch.setattr(optional_packages, "version", {"trinity-rft": "0.6.0"}.get)
    assert start_check._environment(made, execute=False, native=True)["VLLM_PLUGINS"] == "trinity_compat"
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert start_check._environment(made, execute=False, native=True)["VLLM_PLUGINS"] == "mine"
    monkeypatch.delenv("VLLM_PLUGINS")
    monkeypatch.setattr(optional_packages, "version", {}.get)
    assert "VLLM_PLUGINS" not in start_check._environment(made, execute=False, native=True)


@pytest.mark.verl
def test_a_backend_that_no_release_of_vllm_has_is_refused_for_certain():
    from vllm.config.attention import AttentionConfig

    with pytest.raises(ValueError, match="NOSUCH") as refused:
        AttentionConfig(backend="NOSUCH")
    assert error_keys.is_of_every_release(refused.value, ["attention_backend"])


@pytest.mark.parametrize(
    ("message", "certain"),
    [
        ("Unknown quantization method: nosuch. Must be one of ['awq', 'fp8'].", True),
        ("Unknown quantization method: bitsandbytes. Must be one of ['awq', 'fp8'].", False),  # 0.24.0 has it
        (
            "fp8 quantization is currently not supported in cpu.",
            False,
        ),  # the device's word, not the release's
    ],
)
def test_a_quantization_that_no_release_has_is_refused_for_certain(message, certain):
    assert error_keys.is_of_every_release(ValueError(message), ["quantization"]) is certain
