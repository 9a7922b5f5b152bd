"""Trinity's tasksets: what is read of a folder, in veRL's columns, in Trinity's order."""

import json
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf
from simulation import make_spec

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.data.tasks import eval_stream, train_stream
from trinity_compat.explorer.data.tasksets import as_verl_rows, joined, load_rows
from trinity_compat.explorer.engine.sampling import eval_jobs
from trinity_compat.explorer.engine.weights import INITIAL
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.job.run_spec import SyncSpec

FORMAT = {
    "prompt_key": "question",
    "response_key": "answer",
    "messages_key": "message",
    "system_prompt_key": None,
    "system_prompt": None,
}


def taskset(path, **change):
    found = {"place": "tasksets.0", "name": "sums", "path": str(path), "split": "train", "subset_name": None}
    return {**found, "format": FORMAT, **change}


def rows_of(path, **change):
    asked = taskset(path, **change)
    return list(as_verl_rows(load_rows(asked), asked))


@pytest.fixture
def folder(tmp_path):
    for split, number in (("train", 3), ("test", 1)):
        rows = [{"question": f"{split} {n} + 1", "answer": n + 1} for n in range(number)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_folder_s_split_is_read_and_told_in_verl_s_columns(folder):
    assert [row["prompt"][0]["content"] for row in rows_of(folder, split="test")] == ["test 0 + 1"]
    first = rows_of(folder)[1]
    assert first["prompt"] == [{"role": "user", "content": "train 1 + 1"}]
    assert first["data_source"] == "sums"
    assert first["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert first["extra_info"] == {"split": "train", "index": 1}


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_file_is_read_by_its_suffix(tmp_path, suffix):
    file, rows = tmp_path / f"rows.{suffix}", [{"question": "1 + 1", "answer": "2"}]
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text(json.dumps(rows) if suffix == "json" else json.dumps(rows[0]))
    assert rows_of(file)[0]["reward_model"]["ground_truth"] == "2"


def test_rows_of_several_tasksets_need_not_have_the_same_columns(tmp_path):
    """What only one has is null in the others; a column of unlike types that nobody reads is left out."""
    for name, level in (("a", 3), ("b", "hard")):
        row = {"question": f"{name}?", "answer": name, "level": level, f"of_{name}": 1}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    parts = [as_verl_rows(load_rows(each), each) for each in map(taskset, sorted(tmp_path.iterdir()))]
    rows = list(joined(parts, ["a", "b"]))
    assert [row["prompt"][0]["content"] for row in rows] == ["a?", "b?"]
    assert [(row["of_a"], row["of_b"]) for row in rows] == [(1, None), (None, 1)]
    assert "level" not in rows[0]


def test_tasksets_whose_chats_cannot_be_one_column_are_told_apart(tmp_path):
    for name, info in (("a", {"index": 1}), ("b", {"index": "one"})):
        row = {"question": "?", "answer": name, "extra_info": info}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    files = sorted(map(str, tmp_path.iterdir()))
    with pytest.raises(UserError, match=r"'extra_info' of .*a\.jsonl is .*int64.*b\.jsonl .*string"):
        load_rows(taskset("", files=files))


def test_a_subset_is_one_of_the_folder_s_configurations(tmp_path):
    for subset in ("easy", "hard"):
        (tmp_path / subset).mkdir()
        (tmp_path / subset / "train.jsonl").write_text(json.dumps({"question": subset, "answer": "1"}))
    card = (
        "---\nconfigs:\n- config_name: easy\n  data_dir: easy\n- config_name: hard\n  data_dir: hard\n---\n"
    )
    (tmp_path / "README.md").write_text(card)
    assert rows_of(tmp_path, subset_name="hard")[0]["prompt"][0]["content"] == "hard"


def test_rows_of_verl_stay_as_they_are(tmp_path):
    row = {
        "prompt": [{"role": "user", "content": "1 + 1"}],
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 7},
        "agent_name": "tool_agent",
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    assert rows_of(tmp_path, format={**FORMAT, "prompt_key": "prompt"}) == [row]


def test_a_system_prompt_comes_before_the_user_s(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "answer": "a", "rules": "of the row"}))
    for form, said in (
        ({"system_prompt": "of all"}, "of all"),
        ({"system_prompt_key": "rules"}, "of the row"),
    ):
        system = rows_of(tmp_path, format={**FORMAT, **form})[0]["prompt"][0]
        assert system == {"role": "system", "content": said}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split": "nowhere"}, "cannot be read"),
        ({"format": {**FORMAT, "prompt_key": "text"}}, r"format\.prompt_key=text: .* has no such column"),
        ({"format": {**FORMAT, "response_key": "text"}}, r"format\.response_key=text: .* has no such column"),
    ],
)
def test_what_is_not_there_is_said_with_its_field(folder, change, said):
    with pytest.raises(UserError, match=said):
        rows_of(folder, **change)


@pytest.fixture
def config(folder):
    """Of two tasksets to train on, of 3 rows and 1, and two of 1 and 3 to evaluate."""
    selector = {"selector": {"type": "sequential", "seed": 42}}
    known = {
        "train/0": taskset(folder, **selector),
        "train/1": taskset(folder, name="more", split="test", **selector),
        "eval/0": taskset(folder, split="test", **selector),
        "eval/1": taskset(folder, **selector),
    }
    data = {
        "tasksets": known,
        "train_files": ["train/0", "train/1"],
        "val_files": ["eval/0", "eval/1"],
        "train_batch_size": 2,
        "filter_overlong_prompts": False,
        "custom_cls": {"path": "pkg://trinity_compat.explorer.data.tasksets", "name": "Tasksets"},
    }
    return OmegaConf.create({"data": data})


def test_the_streams_of_a_run_read_the_tasksets_that_its_configuration_names(config):
    train, evaluation = train_stream(config, None, None), eval_stream(config, None, None)
    assert (len(train), train.order.steps(1), len(evaluation)) == (4, 2, 4)
    asked = [train.task(number)["raw_prompt"][0]["content"] for number in range(4)]
    assert sorted(asked) == ["test 0 + 1", "train 0 + 1", "train 1 + 1", "train 2 + 1"]
    assert evaluation.row(0)["reward_model"]["ground_truth"] == "1"


@pytest.mark.parametrize(
    ("batch", "trainer", "steps"),
    [(2, {}, 2), (3, {}, 1), (3, {"total_epochs": 2}, 2), (6, {"total_epochs": 15}, 10)],
)
def test_a_step_may_go_on_into_the_next_epoch(config, batch, trainer, steps):
    """Of four rows, as trinity-rft counts: max_steps in buffer/task_scheduler.py."""
    config.data.train_batch_size, config.trainer = batch, trainer
    assert train_stream(config, None, None).order.steps(trainer.get("total_epochs", 1)) == steps


def test_rows_that_fill_no_batch_are_refused_unless_the_steps_are_counted(config):
    config.data.train_batch_size, config.trainer = 9, {"total_epochs": 2}
    with pytest.raises(UserError, match="train_batch_size=9, but only 4 prompts are left"):
        train_stream(config, None, None)
    config.trainer.total_training_steps = 3
    assert sorted(train_stream(config, None, None).order.row(number) for number in range(4)) == [0, 1, 2, 3]


def test_a_task_is_sampled_as_its_own_taskset_says(config, tmp_path):
    spec = make_spec(2, 2, 2, SyncSpec("fully_async"))
    own = {"train/1": {"temperature": 0.5, "top_k": 7}, "eval/1": {"temperature": 0, "n": 3}}
    data = {**spec.verl["data"], "taskset_sampling": own}
    spec = replace(spec, verl={**spec.verl, "data": data})
    train, evaluation = train_stream(config, None, None), eval_stream(config, None, None)
    buffer = open_buffer(f"sqlite:///{tmp_path}/buffer.db")
    scheduler = Scheduler(spec, buffer, train, evaluation)
    buffer.publish_version(WeightVersion(0, "", "", 0, "memory"))
    jobs = []
    while (work := scheduler.next_work(1)) and len(jobs) < 4:
        for begun in scheduler.begin(work, INITIAL, 2):
            jobs += begun.jobs
    kinds = {job.task["raw_prompt"][0]["content"].split()[0]: job.sampling for job in jobs}
    assert (kinds["train"]["temperature"], kinds["train"]["top_k"]) == (1.0, -1)
    assert (kinds["test"]["temperature"], kinds["test"]["top_k"]) == (0.5, 7)
    assert [job.sampling["temperature"] for job in eval_jobs(spec, evaluation)] == [1.0, 0, 0, 0]
    assert ["seed" in job.sampling for job in eval_jobs(spec, evaluation)] == [True, False, False, False]
    assert [job.n for job in eval_jobs(spec, evaluation)] == [1, 3, 3, 3]
    assert all("n" not in job.sampling for job in jobs + eval_jobs(spec, evaluation))
