"""What is said of several lines is said once."""

from trinity_compat.common.errors import Where
from trinity_compat.launch import merged, read_text
from trinity_compat.launch.model import Diagnostic


def note(line, message="m", code="TP101", file="a.sh"):
    return Diagnostic(code, message, Where(file, line))


def test_the_first_of_equal_notes_names_the_other_lines():
    found = merged([note(3), note(4, "other"), note(7), note(9)])
    assert [str(each) for each in found] == [
        "a.sh:3: warning TP101 m (3 times: also lines 7, 9)",
        "a.sh:4: warning TP101 other",
    ]


def test_many_lines_are_counted_and_some_are_named():
    (found,) = merged([note(line) for line in range(1, 21)])
    assert found.message == "m (20 times: also lines 2, 3, 4, 5, 6, …)"


def test_other_codes_and_other_files_are_others():
    assert len(merged([note(1), note(2, code="TP102"), note(2, file="b.sh")])) == 3


def test_a_missing_variable_is_reported_once_with_its_source():
    (found,) = merged(read_text('[ "$A" ] && x=1\n' + 'if [ "$A" ]; then y=1; fi\n' * 3).diagnostics)
    assert "$A, which is not set; taken as false (set it with --env A=…)" in found.message
    assert "(3 times: also lines 3, 4)" in found.message
