"""Pairs of text: overrides in, what the Trinity configuration says out."""

import ast
from pathlib import Path

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.translate.apply import value_at

from .helpers import translated

CASES = Path(__file__).parent / "cases"


def read_cases():
    for file in sorted(CASES.glob("*.txt")):
        for block in file.read_text(encoding="utf-8").split("\n## ")[1:]:
            name, _, body = block.partition("\n")
            given, _, expected = body.partition("=>\n")
            yield pytest.param(given.split(), [line for line in expected.splitlines() if line], id=name)


def value_of(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None if text == "absent" else text


def found_at(config, path):
    """The value at ``path``; the carried keys hold dots of their own."""
    for section in (".stands_for.", ".verl."):
        if section in path:
            head, _, key = path.partition(section)
            return (value_at(config, head + section[:-1]) or {}).get(key)
    return value_at(config, path)


@pytest.mark.parametrize(("given", "expected"), list(read_cases()))
def test_a_translation_matches_its_case_file(given, expected):
    options = dict(word[1:].split("=") for word in given if word.startswith("@"))
    arguments = [word for word in given if not word.startswith("@")]
    if expected[0].startswith("refused: "):
        with pytest.raises(UserError) as error:
            translated(*arguments, **options)
        assert expected[0].removeprefix("refused: ") in str(error.value)
        return
    translation, config = translated(*arguments, **options)
    statuses = {finding.key: finding.status.value for finding in translation.findings}
    for line in expected:
        if line.startswith("! "):
            assert line[2:] in {caution.code for caution in translation.warnings}, line
        elif " : " in line:
            key, _, status = line.partition(" : ")
            assert statuses.get(key) == status, line
        else:
            path, _, value = line.partition(" = ")
            assert found_at(config, path) == value_of(value), line
