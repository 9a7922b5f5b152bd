"""A YAML's workflows in veRL's own places, and what is refused before a run starts."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.job import fingerprint
from trinity_compat.job.gpus import shares
from trinity_compat.job.served_models import ServedModel, configurations, served_models
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.workflows import longest_response
from trinity_compat.trinity.workflows import registry
from trinity_compat.trinity.workflows.run_rows import Limits
from trinity_compat.trinity.workflows.tasksets import Taskset, referred

EXAMPLES = Path(__file__).parents[3] / "examples" / "workflows"
YAML = EXAMPLES / "simple.yaml"
INPUT = "buffer.explorer_input"


def planned(**changes):
    """The example's plan, with dotted paths below explorer_input changed (``__`` for a dot)."""
    config = yaml.safe_load(YAML.read_text())
    for path, value in changes.items():
        put(config, f"{INPUT}.{path.replace('__', '.')}", value)
    return make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")


def test_a_workflow_becomes_verls_dataset_class_and_reward_function():
    made = planned()
    verl = made.spec.verl
    assert value_at(verl, "data.custom_cls") == {
        "path": "pkg://trinity_compat.trinity.workflows.dataset",
        "name": "TasksetRows",
    }
    scorer = value_at(verl, "reward.custom_reward_function")
    assert (scorer["path"], scorer["name"]) == (
        "pkg://trinity_compat.trinity.workflows.scoring",
        "compute_score",
    )
    assert value_at(verl, "data.train_files") == ["train/0"]
    train = referred("train/0", value_at(verl, "data.workflows"))
    assert (train.workflow, train.reward, train.prompt_key, train.response_key) == (
        "simple_workflow",
        "math_reward",
        "question",
        "answer",
    )
    assert "train: simple_workflow asks ./toy/data/train.jsonl, math_reward scores" in made.notes


def test_what_a_taskset_says_itself_comes_before_the_default():
    made = planned(
        eval_tasksets__0__default_workflow_type="math_boxed_workflow",
        eval_tasksets__0__default_reward_fn_type="math_boxed_reward",
        default_eval_workflow_type="math_workflow",
    )
    tasksets = value_at(made.spec.verl, "data.workflows")
    assert [tasksets[name]["workflow"] for name in ("train/0", "eval/0")] == [
        "simple_workflow",
        "math_boxed_workflow",
    ]


def test_evaluation_has_a_default_of_its_own():
    made = planned(default_eval_workflow_type="math_workflow")
    assert value_at(made.spec.verl, "data.workflows.eval/0.workflow") == "math_workflow"


def test_no_key_of_a_taskset_is_named_as_unread():
    made = planned(
        tasksets__0__format__system_prompt="Be brief.",
        tasksets__0__workflow_args={"use_base": True},
        tasksets__0__reward_fn_args={"pattern": "x"},
    )
    assert not [path for path in made.unread if path.startswith(f"{INPUT}.tasksets")]


@pytest.mark.parametrize("workflow", [None, "verl_workflow"])
def test_a_launch_s_own_workflow_changes_nothing(workflow):
    verl = planned(default_workflow_type=workflow, default_reward_fn_type=None).spec.verl
    assert value_at(verl, "data.workflows") is None
    assert value_at(verl, "data.custom_cls.path") != "pkg://trinity_compat.trinity.workflows.dataset"
    assert value_at(verl, "reward.custom_reward_function.path") is None


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"default_workflow_type": "math_workflows"},
            f"{INPUT}.tasksets.0.default_workflow_type=math_workflows: no workflow of that name runs here",
            "did you mean 'math_workflow'?",
        ),
        (
            {"default_workflow_type": "toolcall_workflow"},
            f"{INPUT}.tasksets.0.default_workflow_type=toolcall_workflow: no workflow of that name runs here",
            "did you mean 'tool_call_workflow'?",
        ),
        (
            {"tasksets__0__default_reward_fn_type": "maths_reward"},
            f"{INPUT}.tasksets.0.default_reward_fn_type=maths_reward: no reward of that name runs here",
            "did you mean 'math_reward'?",
        ),
        (
            {"tasksets__0__path": None},
            f"{INPUT}.tasksets.0.path is missing: a taskset needs a file, a folder or a dataset's name",
            None,
        ),
        (
            {
                "eval_tasksets__0__default_workflow_type": "verl_workflow",
                "tasksets__0__default_reward_fn_type": "math_reward",
                "default_reward_fn_type": None,
            },
            f"{INPUT}.eval_tasksets.0 names verl_workflow, and"
            f" {INPUT}.tasksets.0.default_workflow_type=simple_workflow is Trinity's",
            "write a default_workflow_type for each of them, verl_workflow for all or for none",
        ),
        (
            {"default_workflow_type": "math_boxed_workflow"},
            f"{INPUT}.tasksets.0: math_boxed_workflow tells its reward with_think and format_score_coef,"
            " which math_reward does not take",
            "write default_reward_fn_type: math_boxed_reward, or leave it out",
        ),
        (
            {"tasksets__0__reward_fn_args": {"reward_manager": "dapo"}},  # verl_workflow's, left in the YAML
            f"{INPUT}.tasksets.0.reward_fn_args of math_reward: got an unexpected keyword argument"
            " 'reward_manager'",
            "leave it out",
        ),
    ],
)
def test_what_does_not_run_is_refused_with_what_to_write(changes, message, hint):
    with pytest.raises(UserError) as refused:
        planned(**changes)
    assert refused.value.message == message
    assert refused.value.hint == hint


def test_a_reference_to_no_taskset_is_a_user_s_error():
    with pytest.raises(UserError, match="names no taskset"):
        referred("/data/train.parquet", {"train/0": {}})


def test_a_field_of_the_format_must_be_text():
    with pytest.raises(UserError, match="system_prompt is 3: write a text"):
        Taskset("taskset", "t", "x", "simple_workflow", format={"system_prompt": 3}).text("system_prompt")


PLUGINS = str(Path(__file__).parent / "plugins")


def of_plugins(*places, **changes):
    config = yaml.safe_load(YAML.read_text())
    for path, value in changes.items():
        put(config, f"{INPUT}.{path.replace('__', '.')}", value)
    return make_plan(config, RunOptions(plugin_dirs=places), cwd=Path("/work"), device="cpu")


def test_a_plugin_s_workflow_goes_to_the_engines_with_its_folder():
    spec = of_plugins(PLUGINS, default_workflow_type="agent_workflow").spec
    assert spec.env["TRINITY_PLUGIN_DIRS"] == PLUGINS
    assert value_at(spec.verl, "data.workflows.train/0.plugin") is True


@pytest.mark.parametrize(
    ("algorithm", "reads"),
    [("grpo", False), ("multi_step_grpo", True), ("gigpo", True)],
)
def test_steps_are_told_where_the_algorithm_reads_them(algorithm, reads):
    config = yaml.safe_load(YAML.read_text())
    config["algorithm"] = {"algorithm_type": algorithm, "repeat_times": 4}
    put(config, f"{INPUT}.default_workflow_type", "graded_workflow")
    spec = make_plan(config, RunOptions(plugin_dirs=(PLUGINS,)), cwd=Path("/work"), device="cpu").spec
    assert value_at(spec.verl, "data.workflows.train/0.by_step") is reads


@pytest.mark.parametrize(
    ("algorithm", "asked", "parting"),
    [
        ("grpo", None, "joined"),
        ("multi_step_grpo", None, "chains"),
        ("gigpo", None, "chains"),
        ("grpo", True, "each"),
        ("gigpo", True, "each"),
        ("gigpo", False, "joined"),
    ],
)
def test_the_algorithm_or_a_key_says_what_becomes_of_steps(algorithm, asked, parting):
    made = stepwise({"algorithm_type": algorithm, "repeat_times": 4}, asked)
    assert value_at(made.spec.verl, "data.workflows.train/0.parting") == parting
    assert value_at(made.spec.verl, "actor_rollout_ref.rollout.n") == 4
    told = {
        "joined": "math_reward scores",
        "chains": "each of its conversations",
        "each": "each of its steps",
    }
    assert any(note.startswith("train: ") and note.endswith(told[parting]) for note in made.notes), made.notes


def test_steps_as_rows_can_be_set_on_the_command_line():
    algorithm = {"algorithm_type": "grpo", "repeat_times": 4}
    spec = stepwise(algorithm, None, sets=("trinity_compat.steps_as_rows=true",)).spec
    assert value_at(spec.verl, "data.workflows.train/0.parting") == "each"


@pytest.mark.parametrize(
    ("algorithm", "asked", "message"),
    [
        ({"algorithm_type": "grpo"}, "each", "steps_as_rows is 'each': write true or false"),
        ({"algorithm_type": "mix"}, True, "steps_as_rows: with an expert's rows"),
    ],
)
def test_steps_as_rows_where_it_cannot_be_is_refused(algorithm, asked, message):
    with pytest.raises(UserError, match=message):
        stepwise({"repeat_times": 4, **algorithm}, asked)


def test_beside_an_expert_s_rows_a_run_is_one_row():
    algorithm = {
        "algorithm_type": "mix",
        "advantage_fn": "step_wise_grpo",
        "repeat_times": 4,
        "sample_strategy_args": {"expert_data_ratio": 0.5, "sft_dataset_name": "experts"},
    }
    spec = stepwise(algorithm, None).spec
    assert value_at(spec.verl, "data.workflows.train/0.parting") == "joined"


def stepwise(algorithm, asked, sets=()):
    """A plan with a plugin's workflow, and ``trinity_compat.steps_as_rows`` as ``asked``."""
    config = yaml.safe_load(YAML.read_text())
    config["algorithm"] = algorithm
    put(config, f"{INPUT}.default_workflow_type", "graded_workflow")
    if asked is not None:
        put(config, "trainer.trainer_config.trinity_compat.steps_as_rows", asked)
    if algorithm["algorithm_type"] == "mix":
        put(config, "buffer.train_batch_size", 128)
        experts = {"path": "/rows.jsonl", "storage_type": "file"}
        put(config, "buffer.trainer_input.auxiliary_buffers", {"experts": experts})
    options = RunOptions(plugin_dirs=(PLUGINS,), sets=sets)
    return make_plan(config, options, cwd=Path("/work"), device="cpu")


@pytest.mark.parametrize(
    ("algorithm", "workflow", "rows", "runs"),
    [
        ("multi_step_grpo", "graded_workflow", 240, False),
        ("gigpo", "graded_workflow", 240, False),
        ("multi_step_grpo", "graded_workflow", 32, True),  # as many as it would have anyway
        ("multi_step_grpo", "graded_workflow", None, True),
        ("multi_step_grpo", "math_workflow", 240, True),  # its run is one answer, so that both count the same
        ("grpo", "graded_workflow", 240, True),
    ],
)
def test_an_update_that_counts_steps_is_refused_where_a_run_s_are_one_row(algorithm, workflow, rows, runs):
    config = yaml.safe_load(YAML.read_text())
    config["algorithm"] = {"algorithm_type": algorithm, "repeat_times": 4}
    config["buffer"] |= {"batch_size": 8, "train_batch_size": rows}
    config["buffer"].pop("total_steps", None)
    config["explorer"].pop("eval_interval", None)
    put(config, f"{INPUT}.default_workflow_type", workflow)

    def plan():
        return make_plan(config, RunOptions(plugin_dirs=(PLUGINS,)), cwd=Path("/work"), device="cpu")

    if runs:
        plan()
        return
    with pytest.raises(UserError, match=r"buffer.train_batch_size=240 counts the steps of runs") as error:
        plan()
    assert "write 32, " in error.value.hint


def test_a_plugin_s_reward_makes_a_known_workflow_a_class_too():
    spec = of_plugins(PLUGINS, default_reward_fn_type="sorted_reward").spec
    assert value_at(spec.verl, "data.workflows.train/0.plugin") is True


def test_a_folder_beside_the_launch_is_found_from_its_place(monkeypatch):
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", PLUGINS)
    assert planned(default_workflow_type="agent_workflow").spec.env["TRINITY_PLUGIN_DIRS"] == PLUGINS


def of_plugin(device="cpu", **changes):
    config = yaml.safe_load((EXAMPLES / "plugin.yaml").read_text())
    for path, value in changes.items():
        put(config, path.replace("__", "."), value)
    plugins = RunOptions(plugin_dirs=(str(EXAMPLES / "plugins"),))
    return make_plan(config, plugins, cwd=Path("/work"), device=device)


@pytest.mark.parametrize(("given", "limit"), [({}, 1800.0), ({"explorer__max_timeout": 3600}, 3600.0)])
def test_max_timeout_is_the_limit_of_a_workflow_whatever_its_length(given, limit):
    made = of_plugin(**given)
    assert value_at(made.spec.verl, "data.workflows.train/0.limit_s") == limit
    assert made.spec.agent_timeout_s == limit
    ours = of_plugin(**given, trainer__trainer_config__trinity_compat__agent_timeout=60)
    assert ours.spec.agent_timeout_s == 60.0


@pytest.mark.parametrize("key", ["image_key", "video_key"])
def test_a_class_s_model_that_would_see_no_image_is_refused(key):
    with pytest.raises(UserError, match=f"tasksets.0.format.{key}=picture: .* would see none"):
        of_plugin(**{f"{INPUT}.tasksets.0.format.{key}": "picture"})


def test_a_class_s_rows_may_be_as_long_as_the_model_s_texts():
    made = of_plugin(model__max_model_len=300)
    assert longest_response(made.spec.verl) == 300 - 48
    assert Limits.of(OmegaConf.create(made.spec.verl).actor_rollout_ref.rollout) == Limits(48, 8, 300)
    (told,) = [note for note in made.notes if note.startswith("a row may have")]
    assert "300 tokens" in told and "one answer 8" in told and "rollout/truncated_rows" in told
    assert longest_response(planned().spec.verl) == 8  # asked once


@pytest.mark.parametrize(("tokens", "ranks", "warned"), [(200, 1, True), (300, 1, False), (150, 2, False)])
def test_a_micro_batch_that_holds_no_longest_row_is_warned_of(tokens, ranks, warned):
    made = of_plugin(
        device="cuda",
        cluster__gpu_per_node=4,
        explorer__rollout_model__engine_num=2,
        model__max_model_len=300,
        trainer__use_dynamic_bsz=True,
        trainer__max_token_len_per_gpu=tokens,
        trainer__ulysses_sequence_parallel_size=ranks,
    )
    found = [note for note in made.notes if "holds no row of 300 tokens" in note]
    assert bool(found) == warned
    assert not found or "trainer.max_token_len_per_gpu: 300 or more" in found[0]


def test_a_workflow_that_no_plugin_registers_is_refused():
    with pytest.raises(UserError, match="agent_workflows: no workflow of that name runs here"):
        of_plugins(PLUGINS, default_workflow_type="agent_workflows")
    with pytest.raises(UserError) as refused:
        of_plugins(PLUGINS, default_workflow_type="window_workflows")
    assert refused.value.hint == "did you mean 'window_workflow'?"
    with pytest.raises(UserError) as refused:
        of_plugins(PLUGINS, default_reward_fn_type="sorted_rewards")
    assert refused.value.hint == "did you mean 'sorted_reward'?"
    with pytest.raises(UserError, match="nowhere: no such folder"):
        of_plugins("/nowhere", default_workflow_type="agent_workflow")


@pytest.mark.parametrize(
    ("workflow", "missing"),
    [
        ("math_rm_workflow", "trinity-rft"),
        ("step_wise_alfworld_workflow", "trinity-rft, alfworld, textworld"),
    ],
)
def test_a_workflow_of_trinity_s_own_names_the_packages_that_it_lacks(workflow, missing):
    with pytest.raises(UserError, match=f"{workflow}: .* for which {missing} would") as error:
        planned(default_workflow_type=workflow)
    assert "pip install --no-deps trinity-rft==0.6.0" in error.value.hint


def test_beside_trinity_rft_the_environment_s_package_is_still_asked_for(monkeypatch):
    monkeypatch.setattr(registry.optional_packages, "version", lambda package: "0.6.0")
    made = planned(default_workflow_type="math_rm_workflow", default_reward_fn_type=None)
    assert value_at(made.spec.verl, "data.workflows.train/0.plugin") is True
    with pytest.raises(UserError, match="for which gymnasium would"):
        planned(default_workflow_type="frozen_lake_workflow", default_reward_fn_type=None)


@pytest.mark.parametrize(("installed", "runs"), [(None, False), ("0.6.0", False), ("0.9.0", True)])
def test_a_name_that_no_release_known_here_has_may_be_a_newer_one_s(monkeypatch, installed, runs):
    monkeypatch.setattr(registry.optional_packages, "version", lambda package: installed)
    for field, name in (("default_workflow_type", "cod_workflow"), ("default_reward_fn_type", "rlcr_reward")):
        if runs:
            planned(**{field: name})
            continue
        with pytest.raises(UserError, match=f"{field}={name}: no .* of that name runs here") as error:
            planned(**{field: name})
        assert "neither trinity-rft 0.6.0 nor a plugin of this run has it" in error.value.hint


def test_a_class_by_its_path_is_trinity_rft_s_to_find(monkeypatch):
    monkeypatch.setattr(registry.optional_packages, "version", lambda package: "0.6.0")
    made = planned(default_workflow_type="mine.workflows.Mine", default_reward_fn_type=None)
    assert value_at(made.spec.verl, "data.workflows.train/0.workflow") == "mine.workflows.Mine"


@pytest.mark.parametrize(
    ("workflow", "message", "hint"),
    [
        (
            "on_policy_distill_math_workflow",
            "teacher is not served",
            "math_workflow",
        ),
        ("on_policy_distill_workflow", "teacher is not served", "simple_workflow"),
        ("async_math_ruler_workflow", "does not await", "math_ruler_workflow"),
        ("math_eval_workflow", "gives no reward", "math_workflow"),
        (
            "math_trainable_ruler_workflow",
            "judge's experiences",
            "steps_as_rows: true",
        ),
    ],
)
@pytest.mark.parametrize("installed", ["0.6.0", None])
def test_a_class_whose_first_task_must_fail_is_refused(monkeypatch, workflow, message, hint, installed):
    monkeypatch.setattr(registry.optional_packages, "version", lambda package: installed)
    with pytest.raises(UserError, match=message) as refused:
        planned(default_workflow_type=workflow, default_reward_fn_type=None)
    assert hint in refused.value.hint


def test_what_makes_a_failing_class_s_rows_lets_it_run(monkeypatch):
    monkeypatch.setattr(registry.optional_packages, "version", lambda package: "0.6.0")
    planned(default_eval_workflow_type="math_eval_workflow")
    config = yaml.safe_load(YAML.read_text())
    put(config, f"{INPUT}.default_workflow_type", "math_trainable_ruler_workflow")
    put(config, "trainer.trainer_config.trinity_compat.steps_as_rows", True)
    make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")


def by_path(cwd, **changes):
    config = yaml.safe_load(YAML.read_text())
    for path, value in changes.items():
        put(config, f"{INPUT}.{path}", value)
    return make_plan(config, RunOptions(), cwd=cwd, device="cpu")


def test_classes_by_their_paths_are_files_of_the_launch_s_folder(tmp_path):
    (tmp_path / "papers" / "mine").mkdir(parents=True)
    code = tmp_path / "papers" / "mine" / "flow.py"
    code.write_text("raise SystemExit('read, and not run')\nclass Mine: ...\nclass Score: ...\n")
    given = {"default_workflow_type": "papers.mine.flow.Mine"}
    made = by_path(tmp_path, **given, default_reward_fn_type="papers.mine.flow.Score")
    train = value_at(made.spec.verl, "data.workflows.train/0")
    assert (train["workflow"], train["reward"], train["plugin"]) == (
        "papers.mine.flow.Mine",
        "papers.mine.flow.Score",
        True,
    )
    with pytest.raises(UserError, match=r"=papers\.mine\.flow\.Nobody: .*flow\.py has no Nobody"):
        by_path(tmp_path, default_workflow_type="papers.mine.flow.Nobody")
    with pytest.raises(UserError, match=r"papers/mine/flows\.py does not exist") as refused:
        by_path(tmp_path, default_workflow_type="papers.mine.flows.Mine")
    assert "start the run in the folder that holds papers" in refused.value.hint
    with pytest.raises(UserError, match="does not exist"):
        by_path(tmp_path / "papers", **given)


def test_an_edited_class_by_its_path_is_another(tmp_path):
    (tmp_path / "own_flow.py").write_text("class Mine: ...\n")
    spec = by_path(tmp_path, default_workflow_type="own_flow.Mine").spec
    before = fingerprint.made(spec, cwd=tmp_path)
    assert fingerprint.made(spec, cwd=tmp_path) == before
    (tmp_path / "own_flow.py").write_text("class Mine: 'edited'\n")
    assert fingerprint.made(spec, cwd=tmp_path) != before


def test_the_arguments_of_a_reward_are_none_of_the_reward_manager_s():
    config = yaml.safe_load(YAML.read_text())
    put(config, f"{INPUT}.tasksets.0.reward_fn_args", {"pattern": "x"})
    sets = ("+reward.reward_kwargs.pattern=x", "+reward.reward_kwargs.other=1")
    spec = make_plan(config, RunOptions(sets=sets), cwd=Path("/work"), device="cpu").spec
    assert value_at(spec.verl, "reward.reward_kwargs") == {"other": 1}


def test_without_eval_tasksets_nothing_is_evaluated():
    verl = planned(eval_tasksets=[]).spec.verl
    assert value_at(verl, "data.val_files") == ["train/0"]
    assert (value_at(verl, "trainer.test_freq"), value_at(verl, "trainer.val_before_train")) == (-1, False)


def with_models(device, *models, **more):
    config = yaml.safe_load(YAML.read_text())
    put(config, "explorer.auxiliary_models", [dict(each) for each in models])
    for path, value in more.items():
        put(config, path.replace("__", "."), value)
    return make_plan(config, RunOptions(), cwd=Path("/work"), device=device)


def test_auxiliary_models_are_listed_in_their_order_with_their_names_and_sizes():
    first = {"model_path": "/judge", "name": "judge"}
    second = {"model_path": "/critic", "engine_num": 2, "tensor_parallel_size": 2}
    on_cpu = with_models("cpu", first, second).spec.verl
    assert value_at(on_cpu, "reward.reward_model.model_path") == "/judge"
    listed = [replace(each, settings={}) for each in served_models(on_cpu)]
    assert listed == [ServedModel("/judge", "judge"), ServedModel("/critic")]
    made = with_models("cuda", first, second, cluster__gpu_per_node=8)
    told = served_models(made.spec.verl)[1]
    assert replace(told, settings={}) == ServedModel("/critic", None, engines=2, width=2)
    assert any("4 for 1 further model(s)" in note for note in made.notes), made.notes
    shared = shares(made.spec.verl, device="cuda", mode="both", explorers=1)
    assert (shared["reward model"], sum(shared.values()) <= 8) == (5, True)


def test_each_auxiliary_model_has_the_settings_of_its_own_engine():
    own = {"temperature": 0.1, "max_model_len": 64, "extra_engine_args": {"max_num_seqs": 4, "swap_space": 1}}
    models = {"model_path": "/judge", "max_model_len": 128, "top_p": 0.5}, {"model_path": "/critic", **own}

    def engines(device):
        verl = with_models(device, *models, cluster__gpu_per_node=8).spec.verl
        return [value_at(each, "reward.reward_model.rollout") for each in configurations(verl)]

    first, second = engines("cuda")
    assert (first["max_model_len"], first["top_p"], first["temperature"]) == (128, 0.5, 1.0)
    assert (second["max_model_len"], second["top_p"], second["temperature"]) == (64, 1.0, 0.1)
    assert (second["max_num_seqs"], second["engine_kwargs"]["vllm"]) == (4, {"swap_space": 1})
    # What trinity-rft's engines have by themselves, on a GPU; on a CPU what all engines have there.
    assert {(each["dtype"], each["gpu_memory_utilization"]) for each in (first, second)} == {
        ("bfloat16", 0.9)
    }
    assert {(each["dtype"], each["enforce_eager"]) for each in engines("cpu")} == {("float32", True)}


def test_one_model_without_a_name_needs_no_list():
    assert value_at(with_models("cpu", {"model_path": "/judge"}).spec.verl, "data.auxiliary_models") is None


@pytest.mark.parametrize(
    ("second", "more", "message"),
    [
        ({"name": "critic"}, {}, r"auxiliary_models\.1\.model_path is missing"),
        (
            {"model_path": "/critic", "engine_num": 6},
            {},
            r"auxiliary_models: 7 GPUs for its models leave of 8 none",
        ),
        (
            {"model_path": "/critic"},
            {"algorithm__algorithm_type": "on_policy_distill"},
            r"auxiliary_models\.1: the first model is the teacher",
        ),
    ],
)
def test_a_further_model_that_cannot_be_served_is_refused(second, more, message):
    with pytest.raises(UserError, match=message):
        with_models("cuda", {"model_path": "/judge"}, second, cluster__gpu_per_node=8, **more)
