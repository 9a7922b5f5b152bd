"""A dataset class that changes by what was trained is refused before anything starts, by its text alone."""

from types import SimpleNamespace

import pytest

from trinity_compat.errors import UserError
from trinity_compat.explorer import own_dataset

CLASS = """raise RuntimeError  # nothing of it is run


class Other:
    def on_batch_end(self, batch): ...


class Mine(Other):
    def __getitem__(self, item): ...
"""


def checked(folder, text, **custom):
    (folder / "data.py").write_text(text)
    tree = {"data": {"custom_cls": {"path": "data.py", "name": "Mine", **custom}}}
    own_dataset.check_text(tree, cwd=folder)


def test_the_method_is_named_with_its_line(tmp_path):
    text = f"{CLASS}\n    def on_batch_end(self, batch):\n        self.rows = self.rows[1:]\n"
    with pytest.raises(UserError, match="name=Mine: its on_batch_end changes the data") as caught:
        checked(tmp_path, text)
    assert str(caught.value.where) == f"{tmp_path}/data.py:11"
    assert "run on stock veRL" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "custom"),
    [
        (CLASS, {}),
        ("class Mine(", {}),  # who loads it says so
        (CLASS, {"path": "pkg://mine.data"}),
        (CLASS, {"path": "missing.py"}),
        (CLASS, {"path": None}),
        (CLASS.replace("Mine", "Another"), {}),
    ],
)
def test_other_classes_pass(tmp_path, text, custom):
    checked(tmp_path, text, **custom)


def test_one_that_has_the_method_from_elsewhere_is_refused_when_it_is_opened():
    own_dataset.check([1, 2])
    with pytest.raises(UserError, match="name=SimpleNamespace: its on_batch_end"):
        own_dataset.check(SimpleNamespace(on_batch_end=print))
