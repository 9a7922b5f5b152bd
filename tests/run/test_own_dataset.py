"""A dataset class that changes by what was trained: which runs can have one, which steps its epochs have."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.job import dynamic_dataset
from trinity_compat.job.dynamic_dataset import Epoch, Epochs
from trinity_compat.job.run_spec import ReplaySpec, RunSpec, SyncSpec
from trinity_compat.run.checks import preflight

CLASS = """raise RuntimeError  # nothing of it is run


class Other:
    def on_batch_end(self, batch): ...


class Mine(Other):
    def __getitem__(self, item): ...
"""
CHANGING = f"{CLASS}\n    def on_batch_end(self, batch):\n        self.rows = self.rows[1:]\n"
ASYNC = {"sync": SyncSpec(style="fully_async")}


def spec_of(
    folder, text=CHANGING, *, filtered=False, operators=None, sync=None, replay=None, workers=0, **custom
):
    (folder / "data.py").write_text(text)
    verl = {
        "data": {
            "custom_cls": {"path": "data.py", "name": "Mine", **custom},
            "dataloader_num_workers": workers,
        },
        "algorithm": {"filter_groups": {"enable": filtered}},
    }
    if operators:
        verl["data"]["experience_pipeline"] = {"operators": operators}
    return RunSpec(str(folder), "", verl, 1, None, sync or SyncSpec(), replay=replay)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (ASYNC, "and under sync_style fully_async the explorer is not ahead by a fixed number of steps"),
        ({"filtered": True}, "and with algorithm.filter_groups a step takes"),
        ({"operators": [{"name": "reward_filter"}]}, "and with an experience pipeline a step takes"),
        ({"replay": ReplaySpec()}, "and with a replay buffer a step trains"),
    ],
)
def test_where_nobody_could_say_which_data_it_is_refused_with_its_line(tmp_path, given, why):
    with pytest.raises(
        UserError, match=f"name=Mine: its on_batch_end changes the data after each step, {why}"
    ) as e:
        dynamic_dataset.check_text(spec_of(tmp_path, **given), cwd=tmp_path)
    assert str(e.value.where) == f"{tmp_path}/data.py:11"
    assert "sync_style fixed" in e.value.hint
    with pytest.raises(UserError, match="name=SimpleNamespace"):
        dynamic_dataset.check(spec_of(tmp_path, **given), SimpleNamespace(on_batch_end=print))
    dynamic_dataset.check(spec_of(tmp_path, **given), [1, 2])


@pytest.mark.parametrize(
    ("text", "custom"),
    [
        (CLASS, {}),
        ("class Mine(", {}),  # who loads it says so
        (CHANGING, {"path": "pkg://mine.data"}),
        (CHANGING, {"path": "missing.py"}),
        (CHANGING, {"path": None}),
        (CHANGING.replace("Mine", "Another"), {}),
    ],
)
def test_other_classes_pass(tmp_path, text, custom):
    spec = spec_of(tmp_path, text, **ASYNC, **custom)
    dynamic_dataset.check_text(spec, cwd=tmp_path)
    assert dynamic_dataset.note(spec, cwd=tmp_path) == []


@pytest.mark.parametrize(("workers", "when"), [(0, "a step begins"), (8, "an epoch begins")])
def test_under_fixed_the_plan_says_what_tasks_are_of(tmp_path, workers, when):
    spec = spec_of(tmp_path, workers=workers)
    dynamic_dataset.check_text(spec, cwd=tmp_path)
    (line,) = dynamic_dataset.note(spec, cwd=tmp_path)
    assert "name=Mine: on_batch_end runs in the trainer and the explorer" in line
    assert f"tasks are read when {when}" in line


def test_an_epoch_has_the_whole_batches_of_the_rows_that_there_are_when_it_begins():
    asked, lengths = [], {0: 7, 3: 9, 7: 1}

    def length(steps):
        asked.append(steps)
        return lengths[steps]

    epochs = Epochs(2, 4, lambda step: step - 1, length)
    assert epochs.of_step(1) == epochs.of_step(3) == Epoch(0, 1, 3, 7, 0)
    assert asked == [0]  # nothing that is not known yet
    assert epochs.of_step(4) == epochs.of_step(7) == Epoch(1, 4, 4, 9, 3)
    assert asked == [0, 3]
    assert epochs.of_step(8) is None
    assert epochs.epoch(3) == Epoch(3, 8, 0, 1, 7)


def test_a_dry_run_says_both(tmp_path):
    (tmp_path / "data.py").write_text(CHANGING)
    made = planned(f"data.custom_cls.path={tmp_path}/data.py", "data.custom_cls.name=Mine")
    assert any("name=Mine: on_batch_end runs in the trainer" in line for line in preflight.remarks(made))
    assert not any("on_batch_end" in line for line in preflight.missing(made))
    made = replace(made, spec=replace(made.spec, **ASYNC))
    assert any("name=Mine: its on_batch_end changes the data" in line for line in preflight.missing(made))


def test_a_file_in_an_encoding_of_its_own_is_read(tmp_path):
    spec = spec_of(tmp_path, **ASYNC)
    (tmp_path / "data.py").write_bytes(f"# coding: latin-1\n# \xe9\n{CHANGING}".encode("latin-1"))
    with pytest.raises(UserError) as e:
        dynamic_dataset.check_text(spec, cwd=tmp_path)
    assert str(e.value.where) == f"{tmp_path}/data.py:13"


@pytest.mark.parametrize("text", ["x = " + "-" * 100_000 + "1", "x = 1\0"])
def test_a_file_that_cannot_be_read_is_left_to_who_loads_it(tmp_path, text):
    assert dynamic_dataset.note(spec_of(tmp_path, text), cwd=tmp_path) == []


def test_a_folder_of_nobody_s_is_left_to_who_loads_it(tmp_path):
    assert dynamic_dataset.note(spec_of(tmp_path, path="~nobody-here/data.py"), cwd=tmp_path) == []
