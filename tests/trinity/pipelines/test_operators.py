"""Our operators give what the real trinity-rft's gave: operators.json."""

import json
from pathlib import Path

import pytest
from operator_cases import CASES, experiences, told

from trinity_compat.trinity.pipelines.operators import OPERATORS
from trinity_compat.trinity.workflows.trinity_stubs.experience import EID, Experience

RECORDED = json.loads((Path(__file__).parent / "operators.json").read_text())


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_an_operator_does_what_upstreams_does(number):
    name, arguments, rows = CASES[number]
    made = json.loads(
        json.dumps(told(*OPERATORS[name](**arguments).process(experiences(rows, Experience, EID))))
    )
    assert made["kept"] == RECORDED[number]["kept"]
    assert leaves(made["metrics"]) == pytest.approx(leaves(RECORDED[number]["metrics"]), abs=1e-12)


def leaves(value, path=""):
    if isinstance(value, float):
        return {path: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, part in parts for name, leaf in leaves(part, f"{path}/{key}").items()}


def test_every_operator_of_ours_is_held_to_upstreams():
    assert {name for name, _, _ in CASES} == set(OPERATORS)


def test_an_answer_whose_reward_function_failed_has_no_valid_reward():
    """The run stores 0 for it; trinity-rft would have none."""
    rows = [("a", 0, 0.0, {"reward/failed": 1.0}, {}, False), ("a", 1, 0.0, {}, {}, False)]
    kept, metrics = OPERATORS["invalid_reward_filter"]().process(experiences(rows, Experience, EID))
    assert [each.eid.run for each in kept] == [1]
    assert metrics == {"filtered_count": 1}
