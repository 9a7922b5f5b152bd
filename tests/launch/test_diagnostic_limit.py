"""A script that has much to be told about: warnings are told up to a limit, errors beyond it."""

import pytest

from trinity_compat.common import limits
from trinity_compat.launch import read_text

MANY = "".join(f"source /elsewhere/{n}\n" for n in range(limits.DIAGNOSTICS + 200))


@pytest.mark.parametrize(
    ("last", "code"),
    [("echo '\n", "TP001"), ("for a in {1..5000}; do for b in {1..5000}; do :; done; done\n", "TP112")],
)
def test_an_error_is_told_after_any_number_of_warnings(last, code):
    found = read_text(MANY + last).diagnostics
    assert [note.code for note in found if note.severity == "error"] == [code]
    assert len(found) == limits.DIAGNOSTICS + 1
