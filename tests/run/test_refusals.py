"""What cannot be run decoupled is refused with key, place and reason, before anything starts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.job.vllm_arguments import CPU
from trinity_compat.launch import read_script
from trinity_compat.run import dry_run
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan import refusals
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch

SCRIPT = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.model.path=org/model actor_rollout_ref.rollout.name=vllm \\
    trainer.total_training_steps=4 \\
    {word}
"""


@pytest.fixture(autouse=True)
def no_start_check(monkeypatch):
    """What veRL and vLLM say of a plan has tests of its own, test_start_objects.py; here it costs seconds."""
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())


def planned(tmp_path, word, *options, device=None):
    """What a dry run of a script with ``word`` in its 8th line prints."""
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(word=word))
    return list(dry_run.lines(str(script), (), RunOptions(sets=options, device=device)))


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("actor_rollout_ref.rollout.name=lmdeploy", "veRL has no rollout of that name"),
        ("+data.sampler.class_path=mine.py", "veRL's default order"),
        ("data.continuous_token.enable=True", "no longer has its builder of tokens"),
        (
            "+actor_rollout_ref.rollout.quantization=torchao",
            "quantize the weights that they receive to fp8 only",
        ),
        (
            "actor_rollout_ref.rollout.pipeline_model_parallel_size=2",
            "rollout has pipeline stages",
        ),
        ("actor_rollout_ref.rollout.expert_parallel_size=8", "tensor_model_parallel_size × data_parallel"),
        ("actor_rollout_ref.rollout.enable_rollout_routing_replay=True", "does not store expert routes"),
        ("reward.reward_manager.name=collabllm", "no reward manager of that name"),
        ("reward.reward_manager.name=mine", "no reward manager of that name"),
        ("+actor_rollout_ref.rollout.agent.agent_loop_manager_class=mine.M", "out of the buffer"),
        ("actor_rollout_ref.actor.fsdp_config.qat.enable=True", "quantize nothing"),
        (
            "+actor_rollout_ref.rollout.multi_turn.interaction_config_path=x.yaml",
            "an agent loop of your own",
        ),
        (
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.enable_lora=True",
            "the explorer's engines take adapters where the trainer trains one",
        ),
        ("+actor_rollout_ref.rollout.engine_kwargs.vllm.tensor_parallel_size=2", "before the engine starts"),
        ("+ray_kwargs.ray_init.runtime_env.conda=mine", "share this Python and its packages"),
        ("+ray_kwargs.ray_init.runtime_env.working_dir=/elsewhere", "work in the launch's folder"),
        ("+ray_kwargs.ray_init.runtime_env.env_vars.N=1", "Ray takes texts only"),
    ],
)
def test_it_is_named_with_its_line_and_the_reason(tmp_path, word, why):
    with pytest.raises(UserError) as caught:
        planned(tmp_path, word)
    key, _, value = word.lstrip("+").partition("=")
    assert caught.value.message.startswith(f"{key}={value} cannot be run decoupled: ")
    assert why in caught.value.message
    assert (caught.value.where.file, caught.value.where.line) == (str(tmp_path / "run.sh"), 8)
    assert caught.value.hint


def test_a_switch_of_an_older_release_that_is_off_is_no_obstacle(tmp_path):
    assert planned(tmp_path, "data.continuous_token.enable=False")


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
def test_routes_of_the_rollout_are_refused_with_what_replays_the_trainer_s_own(tmp_path, engine):
    mode = f"actor_rollout_ref.actor.{engine}.router_replay.mode"
    routes = "actor_rollout_ref.rollout.enable_rollout_routing_replay=True"
    for words, refused, hint in (
        (f"{mode}=R3 {routes}", routes, f"leave it out, and write {mode}=R2, which replays"),
        (f"{mode}=R3", f"{mode}=R3", f"write {mode}=R2, which replays"),
    ):
        with pytest.raises(UserError) as caught:
            planned(tmp_path, f"model_engine={engine} {words}", device="cuda")
        assert caught.value.message.startswith(f"{refused} cannot be run decoupled: ")
        assert caught.value.hint.startswith(hint) and caught.value.where.line == 8
    (tmp_path / "run.sh").write_text(SCRIPT.format(word=f"model_engine={engine} {mode}=R2"))
    assert list(dry_run.lines(str(tmp_path / "run.sh"), (), RunOptions(device="cuda", dry_run=True)))


def test_a_value_where_verl_has_a_section_is_refused_with_what_is_in_it(tmp_path):
    with pytest.raises(UserError) as caught:
        planned(tmp_path, "actor_rollout_ref.actor.policy_loss=grpo")
    assert caught.value.message.startswith(
        "actor_rollout_ref.actor.policy_loss=grpo: veRL 0.9.1 has a section"
    )
    assert "clip_cov_lb" in caught.value.message
    assert caught.value.where.line == 8
    assert planned(tmp_path, "trainer.profile_steps=null actor_rollout_ref.actor.policy_loss.loss_mode=gspo")


def test_a_server_that_the_script_starts_is_named_and_started_by_nobody(tmp_path, capsys):
    script = tmp_path / "run.sh"
    server = f"touch {tmp_path}/started; vllm serve m --port 8000 &\n"
    script.write_text(server + SCRIPT.format(word="trainer.nnodes=1"))
    list(dry_run.lines(str(script), (), RunOptions(device="cuda")))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "vllm serve" in line]
    assert line.startswith(f"{script}:1: warning TP120 vllm serve m --port 8000 & starts in the background")
    assert not (tmp_path / "started").exists()


def test_how_long_filtering_groups_may_take_is_told(tmp_path):
    word = "algorithm.filter_groups.enable=True data.gen_batch_size=24"
    assert any(
        "a step draws 24 tasks at a time until 8 groups differ in reward" in line
        for line in planned(tmp_path, word)
    )
    with pytest.raises(UserError, match="KL penalty is added in the trainer"):
        planned(
            tmp_path,
            f"{word} algorithm.filter_groups.metric=seq_final_reward algorithm.use_kl_in_reward=True",
        )


def test_an_older_release_s_spelling_has_its_line_too(tmp_path):
    with pytest.raises(UserError, match="no reward manager of that name") as caught:
        planned(tmp_path, "reward_model.reward_manager=mine")
    assert caught.value.where.line == 8


@pytest.mark.parametrize(
    "word",
    [
        "reward.reward_model.enable=False",
        "data.gen_batch_size=24",
        "actor_rollout_ref.rollout.pipeline_model_parallel_size=1",
        "actor_rollout_ref.model.lora_rank=8",
    ],
)
def test_what_asks_for_nothing_or_can_be_done_runs(tmp_path, word):
    assert any("4 veRL steps" in line for line in planned(tmp_path, word))


def test_an_adapter_that_travels_in_whole_models_is_said_with_the_reason(tmp_path):
    rank = "actor_rollout_ref.model.lora_rank=8"
    merged = "LoRA: each version is a whole model with the adapter merged in"
    for more, said in (
        ("", False),
        ("actor_rollout_ref.model.lora.merge=True", False),
        ("+actor_rollout_ref.model.target_parameters=[experts.w1]", True),
    ):
        assert any(merged in line for line in planned(tmp_path, f"{rank} {more}")) is said


def test_what_a_set_asks_for_is_refused_too(tmp_path):
    with pytest.raises(UserError, match=r"rollout\.quantization=torchao cannot be run decoupled"):
        planned(tmp_path, "trainer.nnodes=1", "actor_rollout_ref.rollout.quantization=torchao")


def test_a_cpu_quantizes_nothing(tmp_path):
    fp8 = "actor_rollout_ref.rollout.quantization=fp8"
    with pytest.raises(UserError, match="quantizes on GPUs only, but this run is on a CPU") as caught:
        planned(tmp_path, f"+{fp8}", device="cpu")
    assert caught.value.where.line == 8
    assert planned(tmp_path, f"+{fp8}", device="cuda")


@pytest.mark.parametrize(
    "word",
    [
        "actor_rollout_ref.rollout.over_sample_rate=0.1",
        "actor_rollout_ref.rollout.agent.custom_async_server.path=mine.py",
        "actor_rollout_ref.rollout.disaggregation.enabled=True",
        "+actor_rollout_ref.rollout.checkpoint_manager_class=mine.M",
        "skip.rollout.enable=True",
    ],
)
def test_what_changes_no_answer_is_left_out_by_name(tmp_path, word):
    (line,) = [line for line in planned(tmp_path, word) if "is left out" in line]
    assert f"run.sh:8: {word.lstrip('+')} is left out: " in line


def test_remax_runs_without_a_filter_alone(tmp_path):
    remax = "algorithm.adv_estimator=remax"
    assert planned(tmp_path, remax)
    with pytest.raises(UserError, match="cannot be filtered by the standard deviation"):
        planned(tmp_path, f"{remax} algorithm.filter_groups.enable=True")


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "hf"])
def test_vllm_takes_the_place_of_another_engine_and_says_so(tmp_path, engine):
    said = planned(tmp_path, f"actor_rollout_ref.rollout.name={engine}")
    assert any(f"rollout.name={engine}: the explorer runs vLLM in its place" in line for line in said)


def test_what_is_meant_for_the_other_engine_alone_is_left_out_by_name(tmp_path):
    rollout = "actor_rollout_ref.rollout"
    word = f"{rollout}.name=sglang +{rollout}.engine_kwargs.sglang.attention_backend=fa3"
    (line,) = [line for line in planned(tmp_path, word) if "in its place" in line]
    assert line.endswith("left out: engine_kwargs.sglang.attention_backend=fa3")


def media(folder, column, rows):
    file = folder / "geo.parquet"
    pq.write_table(pa.table({"prompt": ["a"], column: pa.array(rows, pa.list_(pa.string()))}), file)
    return f"data.train_files={file}"


@pytest.mark.parametrize("column", ["images", "videos"])
def test_what_is_seen_needs_what_verl_opens_it_with(tmp_path, monkeypatch, column):
    words = media(tmp_path, column, [["a.png"]])
    monkeypatch.setattr(refusals, "find_spec", lambda name: None if name == "torchvision" else object())
    with pytest.raises(UserError, match="veRL opens them with torchvision, not installed here") as caught:
        planned(tmp_path, words)
    assert caught.value.hint == "pip install torchvision" and caught.value.where.line == 8
    monkeypatch.setattr(refusals, "find_spec", lambda name: object())
    assert planned(tmp_path, words)
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    assert planned(tmp_path, media(tmp_path, column, [[]]))


def test_sounds_need_no_vision_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    assert planned(tmp_path, media(tmp_path, "audios", [["a.wav"]]))


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("blok_size=32", "did you mean 'block_size'?"),
        ("rope_theta=1000000.0", "write hf_overrides.rope_parameters.rope_theta"),
    ],
)
def test_an_argument_that_vllm_does_not_take_is_named_with_its_line(tmp_path, argument, hint):
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm"
    with pytest.raises(UserError) as caught:
        planned(tmp_path, f"+{key}.{argument}")
    assert caught.value.message.startswith(f"{key}.{argument}: vLLM {CPU} has no argument")
    assert caught.value.where.line == 8
    assert hint in caught.value.hint


@pytest.mark.parametrize("word", ["model_engine=megatron", "--config-name=ppo_megatron_trainer.yaml"])
def test_megatron_on_a_cpu_is_refused_in_one_sentence(tmp_path, word):
    with pytest.raises(UserError, match="Megatron trains on GPUs only, but this run is on a CPU") as caught:
        planned(tmp_path, word)
    assert caught.value.where.line == 8


ENGINES = {
    "model_engine=veomni": ("veomni", "veomni"),
    "model_engine=torchtitan": ("torchtitan", "torchtitan"),
    "actor_rollout_ref.actor.strategy=fsdp_turbo": ("fsdp_turbo", "fsdp_turbo"),
    "model_engine=megatron": ("megatron", "megatron-core"),
}


@pytest.mark.parametrize("word", ENGINES)
def test_an_engine_that_needs_a_gpu_is_refused_on_a_cpu_by_its_name(tmp_path, word):
    with pytest.raises(UserError, match="trains on GPUs only, but this run is on a CPU") as caught:
        planned(tmp_path, word)
    assert caught.value.message.startswith(f"actor_rollout_ref.actor.strategy={ENGINES[word][0]}: ")
    assert caught.value.where.line == 8


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("engine", "hint"),
    [
        ("automodel", "veRL has no actor for automodel"),
        ("veomni", "write model_engine=veomni"),
    ],
)
def test_an_engine_that_verl_gives_fsdp_s_settings_is_refused_at_its_word(tmp_path, engine, hint, device):
    word = f"actor_rollout_ref.actor.strategy={engine}"
    with pytest.raises(UserError, match="with which it does not start") as caught:
        planned(tmp_path, word, device=device)
    assert caught.value.message.startswith(f"{word}: veRL 0.9.1 gives this engine FSDP's settings")
    assert caught.value.where.line == 8
    assert hint in caught.value.hint


def test_a_translated_launch_of_such_an_engine_is_refused_on_a_cpu_too(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(word="actor_rollout_ref.actor.strategy=fsdp_turbo"))
    _, text = translate_launch(read_script(script).launches[0], TranslateOptions(), root=tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError, match="strategy=fsdp_turbo: fsdp_turbo trains on GPUs only") as caught:
        list(dry_run.lines(str(tmp_path / "run.yaml"), (), RunOptions(device="cpu")))
    assert caught.value.where.file == str(tmp_path / "run.yaml")


@pytest.mark.parametrize("word", ENGINES)
def test_the_package_of_an_engine_is_demanded_where_the_run_trains(tmp_path, word):
    engine, package = ENGINES[word]
    with pytest.raises(UserError, match="which is not installed here") as caught:
        planned(tmp_path, word, device="cuda")
    message = f"actor_rollout_ref.actor.strategy={engine} trains with the package {package},"
    assert caught.value.message.startswith(message)
    installation = (
        "install it (PyPI does not have it)" if engine == "fsdp_turbo" else f"pip install {package}"
    )
    assert caught.value.hint.startswith(installation)
    assert caught.value.where.line == 8


@pytest.mark.parametrize("word", ENGINES)
def test_a_dry_run_for_another_machine_assumes_the_package_there(tmp_path, word):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.format(word=word))
    lines = dry_run.lines(str(script), (), RunOptions(device="cuda", dry_run=True))
    assert any(line.startswith("assumed ") and ENGINES[word][1] in line for line in lines)


@pytest.mark.parametrize(
    ("words", "key", "why"),
    [
        (
            "actor_rollout_ref.actor.strategy=fsdp_turbo",
            "algorithm.adv_estimator",
            "no value model of strategy",
        ),
        ("model_engine=torchtitan", "algorithm.adv_estimator", "no value model of strategy=torchtitan"),
    ],
)
def test_a_critic_is_refused_where_the_engine_has_none(tmp_path, words, key, why):
    script = SCRIPT.replace("adv_estimator=grpo", "adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4")
    (tmp_path / "run.sh").write_text(script.format(word=words))
    with pytest.raises(UserError, match=why) as caught:
        list(dry_run.lines(str(tmp_path / "run.sh"), (), RunOptions(device="cuda")))
    assert caught.value.message.startswith(f"{key}=gae cannot be run decoupled: ")
    assert caught.value.where.line == 2


@pytest.mark.parametrize("engine", ["veomni", "torchtitan"])
def test_lora_is_refused_where_the_engine_has_none(tmp_path, engine):
    words = f"model_engine={engine} actor_rollout_ref.model.lora_rank=8"
    with pytest.raises(UserError, match=f"veRL's engine {engine} trains no adapters") as caught:
        planned(tmp_path, words, device="cuda")
    assert caught.value.message.startswith("actor_rollout_ref.model.lora_rank=8 cannot be run decoupled: ")


def test_a_manager_that_the_reward_function_s_file_may_register_is_left_to_it(tmp_path):
    words = "reward.reward_manager.name=mine reward.custom_reward_function.path=mine.py"
    assert planned(tmp_path, words)
