"""The table of the run's own settings: each row is read, checked, documented and has a consumer."""

import dataclasses
import math
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from toy_plan import planned, planned_where_it_acts, source

import trinity_compat
from trinity_compat.cli.run import command
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import RunSpec, ScoringSpec
from trinity_compat.job.settings import SETTINGS, page
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport

PACKAGE = Path(trinity_compat.__file__).parent
SECTION = "trainer.trainer_config.trinity_compat"
STREAMING = "synchronizer.sync_style=fully_async"
BAD = {
    "choice": ["maybe", 1],
    "flag": ["maybe", 1],
    "whole": ["many", True, 0.5],
    "number": ["many", [], math.inf],
}
ROWS = list(SETTINGS.values())
IN_SPEC = [row for row in ROWS if row.field]


def held(spec, field):
    for name in field.split("."):
        spec = getattr(spec, name)
    return spec


@pytest.mark.parametrize("row", IN_SPEC, ids=lambda row: row.name)
def test_the_plan_reads_the_setting(row):
    made = planned_where_it_acts(row, f"{row.key}={row.example}")
    assert f"{SECTION}.{row.name}" not in made.unread
    assert held(made.spec, row.field) == row.example


@pytest.mark.parametrize("row", IN_SPEC, ids=lambda row: row.name)
def test_a_run_without_the_setting_has_its_default(row):
    declared = {field.name: field.default for field in dataclasses.fields(RunSpec)}
    declared |= {f"scoring.{field.name}": field.default for field in dataclasses.fields(ScoringSpec)}
    if row.name != "reward_failure":  # unset it depends on the reward manager
        assert declared[row.field] == row.default
        assert held(planned(sets=(STREAMING,)).spec, row.field) == row.default


def bad_values():
    for row in SETTINGS.values():
        outside = [row.low if row.above_low else row.low - 1] * (row.kind in ("number", "whole"))
        above = [] if row.below is None else [row.below]
        for value in (*BAD[row.kind], *outside, *above):
            yield pytest.param(row, value, id=f"{row.name}={value}")


@pytest.mark.parametrize(("row", "value"), list(bad_values()))
def test_a_bad_value_is_refused_by_name(row, value):
    with pytest.raises(UserError) as caught:
        row.checked(value)
    assert caught.value.message == f"{row.key} is {value!r}: {row.valid_values}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_run_with_a_bad_value_ends_with_the_line_of_the_file(row, tmp_path, monkeypatch):
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())
    config = yaml.safe_load(yaml.safe_dump(source()[0].config))
    config["trainer"]["trainer_config"]["trinity_compat"][row.name] = "many"
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config))
    lines = file.read_text().splitlines()
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(command, [str(file), "--dry-run", "--device", "cpu"], catch_exceptions=False)
    assert f"{row.key} is 'many': {row.valid_values}" in caught.value.message
    assert f"{row.name}: many" in lines[caught.value.where.line - 1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_module_that_the_row_names_reads_it(row):
    for module in row.acts.split():
        text = (PACKAGE.parent / module.replace(".", "/")).with_suffix(".py").read_text()
        assert (row.field or row.name).rpartition(".")[2] in text


def test_the_page_of_the_settings_has_each_with_its_default_and_what_it_does():
    lines = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}
    assert list(lines) == [row.name for row in ROWS]
    assert all(row.help in lines[row.name] for row in ROWS)
    assert "| unset |" in page()
