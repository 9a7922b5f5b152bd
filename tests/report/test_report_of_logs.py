"""The report of a stock run's log, and a verdict against a baseline."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from trinity_compat.cli import cli
from trinity_compat.cli.schema import load
from trinity_compat.common.errors import UserError
from trinity_compat.report.build import report_of

STOCK = Path(__file__).parents[1] / "compare" / "recorded" / "stock.log"


def rows(path, steps, *, level=0.5, **figures):
    made = [
        {"step": n, "data": {"critic/score/mean": level + n / 1000 + n % 3 / 50, **figures}} for n in steps
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in made))
    return path


def reported(*words):
    done = CliRunner().invoke(cli, ["report", *map(str, words), "--json"], standalone_mode=False)
    assert done.exception is None and done.return_value == 0, done.output
    data = json.loads(done.output)
    assert [each.message for each in Draft202012Validator(load("report")).iter_errors(data)] == []
    return data


def test_a_stock_log_s_report_says_what_it_has_and_what_no_stock_log_has():
    data = reported(STOCK)
    assert data["ran"]["read_from"] == "console"
    assert data["coverage"]["steps_logged"] > 0
    for name, what in (
        ("ran", "releases of veRL"),
        ("coverage", "which prompts were trained"),
        ("weights", "whether its engines had the trainer's weights"),
        ("restarts", "restarts that wrote another log"),
    ):
        assert data[name]["verdict"] == "open"
        assert any(what in each for each in data[name]["unknown"]), data[name]


def test_steps_that_are_missing_or_were_logged_again_are_counted(tmp_path):
    data = reported(rows(tmp_path / "a.jsonl", [1, 2, 3, 4, 3, 4, 5, 8]))
    assert (data["coverage"]["steps_logged"], data["coverage"]["steps_without_a_line"]) == (6, 2)
    assert data["restarts"]["restarts"] == [{"was_at": 4, "from_step": 3, "steps_again": 2}]


def test_drift_is_what_the_log_has_of_it(tmp_path):
    with_kl = rows(tmp_path / "a.jsonl", range(1, 5), **{"rollout_corr/kl": 0.02})
    assert reported(with_kl)["drift"]["kl"] == pytest.approx(0.02)
    (why,) = reported(rows(tmp_path / "b.jsonl", range(1, 5)))["drift"]["unknown"]
    assert "calculate_log_probs=True" in why


@pytest.mark.parametrize(("level", "first"), [(0.5, "The same"), (0.9, "Not enough data to say")])
def test_a_baseline_s_verdict_is_compare_s(tmp_path, level, first):
    ours = rows(tmp_path / "ours.jsonl", range(1, 41), level=level)
    data = reported(ours, "--baseline", rows(tmp_path / "base.jsonl", range(1, 41)))
    done = CliRunner().invoke(cli, ["compare", str(tmp_path / "base.jsonl"), str(ours), "--format", "json"])
    assert data["baseline"]["summary"] == json.loads(done.stdout)["conclusion"][0]
    assert data["baseline"]["summary"].startswith(first)
    assert data["baseline"]["verdict"] == ("proven" if level == 0.5 else "open")
    assert data["baseline"]["metrics"][0]["metric"] == "critic/score/mean"


def test_several_runs_or_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to compare here"):
        report_of(tmp_path)
    for name in "ab":
        rows(tmp_path / f"{name}.jsonl", range(1, 5))
    with pytest.raises(UserError, match="2 runs are here"):
        report_of(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        report_of(tmp_path / "nowhere")
