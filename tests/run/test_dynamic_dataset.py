"""A dataset class whose ``on_batch_end`` changes its rows is refused before anything starts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from toy_plan import planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.job import dynamic_dataset
from trinity_compat.run import run
from trinity_compat.run.checks import preflight

CLASS = """raise RuntimeError  # the file is not imported


class Other:
    def on_batch_end(self, batch): ...


class Mine(Other):
    def __getitem__(self, item): ...
"""
DYNAMIC = f"{CLASS}\n    def on_batch_end(self, batch):\n        self.rows = self.rows[1:]\n"


def check_source(folder, text=DYNAMIC, **custom):
    (folder / "data.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    verl = {"data": {"custom_cls": {"path": "data.py", "name": "Mine", **custom}}}
    dynamic_dataset.check_source(verl, cwd=folder)


def words_of(folder):
    (folder / "data.py").write_text(DYNAMIC)
    return f"data.custom_cls.path={folder}/data.py", "data.custom_cls.name=Mine"


def test_the_refusal_names_the_class_the_method_s_line_and_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"data\.custom_cls\.name=Mine: its method on_batch_end") as error:
        check_source(tmp_path)
    assert f"({tmp_path}/data.py:11)" in error.value.message
    assert "remove on_batch_end" in error.value.hint
    assert "verl.trainer.main_ppo" in error.value.hint


@pytest.mark.parametrize(
    ("text", "custom"),
    [
        (CLASS, {}),  # inherited: found when the dataset is opened
        ("class Mine(", {}),
        ("x = " + "-" * 100_000 + "1", {}),
        ("x = 1\0", {}),
        (DYNAMIC, {"path": "pkg://mine.data"}),
        (DYNAMIC, {"path": "missing.py"}),
        (DYNAMIC, {"path": "~no-such-user/data.py"}),
        (DYNAMIC, {"path": None}),
        (DYNAMIC.replace("Mine", "Another"), {}),
    ],
)
def test_other_classes_and_unreadable_files_pass(tmp_path, text, custom):
    check_source(tmp_path, text, **custom)


def test_a_file_in_another_encoding_is_read(tmp_path):
    with pytest.raises(UserError, match=r"data\.py:13"):
        check_source(tmp_path, f"# coding: latin-1\n# \xe9\n{DYNAMIC}".encode("latin-1"))


def test_an_opened_dataset_with_the_method_is_refused():
    with pytest.raises(UserError, match="name=SimpleNamespace: its method on_batch_end"):
        dynamic_dataset.check_instance(SimpleNamespace(on_batch_end=print))
    dynamic_dataset.check_instance([1, 2])


def test_a_run_is_refused_at_the_launch_s_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        preflight, "check", lambda plan: preflight.check_dataset_class(plan.spec, cwd=plan.cwd)
    )
    monkeypatch.setattr(run.start_check, "check", lambda *_, **__: pytest.fail("the start check is later"))
    with pytest.raises(UserError, match="its method on_batch_end") as error:
        run.run_source(*source(*words_of(tmp_path)))
    assert error.value.where is not None


def test_a_dry_run_names_the_refused_dataset(tmp_path):
    made = planned(*words_of(tmp_path))
    assert any("its method on_batch_end" in each.message for each in preflight.missing(made))


def test_a_benchmark_which_trains_nothing_is_not_refused(tmp_path):
    spec = planned(*words_of(tmp_path)).spec
    preflight.check_dataset_class(replace(spec, mode="bench"), cwd=tmp_path)
