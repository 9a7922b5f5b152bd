"""Our reading of an override is Hydra's, for whatever text."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st

from trinity_compat.verl_config.grammar import OverrideSyntaxError, SweepError, parse_override, parse_value

OPERATORS = {"CHANGE": "", "ADD": "+", "FORCE_ADD": "++", "DEL": "~"}
PIECES = [
    *"[]{}(),:='\" \t\\/.-+*@%?|$~^#&;<>!",
    *("1", "0", "12", "007", "1_000", "3.5", ".5", "5.", "1e-6", "-2", "inf", "nan", "1e", "--1"),
    *(
        "true",
        "False",
        "null",
        "NULL",
        "abc",
        "a.b",
        "x-y",
        "_z",
        "ünï",
        "${a.b}",
        "${oc.env:X,d}",
        "${",
        "}",
    ),
    *("['console','wandb']", "{a:1,b:[2]}", "int(3)", "/data/x.parquet", "gs://b/k", "~/m", "\\,", "\n"),
]
KEYS = [
    "a",
    "a.b",
    "data.train_batch_size",
    "a.0",
    "a.00",
    "g/h",
    "g@p",
    "g@p.q",
    "a-b",
    "$x",
    "",
    "1a",
    "a..b",
    "é",
]


def by_hydra(line: str) -> Any:
    try:
        parsed = OverridesParser.create().parse_override(line)
    except HydraException:
        return "refused"
    if parsed.is_sweep_override():
        return "sweep"
    return OPERATORS[parsed.type.name], parsed.key_or_group, parsed.package, parsed.value()


def by_us(line: str) -> Any:
    try:
        read = parse_override(line)
    except SweepError:
        return "sweep"
    except OverrideSyntaxError:
        return "refused"
    return read.op, read.key, read.package, read.value


def same(ours: Any, theirs: Any) -> bool:
    """Equal in value and type, through containers; nan equals nan."""
    if isinstance(ours, float) and isinstance(theirs, float) and math.isnan(ours):
        return math.isnan(theirs)
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return same(list(ours.items()), list(theirs.items()))
    return type(ours) is type(theirs) and ours == theirs


lines = st.builds(
    lambda op, key, value: op + key + value,
    st.sampled_from(["", "+", "++", "~", "~+", "-"]),
    st.sampled_from(KEYS),
    st.builds(lambda pieces: "=" + "".join(pieces), st.lists(st.sampled_from(PIECES), max_size=6))
    | st.just(""),
)


@settings(max_examples=1500, deadline=None)
@given(lines)
def test_any_override_reads_as_hydra_reads_it(line: str) -> None:
    assert same(by_us(line), by_hydra(line))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=12))
def test_any_text_as_a_value_reads_as_hydra_reads_it(text: str) -> None:
    assert same(by_us("k=" + text), by_hydra("k=" + text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("null", None),
        ("1e-6", 1e-6),
        ("1_000", 1000),
        ("007", "007"),
        ("2024-01-01", "2024-01-01"),
        ("['a b',\"c\"]", ["a b", "c"]),
        ("{a:{b:[1,2.0]},c:null}", {"a": {"b": [1, 2.0]}, "c": None}),
        ("${data.max_prompt_length}", "${data.max_prompt_length}"),
        ("'1'", "1"),
        ("True", True),
    ],
)
def test_a_value_parses_as_hydra_parses_it(text: str, value: Any) -> None:
    assert same(parse_value(text), value)
