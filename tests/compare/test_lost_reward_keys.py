"""A run of stock veRL that lost reward keys of before 0.8, or ignored others, is named."""

import json
import pprint

import pytest
from builders import SCORE, run_of
from click.testing import CliRunner

from trinity_compat.cli.compare import command
from trinity_compat.compare.conclusion import headline
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import Side
from trinity_compat.compare.report import as_dict
from trinity_compat.compare.verdict import compare

NEW = {
    "custom_reward_function": {"path": None, "name": "compute_score"},
    "reward_manager": {"name": "naive"},
    "num_workers": 8,
}
OLD = {
    "custom_reward_function": {"path": "r.py", "name": None},
    "reward_model": {"reward_manager": "dapo", "num_workers": None, "rollout": {"engine_kwargs": None}},
}
KEYS = {"custom_reward_function.path": "r.py", "reward_model.reward_manager": "dapo"}
WITHOUT = (
    "was trained without custom_reward_function.path=r.py, reward_model.reward_manager=dapo, so the sides"
    " have different rewards: stock veRL does not read the reward keys from before 0.8 since 0.9.0."
    " trinity-compat profile NAME --as-overrides --for SCRIPT prints the keys that it does read."
)


def read(*, given=OLD, new=NEW):
    """A configuration as stock veRL logs it."""
    return {"actor_rollout_ref": {}, **given, **({"reward": new} if new else {})}


def run(kind, **meta):
    made = run_of({SCORE: [0.1, 0.2, 0.3]}, kind)
    made.kind, made.meta = kind, meta
    return made


def audit(*keys):
    """What config/audit.json of our job says of a launch that sets these; the others are defaults."""
    found = [{"key": key, "value": value, "source": "x.sh:3"} for key, value in keys]
    defaults = [{"key": "custom_reward_function.name", "value": "compute_score", "source": None}]
    return {"launches": [{"findings": [*found, *defaults]}]}


def comparison(a, b):
    return compare(Side("a", [a]), Side("b", [b]), CompareOptions())


def test_its_own_configuration_tells_and_the_second_line_says_so():
    found = comparison(run("job", verl=read(given={})), run("console", verl=read()))
    assert headline(found)[1] == f"B is a run of stock veRL (console) and {WITHOUT}"
    assert as_dict(found)["lost_by_stock"] == [
        {"side": "B", "runs": ["console"], "keys": KEYS, "known": True}
    ]
    assert headline(comparison(found.b.runs[0], found.a.runs[0]))[1].startswith("A is a run of stock veRL")


@pytest.mark.parametrize(
    "verl",
    [
        read(given={}),  # it set none; or 0.8, which moves them and deletes the old names
        read(new=None),  # 0.7, which reads them
        read(new=NEW | {"custom_reward_function": {"path": "r.py"}, "reward_manager": {"name": "dapo"}}),
    ],
)
def test_a_run_that_lost_nothing_is_told_nothing(verl):
    ours = run("job", verl=read(given={}), audit=audit(*KEYS.items()))
    found = comparison(ours, run("console", verl=verl))
    assert found.lost_by_stock == []
    assert len(headline(found)) == len(headline(comparison(run("job"), run("table"))))


def test_of_a_run_without_a_configuration_our_launch_tells_what_stock_would_lose():
    found = comparison(run("job", audit=audit(*KEYS.items())), run("tensorboard"))
    assert headline(found)[1] == f"If B is a run of stock veRL 0.9, it {WITHOUT}"
    assert as_dict(found)["lost_by_stock"][0]["known"] is False
    assert comparison(run("job", audit=audit()), run("tensorboard")).lost_by_stock == []


def stock(**data):
    return {**read(given={}), "data": data, "trainer": {"use_v1": True}}


def test_a_key_that_stock_ignores_and_we_honour_is_named():
    found = comparison(run("job"), run("console", verl=stock(truncation="right", trust_remote_code=False)))
    line = (
        "B is a run of stock veRL (console), which cuts text prompts on the left, whatever it says:"
        " data.truncation=right has no effect there, and A honours it."
    )
    assert headline(found)[1] == line
    (told,) = as_dict(found)["ignored_by_stock"]
    assert (told["side"], told["key"], told["value"]) == ("B", "data.truncation", "right")


@pytest.mark.parametrize(
    ("ours", "verl"),
    [
        ("job", stock(truncation="left")),  # what stock does anyway
        ("job", stock(truncation="error", trust_remote_code=False)),  # the defaults
        ("job", stock(truncation="right") | {"trainer": {}}),  # an older release, which may read it
        ("console", stock(truncation="right")),  # stock on both sides
    ],
)
def test_a_key_that_makes_no_difference_is_not_named(ours, verl):
    assert comparison(run(ours), run("console", verl=verl)).ignored_by_stock == []


def test_a_console_log_is_enough(tmp_path):
    steps = "".join(f"step:{step} - {SCORE}:0.{step}\n" for step in range(1, 5))
    (tmp_path / "stock.log").write_text(f"{pprint.pformat(read())}\n{steps}")
    (tmp_path / "other.log").write_text(steps)
    sides = [str(tmp_path / name) for name in ("other.log", "stock.log")]
    done = CliRunner().invoke(command, sides, standalone_mode=False)
    assert f"B is a run of stock veRL (stock) and {WITHOUT}" in " ".join(done.stdout.split())
    done = CliRunner().invoke(command, [*sides, "--format", "json"], standalone_mode=False)
    assert json.loads(done.stdout)["lost_by_stock"][0]["keys"] == KEYS
