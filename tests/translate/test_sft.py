"""Launches of veRL's supervised trainers: their own keys under each release, and a YAML that trains."""

import pytest
from facts import public_scripts

from trinity_compat.common.errors import UserError
from trinity_compat.launch import entrypoints, read_argv
from trinity_compat.translate.model import Status, TranslateOptions
from trinity_compat.translate.pipeline import translate_config, translate_launch
from trinity_compat.translate.sft import rows
from trinity_compat.translate.supervised import rows_of
from trinity_compat.trinity.config import validate
from trinity_compat.verl_config import effective_config

OLD = [
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    "data.prompt_key=extra_info",
    "data.response_key=extra_info",
    "+data.prompt_dict_keys=[question]",
    "+data.response_dict_keys=[answer]",
    "data.micro_batch_size_per_gpu=4",
    "model.partial_pretrain=m",
    "trainer.default_local_dir=/tmp/ckpt",
]
TALKS = ["data.multiturn.enable=true", "data.multiturn.messages_key=talk"]
ENGINE = ["data.train_files=[a.parquet,b.parquet]", "data.messages_key=talk", "model.path=m", "engine=fsdp"]


def launch(main, *arguments):
    (found,) = read_argv(["torchrun", "-m", f"verl.trainer.{main}", *arguments]).launches
    return found


def translated(main, *arguments, **options):
    return translate_launch(launch(main, *arguments), TranslateOptions(**options))[0]


@pytest.mark.parametrize(
    ("main", "arguments", "releases"),
    [
        ("fsdp_sft_trainer", OLD, ("0.2.0", "0.7.0")),
        ("sft_trainer", ENGINE, ("0.6.1", "0.9.1")),
        ("sft_trainer_ray", ENGINE, ("0.6.1", "0.9.1")),
    ],
)
def test_a_launch_is_composed_from_its_mains_own_configuration(main, arguments, releases):
    config = effective_config(launch(main, *arguments))
    assert (config.version.candidates[0], config.version.candidates[-1]) == releases
    assert not config.unknown and "actor_rollout_ref.rollout.n" not in config.settings


def test_a_key_that_one_release_has_tells_the_release():
    assert (
        effective_config(launch("fsdp_sft_trainer", *OLD, "trainer.device=npu")).version.candidates[0] > "0.3"
    )


def test_questions_and_answers_in_columns_are_read_as_verl_reads_them():
    made = translated("fsdp_sft_trainer", *OLD)
    assert not validate(made.config, "0.6.0")
    found = rows_of(made.config)
    form = found.format
    assert (form.prompt_type, form.prompt_key, form.prompt_dict_keys) == (
        "plaintext",
        "extra_info",
        ("question",),
    )
    assert form.response_then_eos and found.val_paths == ("b.parquet",)
    assert (found.sampler, found.seed, found.whole_epochs, found.shuffle) == ("verl", 0, True, True)
    assert (found.max_length, found.epochs) == (1024, 4)  # veRL's defaults


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        ("sft_trainer", ENGINE),
        (
            "fsdp_sft_trainer",
            [*OLD[:2], *OLD[6:], *TALKS],
        ),
    ],
)
def test_of_conversations_every_answer_counts(main, arguments):
    form = rows_of(translated(main, *arguments).config).format
    assert (form.prompt_type, form.messages_key) == ("messages", "talk")
    assert form.enable_concatenated_multi_turn and not form.response_then_eos


@pytest.mark.parametrize(("mode", "goes_on"), [("auto", True), ("resume_path", True), ("disable", False)])
def test_a_run_goes_on_from_its_checkpoint_unless_the_launch_says_otherwise(mode, goes_on):
    config = translated("fsdp_sft_trainer", *OLD, f"trainer.resume_mode={mode}").config
    assert config["continue_from_checkpoint"] is goes_on


@pytest.mark.parametrize(
    ("key", "status", "target"),
    [
        ("optim.lr=0.5", Status.MAPPED, "algorithm.optimizer.lr"),
        ("trainer.save_freq=5", Status.DERIVED, "trainer.save_interval"),
        ("use_remove_padding=true", Status.UNSUPPORTED_UPSTREAM, None),  # upstream overwrites it
        ("model.use_liger=true", Status.PASSED_THROUGH, None),
        ("data.multiturn.messages_key=talk", Status.NO_EFFECT, None),  # the rows are columns
        ("data.custom_cls.path=a.py", Status.UNSUPPORTED, None),
        ("optim.lr_scheduler=wsd", Status.APPROXIMATED, None),
        ("trainer.test_freq=3", Status.UNSUPPORTED_UPSTREAM, None),
    ],
)
def test_each_key_has_a_finding(key, status, target):
    name = key.partition("=")[0]
    found = next(each for each in translated("fsdp_sft_trainer", *OLD, key).findings if each.key == name)
    assert found.status is status and found.reason
    assert target is None or found.target == target


def test_a_key_that_no_release_has_is_unknown():
    made = translated("sft_trainer", *ENGINE, "+data.max_lenght=3")
    assert [each.status for each in made.findings if each.key == "data.max_lenght"] == [Status.UNKNOWN]


def test_every_row_has_a_status_and_a_reason():
    assert all(Status(status) and why for status, _, why in rows().values())


def test_an_older_trinity_is_refused():
    with pytest.raises(UserError, match=r"translated for trinity-rft 0\.6\.0 only"):
        translated("sft_trainer", *ENGINE, target="0.4.1")


def test_every_public_launch_is_translated_key_by_key():
    scripts = [entry["launches"] for entry in public_scripts()]
    found = [each for launches in scripts for each in launches if each["module"] in entrypoints.SUPERVISED]
    assert len(found) >= 30
    for given in found:
        effective = effective_config(launch(given["module"].rpartition(".")[2], *given["args"]))
        made, _ = translate_config(effective, TranslateOptions())
        assert validate(made.config, "0.6.0") == [] and rows_of(made.config) is not None
        own = [finding.key for finding in made.findings if finding.where is not None]
        assert own == [*effective.set_keys, *(other.key for other in effective.others)]
        assert Status.UNKNOWN not in {finding.status for finding in made.findings}


def with_torchrun(options, *arguments, main="sft_trainer"):
    words = ["torchrun", *options.split(), "-m", f"verl.trainer.{main}", *ENGINE, *arguments]
    (found,) = read_argv(words).launches
    return translate_launch(found, TranslateOptions())[0]


def test_torchruns_processes_are_the_gpus():
    """They are in stock veRL: its SFT trainer does not read the keys."""
    made = with_torchrun("--nnodes=2 --nproc_per_node 4", "trainer.n_gpus_per_node=1")
    assert made.config["cluster"] == {"node_num": 2, "gpu_per_node": 4}
    assert made.provenance["cluster.gpu_per_node"] == "torchrun --nproc_per_node (argv:3)"
    fate = {each.key: each for each in made.findings}["trainer.n_gpus_per_node"]
    assert fate.status is Status.NO_EFFECT and "--nproc_per_node=4" in fate.reason
    assert not made.warnings


@pytest.mark.parametrize(
    ("main", "arguments", "release"), [("fsdp_sft_trainer", OLD, "0.2.0"), ("sft_trainer", ENGINE, "0.6.1")]
)
def test_they_are_so_under_a_release_without_the_keys(main, arguments, release):
    given = ["torchrun", "--nnodes=2", "--nproc_per_node=4", "-m", f"verl.trainer.{main}", *arguments]
    (found,) = read_argv(given).launches
    options = TranslateOptions(verl_version=release)
    assert translate_launch(found, options)[0].config["cluster"] == {"node_num": 2, "gpu_per_node": 4}
    given[2] = "--nproc_per_node=gpu"
    (caution,) = translate_launch(read_argv(given).launches[0], options)[0].warnings
    assert "the YAML says nothing of it" in caution.message


def test_without_its_options_it_starts_one_process():
    made = with_torchrun("--standalone", "trainer.n_gpus_per_node=8")
    assert made.config["cluster"] == {"node_num": 1, "gpu_per_node": 1}


def test_a_count_that_only_the_machine_tells_is_a_caution():
    made = with_torchrun("--nproc_per_node=gpu", "trainer.n_gpus_per_node=8")
    assert made.config["cluster"]["gpu_per_node"] == 8
    (caution,) = made.warnings
    assert caution.code == "TW004" and "torchrun's --nproc_per_node" in caution.message
    assert caution.hint == "--set cluster.gpu_per_node=N"


def test_a_main_that_ray_starts_reads_its_keys():
    made = with_torchrun("--nproc_per_node=2", "trainer.n_gpus_per_node=8", main="sft_trainer_ray")
    assert made.config["cluster"]["gpu_per_node"] == 8


def test_set_counts_over_torchrun():
    words = ["torchrun", "--nproc_per_node=8", "-m", "verl.trainer.sft_trainer", *ENGINE]
    (found,) = read_argv(words).launches
    made, _ = translate_launch(found, TranslateOptions(assignments={"trainer.n_gpus_per_node": "2"}))
    assert made.config["cluster"]["gpu_per_node"] == 2
