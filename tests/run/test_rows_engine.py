"""Engines of a run on rows of files: one that cannot train here is refused, never replaced by FSDP."""

import os
import re
from pathlib import Path

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, from_yaml
from trinity_compat.run.script import static_reading
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall

EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
SCRIPT = """torchrun --nproc_per_node=${{PROCESSES:-1}} -m verl.trainer.sft_trainer \\
    data.train_files=/a.parquet data.messages_key=talk model.path=m \\
    {} trainer.logger=console
"""


def plan(words, device="cuda", *, dry_run=True):
    Path("sft.sh").write_text(SCRIPT.format(words))
    options = RunOptions(device=device, dry_run=dry_run)
    call = ScriptCall("sft.sh", (), options, str(Path.cwd()), dict(os.environ))
    source, options = source_of(next(iter(static_reading.invocations(call))), call)
    return plan_source(source, options, cwd=Path.cwd())


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


PACKAGES = {"automodel": "nemo-automodel", "veomni": "veomni", "torchtitan": "torchtitan"}
ENGINES = {name: f"engine={name} optim={name}" for name in (*PACKAGES, "megatron")}
CLASSES = {"automodel": "plugins.automodel_actor.ActorConfig", "torchtitan": "TorchTitanActorConfig"}
CLASSES |= {"veomni": "VeOmniActorConfig", "megatron": "McoreActorConfig"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_of_verls_is_planned_for_gpus_and_refused_on_a_cpu(engine):
    actor = plan(ENGINES[engine]).spec.verl["actor_rollout_ref"]["actor"]
    assert actor["strategy"] == engine and actor["_target_"].endswith(CLASSES[engine])
    title = "Megatron" if engine == "megatron" else engine
    with pytest.raises(UserError, match=f"engine={engine}: {title} trains on GPUs only") as raised:
        plan(ENGINES[engine], "cpu")
    assert str(raised.value.where).endswith("sft.sh:3")
    assert "engine=fsdp optim=fsdp" in raised.value.hint


@pytest.mark.parametrize("engine", PACKAGES)
def test_the_package_of_an_engine_is_demanded_where_the_run_trains(engine):
    with pytest.raises(UserError, match=f"trains with the package {PACKAGES[engine]}") as raised:
        plan(ENGINES[engine], dry_run=False)
    assert str(raised.value.where).endswith("sft.sh:3")


def test_fsdp_turbo_is_planned_with_its_own_section():
    key = "turbo_config.distributed.ulysses_parallel_size"
    actor = plan(f"engine.strategy=fsdp_turbo +engine.{key}=1").spec.verl["actor_rollout_ref"]["actor"]
    assert actor["strategy"] == "fsdp_turbo"
    assert actor["fsdp_config"]["turbo_config"]["distributed"]["ulysses_parallel_size"] == 1


def test_a_strategy_that_verls_section_refuses_is_refused_in_its_words():
    with pytest.raises(UserError, match=r"engine\.strategy=mine: veRL 0.9.1: strategy mine not") as raised:
        plan("engine.strategy=mine")
    assert str(raised.value.where).endswith("sft.sh:3")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "engine=megatron optim=megatron engine.tensor_model_parallel_size=4"
            " engine.pipeline_model_parallel_size=4",
            r"tensor_model_parallel_size=4, pipeline_model_parallel_size=4: world_size \(8\) is not",
        ),
        ("engine=automodel optim=automodel engine.tp_size=16", r"tp_size=16: world_size \(8\)"),
        ("engine=veomni optim=veomni engine.ulysses_parallel_size=3", r"ulysses_parallel_size=3: world_size"),
        ("engine.ulysses_sequence_parallel_size=16", r"ulysses_sequence_parallel_size=16: world_size"),
        (
            "engine=torchtitan optim=torchtitan engine.tensor_parallel_size=2",
            r"tensor_parallel_size=2, .* their product 2 != WORLD_SIZE\(8\)",
        ),
    ],
)
def test_sizes_that_the_gpus_do_not_hold_are_refused_in_the_engine_s_words(words, said, monkeypatch):
    monkeypatch.setenv("PROCESSES", "8")
    with pytest.raises(UserError, match=said) as raised:
        plan(words)
    assert str(raised.value.where).endswith("sft.sh:3")


@pytest.mark.parametrize(
    "words",
    [
        "engine=megatron optim=megatron engine.tensor_model_parallel_size=4 engine.context_parallel_size=2",
        "engine=automodel optim=automodel engine.tp_size=2",
        "engine=torchtitan optim=torchtitan engine.tensor_parallel_size=2 engine.data_parallel_shard_size=4",
        "engine=torchtitan optim=torchtitan engine.data_parallel_shard_size=-1",
    ],
)
def test_sizes_that_the_gpus_hold_are_planned(words, monkeypatch):
    monkeypatch.setenv("PROCESSES", "8")
    assert plan(words).spec.verl["trainer"]["n_gpus_per_node"] == 8


@pytest.mark.parametrize("strategy", ["veomni", "torchtitan", "automodel"])
def test_an_engine_without_a_section_in_a_yaml_is_refused_beside_an_explorer_too(strategy):
    text = (EXAMPLES / "grpo.yaml").read_text()
    lines = text.replace("trainer:\n", f"trainer:\n  trainer_strategy: {strategy}\n", 1)
    Path("a.yaml").write_text(re.sub(r"  trainer_strategy: fsdp2?\n", "", lines))
    with pytest.raises(
        UserError, match=f"trainer_strategy={strategy}: trinity-rft's are fsdp, fsdp2"
    ) as raised:
        plan_source(
            from_yaml(Path("a.yaml")), RunOptions(device="cuda", dry_run=True, gpus=2), cwd=Path.cwd()
        )
    assert raised.value.where.file.endswith("a.yaml") and raised.value.where.line


def trained_yaml(strategy):
    Path("a.yaml").write_text(
        "mode: train\nproject: p\nname: n\ncheckpoint_root_dir: /tmp/c\n"
        "algorithm: {algorithm_type: sft}\nmodel: {model_path: m, max_model_len: 64}\n"
        "buffer: {train_batch_size: 4, trainer_input: {experience_buffer: {name: r, storage_type: file,"
        " path: /a.parquet, format: {prompt_type: messages, messages_key: talk}}}}\n"
        "cluster: {node_num: 1, gpu_per_node: 1}\n"
        f"trainer: {{trainer_strategy: '{strategy}'}}\nsynchronizer: {{sync_method: checkpoint}}\n"
    )
    return plan_source(from_yaml(Path("a.yaml")), RunOptions(device="cuda", dry_run=True), cwd=Path.cwd())


def test_an_engine_of_a_yaml_is_refused_by_its_field(monkeypatch):
    with pytest.raises(
        UserError, match=r"trainer\.trainer_strategy=automodel: trinity-rft's are fsdp, fsdp2, megatron"
    ):
        trained_yaml("automodel")
    monkeypatch.setenv("ENGINE", "automodel")
    with pytest.raises(UserError, match=r"trainer_strategy=automodel: trinity-rft's are"):
        trained_yaml("${oc.env:ENGINE,fsdp2}")


def test_an_engine_that_a_variable_names_is_the_variables_default_where_it_is_not_set(monkeypatch):
    monkeypatch.delenv("ENGINE", raising=False)
    actor = trained_yaml("${oc.env:ENGINE,fsdp2}").spec.verl["actor_rollout_ref"]["actor"]
    assert actor["strategy"] == "fsdp2"


@pytest.mark.parametrize("engine", ["fsdp", *ENGINES])
def test_settings_that_trinity_names_otherwise_or_overwrites_reach_the_trainer(engine):
    told = "optim.clip_grad=0.5 model.use_remove_padding=False optim.weight_decay=0.3"
    verl = plan(f"engine={engine} optim={engine} {told}").spec.verl["actor_rollout_ref"]
    assert (verl["actor"]["optim"]["clip_grad"], verl["actor"]["optim"]["weight_decay"]) == (0.5, 0.3)
    assert verl["model"]["use_remove_padding"] is False


def test_torchruns_processes_are_the_trainers_gpus(monkeypatch):
    assert plan("").spec.verl["trainer"]["n_gpus_per_node"] == 1
    monkeypatch.setenv("PROCESSES", "4")
    assert plan("").spec.verl["trainer"]["n_gpus_per_node"] == 4
