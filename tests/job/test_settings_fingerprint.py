"""Which edits of a launch, and of the files that it names, void the groups that wait for their training."""

import dataclasses
import json
import os
import shutil
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from toy_plan import planned, planned_where_it_acts

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import copied, leaves, put
from trinity_compat.job import fingerprint_files
from trinity_compat.job.fingerprint import FilesEdited, check, differences, edits, made, sign
from trinity_compat.job.fingerprint_rules import RULES, UNCLASSIFIED, page, rule_of
from trinity_compat.job.run_spec import ReplaySpec, RunSpec, ScoringSpec, SyncSpec
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run import acquire_job
from trinity_compat.verl_config import FLAVOURS, compose_pinned

REWARD = "reward.custom_reward_function.path"
# Where a setting of a run comes from, as the user writes it. A new field has to be added here, with a rule.
FIELDS = {
    "job_dir": ["--job"],
    "database_url": ["--database"],
    "verl": [],  # each of its keys has a rule
    "updates_per_step": ["trinity_compat.updates_per_step"],
    "total_steps": ["trainer.total_training_steps"],
    "sync": ["synchronizer.sync_style"],
    "device": ["--device"],
    "mode": ["--mode"],
    "offloads": ["actor_rollout_ref.actor.fsdp_config.param_offload"],
    "handover": ["trinity_compat.handover"],
    "own_cluster": ["--mode"],
    "explorers": ["--explorers"],
    "checkpoints": ["--checkpoints"],
    "max_staleness": ["algorithm.sample_strategy_args.max_staleness"],
    "staleness_threshold": ["trinity_compat.staleness_threshold"],
    "replay": ["buffer.trainer_input.experience_buffer.replay_buffer"],
    "seeded_requests": ["trinity_compat.seeded_requests"],
    "partial_rollout": ["trinity_compat.partial_rollout"],
    "stale_cache": ["trinity_compat.stale_cache"],
    "over_sample_rate": ["trinity_compat.over_sample_rate"],
    "group_timeout_s": ["trinity_compat.group_timeout"],
    "agent_timeout_s": ["trinity_compat.agent_timeout"],
    "termination_grace_s": ["trinity_compat.termination_grace"],
    "stall_timeout_s": ["trinity_compat.stall_timeout"],
    "agent_failure": ["trinity_compat.agent_failure"],
    "agent_retries": ["explorer.max_retry_times"],
    "scoring": [f"trinity_compat.{name}" for name in ("reward_timeout", "reward_failure", "reward_memory")],
    "keep_steps": ["trinity_compat.keep_steps"],
    "token_scores": ["trinity_compat.token_scores"],
    "trainer": ["trinity_compat.trainer"],
    "env": ["explorer.env_vars.JUDGE_URL", "trinity_compat.plugin_dirs"],
    "resume": ["continue_from_checkpoint"],
    "rows": ["buffer.trainer_input.experience_buffer"],
    "experts": ["buffer.trainer_input.auxiliary_buffers"],
    "serve": ["--mode"],
    "fingerprint": [],
    "plugins": ["trinity_compat.plugins"],
}
CHANGES = {
    "job_dir": "/elsewhere",
    "database_url": "sqlite:///other.db",
    "updates_per_step": 7,
    "total_steps": 9,
    "sync": SyncSpec(style="fully_async", interval=4),
    "device": "cuda",
    "mode": "train",
    "offloads": True,
    "handover": "device",
    "own_cluster": True,
    "explorers": 3,
    "checkpoints": (2,),
    "max_staleness": 2,
    "staleness_threshold": 0.5,
    "replay": ReplaySpec(max_uses=3),
    "seeded_requests": True,
    "partial_rollout": False,
    "stale_cache": True,
    "over_sample_rate": 0.5,
    "group_timeout_s": 3.0,
    "agent_timeout_s": 3.0,
    "termination_grace_s": 3.0,
    "stall_timeout_s": 3.0,
    "agent_failure": "zero",
    "agent_retries": 5,
    "scoring": ScoringSpec(timeout_s=1.0),
    "keep_steps": 3,
    "token_scores": 0,
    "trainer": "v1",
    "env": {"JUDGE_URL": "http://127.0.0.1:1"},
    "resume": False,
}


def spec(verl=None, **more):
    return RunSpec("", "", verl or {}, 1, None, SyncSpec(), **more)


def with_keys(**values):
    tree = {}
    for key, value in values.items():
        put(tree, key, value)
    return tree


def print_of(cwd, verl=None, **more):
    return made(spec(verl, **more), cwd=cwd)


def changed(before, after):
    return differences(before.parts, after)


# -- the table --------------------------------------------------------------------------------------------


def test_no_setting_has_two_rules():
    keys = [(key, rule.names == "*") for rule in RULES for key in rule.keys]
    assert [key for key in dict.fromkeys(keys) if keys.count(key) > 1] == []


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_key_of_the_pinned_verl_is_classified(flavour):
    """A release with a new key fails here until somebody has decided whether answers depend on it."""
    assert [key for key, _ in leaves(compose_pinned({}, flavour)) if rule_of(key) is UNCLASSIFIED] == []


def another(key, value):
    if key == "data.dataloader_num_workers":
        return 0
    if key == "algorithm.adv_estimator":
        return "remax"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, "more"]
    return {"more": 1} if isinstance(value, dict) else f"{value or ''}x"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_change_of_a_key_voids_as_the_table_says(flavour, tmp_path):
    verl = compose_pinned({}, flavour)
    before = print_of(tmp_path, verl)
    for key, value in leaves(verl):
        edited = copied(verl)
        put(edited, key, another(key, value))
        told = changed(before, print_of(tmp_path, edited))
        part = rule_of(key).part
        assert bool(told) is bool(part), key
        # With distillation come its teachers, of which four settings are named.
        named = key if key != "distillation.enabled" else part
        assert all(text.startswith(part) and named in text for text in told), (key, told)


def test_every_setting_of_a_run_is_classified():
    assert list(FIELDS) == [field.name for field in dataclasses.fields(RunSpec)]
    keys = [key for keys in FIELDS.values() for key in keys] + [f"trinity_compat.{name}" for name in SETTINGS]
    assert [key for key in keys if rule_of(key) is UNCLASSIFIED] == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_run_s_setting_voids_as_the_table_says(name, tmp_path):
    told = changed(
        print_of(tmp_path), made(dataclasses.replace(spec(), **{name: CHANGES[name]}), cwd=tmp_path)
    )
    assert bool(told) is bool(rule_of(FIELDS[name][0]).part), told


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_ours_voids_as_the_table_says(name, tmp_path):
    row = SETTINGS[name]
    before = made(planned_where_it_acts(row).spec, cwd=tmp_path)
    after = made(planned_where_it_acts(row, f"trinity_compat.{name}={row.example}").spec, cwd=tmp_path)
    assert bool(changed(before, after)) is bool(rule_of(f"trinity_compat.{name}").part)


def test_a_key_that_nobody_classified_voids(tmp_path):
    told = changed(print_of(tmp_path), print_of(tmp_path, {"data": {"difficulty": 3}}))
    assert told == ["other settings: data.difficulty was not set, is 3"]


def test_what_is_not_set_is_like_null_and_a_whole_number_like_its_float(tmp_path):
    before = print_of(tmp_path, {"reward": {"reward_kwargs": None}, "data": {"train_files": []}})
    assert changed(before, print_of(tmp_path)) == []
    half, whole = ({"actor_rollout_ref": {"rollout": {"top_p": value}}} for value in (1.0, 1))
    assert changed(print_of(tmp_path, half), print_of(tmp_path, whole)) == []


def test_the_page_of_what_voids_answers_has_each_rule():
    assert all(name in page() for rule in RULES for name in rule.names.split())
    assert "| `actor_rollout_ref.model.{path,hf_config_path}` | model | the policy;" in page()


def test_it_travels_with_the_run_and_holds_no_secret(tmp_path):
    verl = with_keys(**{"reward.custom_reward_function.reward_kwargs.api_key": "hunter2"})
    given = spec(verl, env={"JUDGE_TOKEN": "hunter2", "JUDGE_URL": "http://a:hunter2@b"})
    mine = made(given, cwd=tmp_path)
    assert "hunter2" not in json.dumps(dataclasses.asdict(mine))
    path = tmp_path / "job" / "config" / "run.json"
    path.parent.mkdir(parents=True)
    dataclasses.replace(spec(), job_dir=str(tmp_path / "job"), fingerprint=mine).save(path)
    assert RunSpec.load(path).fingerprint == mine


# -- teachers -----------------------------------------------------------------------------------------------


TEACHER = "distillation.teacher_models.teacher_model"
DISTILLED = (
    "distillation.enabled=True",
    "distillation.nnodes=1",
    "distillation.distillation_loss.loss_mode=forward_kl_topk",
    f"{TEACHER}.model_path=teacher",
)


@pytest.fixture
def teacher(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "model.safetensors").write_bytes(b"a")
    return tmp_path


def taught(cwd, *words, **options):
    return made(planned(*DISTILLED, *words, **options).spec, cwd=cwd)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("distillation.distillation_loss.topk=8", ["distillation.distillation_loss.topk was 32, is 8"]),
        (
            "distillation.distillation_loss.loss_mode=k3",
            ['distillation.distillation_loss.topk was 32, is "of the answer\'s tokens alone"'],
        ),
        (f"{TEACHER}.model_path=org/other", None),
        (f"{TEACHER}.inference.dtype=bfloat16", [f'{TEACHER}.inference.dtype was "float32", is "bfloat16"']),
        (f"+{TEACHER}.inference.engine_kwargs.vllm.block_size=32", None),
        (f"{TEACHER}.inference.gpu_memory_utilization=0.9", []),
        ("distillation.n_gpus_per_node=4", []),
        ("distillation.distillation_loss.use_task_rewards=False", []),
        ("distillation.distillation_loss.loss_max_clamp=3", []),
    ],
)
def test_a_change_of_what_teachers_give_voids(teacher, word, told):
    found = changed(taught(teacher), taught(teacher, word))
    if told is None:
        assert found and all(text.startswith("teachers") for text in found)
    else:
        assert found == [f"teachers: {text}" for text in told]


def test_estimators_are_one_another_s_equal(teacher):
    k1, k3 = (taught(teacher, f"distillation.distillation_loss.loss_mode={mode}") for mode in ("kl", "k3"))
    assert changed(k1, k3) == []


def test_an_edited_teacher_voids(teacher):
    before = taught(teacher)
    (teacher / "teacher" / "model.safetensors").write_bytes(b"b")
    assert changed(before, taught(teacher)) == [
        f"teachers {teacher}/teacher/model.safetensors was edited",
    ]


def test_rows_that_go_to_another_teacher_void(teacher):
    def two(key):
        entries = (
            f"+distillation.teacher_models.{name}.{given}"
            for name, of in (("a", "sort"), ("b", key))
            for given in (f"key={of}", f"model_path=org/{name}", "num_replicas=1")
        )
        return taught(teacher, *entries)

    told = changed(two("count"), two("add"))
    assert told == ['teachers: distillation.teacher_models.b.key was "count", is "add"']


def test_a_run_without_teachers_has_no_part_of_them(teacher):
    plain = made(planned().spec, cwd=teacher)
    assert "teachers" not in plain.parts
    assert "teachers" in taught(teacher).parts
    off = made(planned(f"{TEACHER}.model_path=org/other").spec, cwd=teacher)
    assert changed(plain, off) == []


# -- code ---------------------------------------------------------------------------------------------------


@pytest.fixture
def code(tmp_path):
    """A folder with a reward file that imports others, each in another way, and what the launch says."""
    folder = tmp_path / "repo"
    files = {
        "rewards/r.py": "import math, helpers\nfrom rules.numbers import parse\ndef f():\n    import late\n",
        "rewards/helpers.py": "from deeper import g\n",
        "rewards/deeper.py": "g = 1\n",
        "rewards/late.py": "x = 1\n",
        "rewards/beside.py": "x = 1\n",
        "rules/__init__.py": "",
        "rules/numbers.py": "from . import signs\nparse = int\n",
        "rules/signs.py": "plus = 1\n",
        "verl/__init__.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder, with_keys(**{REWARD: "rewards/r.py"})


READ = ("rewards/r.py", "rewards/helpers.py", "rewards/deeper.py", "rewards/late.py")
READ += ("rules/__init__.py", "rules/numbers.py", "rules/signs.py")


@pytest.mark.parametrize("name", [*READ, "rewards/beside.py", "verl/__init__.py"])
def test_an_edit_of_the_reward_function_or_of_a_module_that_it_imports_voids(code, name):
    folder, verl = code
    before = print_of(folder, verl)
    with (folder / name).open("a") as file:
        file.write("y = 2\n")
    named = [f"reward function {folder / name} was edited"] if name in READ else []
    assert changed(before, print_of(folder, verl)) == named


def test_modules_are_found_on_the_python_path_too(code, tmp_path):
    folder, verl = code
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beyond.py").write_text("x = 1\n")
    (folder / "rewards" / "r.py").write_text("import beyond\n")
    env = {"PYTHONPATH": str(tmp_path / "lib")}
    before = print_of(folder, verl, env=env)
    (tmp_path / "lib" / "beyond.py").write_text("x = 2\n")
    told = changed(before, print_of(folder, verl, env=env))
    assert told == [f"reward function {tmp_path}/lib/beyond.py was edited"]


def test_a_copy_of_the_folder_is_the_same_code(code, tmp_path):
    folder, verl = code
    before = print_of(folder, verl)
    shutil.copytree(folder, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "rewards" / "r.py", (1, 1))
    assert changed(before, print_of(tmp_path / "copy", verl)) == []


def test_nothing_of_the_code_is_run(tmp_path):
    (tmp_path / "r.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nimport other\n")
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    print_of(tmp_path, with_keys(**{REWARD: "r.py"}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "import a" * 3, "(" * 10_000])
def test_what_is_not_python_counts_by_its_content(tmp_path, text):
    (tmp_path / "r.py").write_text(text)
    mine = print_of(tmp_path, with_keys(**{REWARD: "r.py"}))
    assert list(mine.files["reward function"]) == [str(tmp_path / "r.py")]


def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "r.py")
    mine = print_of(tmp_path, with_keys(**{REWARD: "r.py"}))
    assert mine.parts["reward function"][f"{REWARD}: r.py"] == "unreadable"


def test_a_module_named_by_its_package_counts_where_it_lies_here(code):
    folder, _ = code
    verl = with_keys(**{REWARD: "pkg://rules.numbers"})
    before = print_of(folder, verl)
    (folder / "rules" / "signs.py").write_text("")
    assert changed(before, print_of(folder, verl)) == [f"reward function {folder}/rules/signs.py was edited"]


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("reward.reward_manager.module.path", "reward manager"),
        ("data.custom_cls.path", "training data"),
        ("data.function_tool_path", "agent loop and tools"),
        ("actor_rollout_ref.rollout.multi_turn.function_tool_path", "agent loop and tools"),
    ],
)
def test_other_code_counts_by_content_too(tmp_path, key, part):
    (tmp_path / "own.py").write_text("a = 1\n")
    verl = with_keys(**{key: "own.py"})
    before = print_of(tmp_path, verl)
    (tmp_path / "own.py").write_text("a = 2\n")
    assert changed(before, print_of(tmp_path, verl)) == [f"{part} {tmp_path}/own.py was edited"]


def test_a_config_of_tools_counts_with_the_classes_and_files_that_it_names(tmp_path):
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: mine.Search, config: {servers: servers.json, name: verl.tools.x}}]\n"
    )
    (tmp_path / "mine.py").write_text("class Search: ...\n")
    (tmp_path / "servers.json").write_text("{}")
    verl = with_keys(**{"actor_rollout_ref.rollout.multi_turn.tool_config_path": "tools.yaml"})
    for name in ("tools.yaml", "mine.py", "servers.json"):
        before = print_of(tmp_path, verl)
        with (tmp_path / name).open("a") as file:
            file.write("\n# more\n")
        told = changed(before, print_of(tmp_path, verl))
        assert told == [f"agent loop and tools {tmp_path}/{name} was edited"]


def test_plugin_folders_count_by_content(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "flow.py").write_text("import shared\n")
    (folder / "shared.py").write_text("a = 1\n")
    env = {"TRINITY_PLUGIN_DIRS": str(folder)}
    before = print_of(tmp_path, env=env)
    (folder / "shared.py").write_text("a = 2\n")
    (folder / "new.py").write_text("a = 2\n")
    assert changed(before, print_of(tmp_path, env=env)) == [
        f"plugin folders {folder}/new.py was added",
        f"plugin folders {folder}/shared.py was edited",
    ]
    shutil.copytree(folder, tmp_path / "copy")
    again = {"TRINITY_PLUGIN_DIRS": str(tmp_path / "copy")}
    assert changed(print_of(tmp_path, env=env), print_of(tmp_path, env=again)) == []


# -- models and data --------------------------------------------------------------------------------------

MODEL = with_keys(**{"actor_rollout_ref.model.path": "m"})


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "modeling_own.py", "README.md"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 4)
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "modeling_own.py", "model.safetensors"]
)
def test_an_edit_in_a_model_s_folder_voids(tmp_path, model, name):
    before = print_of(tmp_path, MODEL)
    data = bytearray((model / name).read_bytes())
    data[1] ^= 1  # of the same size
    (model / name).write_bytes(data)
    assert changed(before, print_of(tmp_path, MODEL)) == [f"model {model / name} was edited"]


def test_a_copied_model_is_the_same_model(tmp_path, model):
    before = print_of(tmp_path, MODEL)
    (model / "README.md").write_text("read me")
    shutil.copytree(model, tmp_path / "copy", copy_function=shutil.copyfile)
    again = with_keys(**{"actor_rollout_ref.model.path": str(tmp_path / "copy")})
    assert changed(before, print_of(tmp_path, again)) == []


def test_a_model_of_a_hub_counts_by_its_name(tmp_path):
    names = [with_keys(**{"actor_rollout_ref.model.path": name}) for name in ("org/a", "org/b")]
    told = changed(*(print_of(tmp_path, each) for each in names))
    assert told == ['model: actor_rollout_ref.model.path was "org/a", is "org/b"']


def test_a_tokenizer_of_its_own_counts_without_the_weights_beside_it(tmp_path, model):
    verl = with_keys(**{"actor_rollout_ref.model.tokenizer_path": "m"})
    before = print_of(tmp_path, verl)
    (model / "model.safetensors").write_bytes(b"others")
    assert changed(before, print_of(tmp_path, verl)) == []
    (model / "tokenizer.json").write_text("{ }")
    assert changed(before, print_of(tmp_path, verl)) == [f"tokenizer {model}/tokenizer.json was edited"]


def rows(path, answers, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"prompt": answers}), path, **options)


@pytest.mark.parametrize("large", [False, True])
def test_training_files_count_by_content_and_not_by_when_they_were_written(tmp_path, large, monkeypatch):
    if large:
        monkeypatch.setattr(fingerprint_files, "WHOLE_BYTES", 1000)
        monkeypatch.setattr(fingerprint_files, "SAMPLE_BYTES", 1)
    path, texts = tmp_path / "a.parquet", [f"row {number}" for number in range(5000)]
    verl = with_keys(**{"data.train_files": ["a.parquet"], "data.val_files": ["b.parquet"]})
    rows(path, texts)
    before = print_of(tmp_path, verl)
    rows(path, texts)
    os.utime(path, (1, 1))
    (tmp_path / "b.parquet").write_text("a validation file may change")
    assert changed(before, print_of(tmp_path, verl)) == []
    rows(path, [*texts[:-1], "another row"])
    assert changed(before, print_of(tmp_path, verl)) == [f"training data {path} was edited"]


def test_a_large_file_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint_files, "WHOLE_BYTES", 1 << 20)
    path = tmp_path / "weights.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 33)  # 8 GiB without a block on the disk
    before = fingerprint_files.of_file(path)
    with path.open("r+b") as file:
        file.write(b"1")
    assert fingerprint_files.of_file(path) != before


def test_of_many_files_the_last_ones_are_read_in_part(tmp_path, monkeypatch):
    """A folder of many files must not be read for minutes at every start."""
    monkeypatch.setattr(fingerprint_files, "TOTAL_BYTES", 5 << 20)
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.jsonl").write_bytes(b"x" * (3 << 20))
    mine = print_of(tmp_path, with_keys(**{"data.train_files": "data"}))
    assert [text.startswith("~") for text in mine.files["training data"].values()] == [False, True, True]
    check(mine)
    (tmp_path / "data" / "2.jsonl").write_bytes(b"y" + b"x" * ((3 << 20) - 1))
    with pytest.raises(FilesEdited):
        check(mine)


def test_the_order_of_training_files_counts(tmp_path):
    for name in "ab":
        rows(tmp_path / f"{name}.parquet", [name])
    orders = (["a.parquet", "b.parquet"], ["b.parquet", "a.parquet"])
    found = [with_keys(**{"data.train_files": order}) for order in orders]
    assert changed(*(print_of(tmp_path, each) for each in found))


def test_tasksets_of_training_count_and_those_of_an_evaluation_do_not(tmp_path):
    for name in ("t.jsonl", "e.jsonl"):
        (tmp_path / name).write_text("{}\n")
    tasksets = {
        "train/0": {"place": "x", "path": "t.jsonl", "workflow_args": {"function": f"{tmp_path}/p.py:run"}},
        "eval/0": {"place": "y", "path": "e.jsonl"},
    }
    (tmp_path / "p.py").write_text("def run(row): return 1\n")
    verl = {
        "data": {"workflows": tasksets, "tasksets": tasksets, "taskset_sampling": {"eval/0": {"top_p": 1}}}
    }
    before = print_of(tmp_path, verl)
    (tmp_path / "e.jsonl").write_text("{}\n{}\n")
    verl["data"]["taskset_sampling"]["eval/0"]["top_p"] = 0.5
    assert changed(before, print_of(tmp_path, verl)) == []
    (tmp_path / "p.py").write_text("def run(row): return 2\n")
    assert f"workflows {tmp_path}/p.py was edited" in changed(before, print_of(tmp_path, verl))
    (tmp_path / "t.jsonl").write_text("{}\n{}\n")
    assert f"training data {tmp_path}/t.jsonl was edited" in changed(before, print_of(tmp_path, verl))


def test_models_beside_the_policy_count_by_their_files_and_operators_by_theirs(tmp_path, model):
    (tmp_path / "juicer.yaml").write_text("a: 1\n")
    served = {"path": "m", "name": "judge", "engines": 1, "width": 1, "settings": {"dtype": "half"}}
    operators = [{"name": "data_juicer", "args": {"config_path": str(tmp_path / "juicer.yaml")}}]
    verl = {"data": {"auxiliary_models": [served], "experience_pipeline": {"operators": operators}}}
    before = print_of(tmp_path, verl)
    wider = {"data": {**verl["data"], "auxiliary_models": [{**served, "engines": 2, "width": 2}]}}
    assert changed(before, print_of(tmp_path, wider)) == []
    (model / "config.json").write_text("{ }")
    (tmp_path / "juicer.yaml").write_text("a: 2\n")
    assert changed(before, print_of(tmp_path, verl)) == [
        f"reward model {model}/config.json was edited",
        f"experience pipeline {tmp_path}/juicer.yaml was edited",
    ]


# -- what the buffer says -----------------------------------------------------------------------------------


@pytest.fixture
def buffer(tmp_path):
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    yield buffer
    buffer.close()


def edited(tmp_path, text):
    (tmp_path / "r.py").write_text(text)
    return print_of(tmp_path, with_keys(**{REWARD: "r.py"}))


def test_groups_of_two_starts_with_an_edit_between_count_for_neither(buffer, tmp_path):
    """Of an explorer alone, then a trainer: some groups are of one file, some of the other."""
    first, second = edited(tmp_path, "a = 1\n"), edited(tmp_path, "a = 2\n")
    sign(buffer, first)
    assert edits(buffer, first) == []
    sign(buffer, second)
    sign(buffer, second)
    for mine in (first, second):
        assert edits(buffer, mine) == [f"reward function {tmp_path}/r.py was edited"]
    sign(buffer, second, keep_earlier=False)
    assert edits(buffer, second) == []


def test_a_message_names_a_few_settings_of_a_part(tmp_path):
    names = ["temperature", "top_k", "top_p", "n", "seed", "ignore_eos"]
    told = changed(
        print_of(tmp_path), print_of(tmp_path, {"actor_rollout_ref": {"rollout": dict.fromkeys(names, 3)}})
    )
    assert told[0] == "sampling: actor_rollout_ref.rollout.temperature was not set, is 3"
    assert told[-1] == "sampling: 2 further differences"
    long = [{"actor_rollout_ref": {"model": {"custom_chat_template": text * 100}}} for text in "ab"]
    told = changed(*(print_of(tmp_path, each) for each in long))
    assert told == ["chat template: actor_rollout_ref.model.custom_chat_template was changed"]


# -- while a run goes on ------------------------------------------------------------------------------------


def test_a_file_that_is_loaded_later_is_to_be_the_one_that_the_run_started_with(tmp_path):
    mine = edited(tmp_path, "a = 1\n")
    check(mine)
    check(None)
    (tmp_path / "r.py").write_text("a = 2\n")
    check(mine, ["model"])
    with pytest.raises(
        FilesEdited, match=rf"reward function {tmp_path}/r.py was edited since the run started"
    ):
        check(mine, ["reward function"])
    (tmp_path / "r.py").unlink()
    with pytest.raises(FilesEdited):
        check(mine)


def test_the_other_side_of_a_run_does_not_join_it_with_an_edited_file(tmp_path):
    theirs, ours = (spec(fingerprint=edited(tmp_path, text)) for text in ("a = 1\n", "a = 2\n"))
    assert list(acquire_job.differing(theirs, theirs)) == []
    assert list(acquire_job.differing(theirs, ours)) == [f"reward function {tmp_path}/r.py was edited"]


def test_a_start_keeps_its_fingerprint_and_says_what_was_edited(tmp_path, monkeypatch, capsys):
    reward = tmp_path / "r.py"
    reward.write_text("a = 1\n")
    plan = planned(f"{REWARD}={reward}", job=str(tmp_path / "job"))
    monkeypatch.setattr(
        acquire_job.config_files, "write", lambda plan, *_: plan.spec.save(plan.job.spec_path)
    )
    acquire_job._prepare(plan, SimpleNamespace(record={}), None, None, joined=False)
    theirs = RunSpec.load(plan.job.spec_path)
    assert theirs.fingerprint.files["reward function"][str(reward)]
    ids, ones = np.array([1, 2], np.int32), np.ones(2, np.uint8)
    answer = Experience(0, ids, ids, ones, np.zeros(2, np.float32), 1.0, 0, 0)
    with closing(open_buffer(theirs.database_url)) as buffer:
        sign(buffer, theirs.fingerprint)
        buffer.put_groups([Group("train-0", 0, {}, 1, (answer,), "train")])
    reward.write_text("a = 2\n")
    with pytest.raises(RunError, match=f"started with other settings: reward function {reward} was edited"):
        acquire_job._prepare(plan, SimpleNamespace(record={}), None, None, joined=True)
    capsys.readouterr()
    acquire_job._prepare(plan, SimpleNamespace(record={}), None, None, joined=False)
    announced = f"reward function {reward} was edited: 1 group will be generated again"
    assert announced in capsys.readouterr().out
    with closing(open_buffer(theirs.database_url)) as buffer:
        assert buffer.claim_groups(1, owner="a trainer that was killed", step=1)
    acquire_job._prepare(plan, SimpleNamespace(record={}), None, None, joined=False)
    assert announced in capsys.readouterr().out
