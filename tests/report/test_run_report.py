"""The report of a job: coverage, restarts and their cost, drift, and the faults that it must find."""

import json
import re

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from report_jobs import BATCH, Job

from trinity_compat.cli import cli
from trinity_compat.cli.schema import load
from trinity_compat.report.build import report_of
from trinity_compat.report.drift import by_lag


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path / "job")
    yield made
    made.buffer.close()


def data_of(job):
    return report_of(job.root).as_json()


def killed_twice(job):
    """Steps 1 to 6, checkpoints at 2 and 4: killed after 3, and after 4 was trained and 5 was begun."""
    job.train(1, 2, 3)
    job.killed(checkpoint=2)
    job.train(3, 4)
    job.explore(5)
    job.buffer.claim_groups(BATCH, owner="test", step=5)
    job.killed(checkpoint=4)
    job.train(5, 6)
    job.finish()


def test_a_run_that_was_killed_twice_lost_nothing_and_trained_nothing_twice(job):
    killed_twice(job)
    data = data_of(job)
    found = data["coverage"]
    assert (data["broken"], found["lost"], found["twice"]) == ([], 0, 0)
    assert [(each["step"], each["prompts"], each["answers"]) for each in found["steps"]] == [
        (step, BATCH, 2 * BATCH) for step in range(1, 7)
    ]
    assert found["prompts_trained"] == 24 and found["prompts_repeated"] == 12
    assert found["summary"] == "24 prompts trained in 6 steps: nothing lost, nothing trained twice"


def test_each_restart_has_its_cost(job):
    killed_twice(job)
    first, second = data_of(job)["restarts"]["restarts"]
    # Step 3 was trained at 1030; the restart at 1060 redid it by 1070. Its answers, of version 2, stayed.
    assert (first["from_step"], first["was_at"], first["steps_again"]) == (2, 3, 1)
    assert (first["idle_s"], first["again_s"], first["groups_thrown_away"]) == (30.0, 10.0, 0)
    assert (second["from_step"], second["was_at"], second["steps_again"]) == (4, 4, 0)
    assert (second["idle_s"], second["again_s"], second["groups_thrown_away"]) == (30.0, 0.0, 0)


def test_groups_of_lost_weights_are_counted_as_thrown_away(job):
    job.train(1, 2)
    job.explore(3, version=2)
    job.killed(checkpoint=1)
    found = data_of(job)
    # Step 2 stays: its answers are of version 1. Those of version 2 went with it.
    assert found["restarts"]["restarts"][0]["groups_thrown_away"] == BATCH
    assert found["coverage"]["skipped"]["void_at_a_restart"] == BATCH
    assert found["coverage"]["skipped"]["waiting"] == BATCH


def test_a_start_from_another_run_s_checkpoint_is_not_a_restart(tmp_path):
    from trinity_compat.buffer.stream_position import StreamPosition

    job = Job(tmp_path / "other")
    job.buffer.reconcile(step=5, position=StreamPosition(below=5 * BATCH))
    job.train(6)
    job.finish()
    found = data_of(job)
    assert found["restarts"]["restarts"] == []
    assert (found["coverage"]["lost"], found["coverage"]["faults"]["steps_missing"]) == (0, 0)
    job.buffer.close()


FAULTS = {
    "steps_missing": "UPDATE ledger_entries SET voided_in = 1 WHERE trainer_step = 2",
    "prompts_missing_in_steps": "DELETE FROM ledger_entries WHERE group_id = 5",
    "groups_not_whole": "DELETE FROM experiences WHERE group_id = 5 AND run = 1",
    "prompts_twice": "UPDATE task_groups SET task_no = 0 WHERE id = 5",
    "prompts_not_trained": "UPDATE task_groups SET state = 'void' WHERE id = 5",
    "uses_twice": "INSERT INTO ledger_entries"
    " (history_id, group_id, use_no, trainer_step, claim_token, entered_at)"
    " SELECT history_id, group_id, 2, trainer_step, claim_token, 0 FROM ledger_entries WHERE group_id = 5",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_lost_or_trained_twice_is_named_and_the_command_fails(job, fault):
    job.train(1, 2, 3)
    job.finish()
    job.sql(FAULTS[fault])
    found = data_of(job)
    assert found["broken"] == ["coverage"]
    assert found["coverage"]["faults"][fault] > 0
    done = CliRunner().invoke(cli, ["report", str(job.root)], standalone_mode=False)
    assert done.return_value == 1
    assert "Coverage [broken]" in done.output and fault.replace("_", " ") in done.output


def test_prompts_under_way_are_open_until_the_run_has_finished(job):
    job.train(1)
    job.explore(3)
    claim = job.buffer.claim_groups(BATCH, owner="test", step=2)
    job.buffer.mark_trained(claim, step=2)
    found = data_of(job)["coverage"]
    assert (found["lost"], found["under_way"]) == (0, BATCH)
    job.finish()
    found = data_of(job)["coverage"]
    assert (found["lost"], found["under_way"]) == (BATCH, 0)


def test_a_replay_buffer_s_further_uses_are_not_a_fault(tmp_path):
    from trinity_compat.job.run_spec import ReplaySpec

    job = Job(tmp_path / "replay", replay=ReplaySpec(max_uses=2))
    job.train(1, 2)
    job.sql(FAULTS["uses_twice"])
    found = data_of(job)["coverage"]
    assert (found["uses_repeated"], found["twice"]) == (1, 0)
    job.buffer.close()


def test_lengths_are_counted_for_trained_and_other_answers(job):
    job.train(1, tokens=5)
    job.explore(2, tokens=100)
    found = data_of(job)["coverage"]
    lengths = {
        each["upto_tokens"]: (each["trained"], each["not_trained"]) for each in found["answer_lengths"]
    }
    assert lengths == {8: (BATCH, 0), 16: (BATCH, 0), 128: (0, BATCH), 256: (0, BATCH)}
    assert found["skipped"]["waiting"] == BATCH
    assert found["filters"] == {"filter_overlong_prompts": True}


def test_drift_is_split_into_mismatch_and_staleness(job):
    job.train(1, kl=0.01)
    job.train(2, kl=0.02)
    job.train(3, 4, kl=0.05, version=1)  # lags of 1 and 2
    found = data_of(job)["drift"]
    rows = {each["lag"]: each for each in found["by_lag"]}
    assert rows[0]["kl"] == pytest.approx(0.015) and rows[0]["staleness"] == 0
    assert rows[1]["staleness"] == pytest.approx(0.035) == rows[2]["staleness"]
    assert found["verdict"] == "proven"


def test_without_answers_of_the_newest_weights_the_mismatch_is_said_to_be_unknown(job):
    job.train(2, 3, version=0)
    found = data_of(job)["drift"]
    assert found["verdict"] == "open"
    assert "the mismatch: no step has answers of the newest weights alone" in found["unknown"]


def test_the_text_names_what_ran(job):
    job.train(*range(1, 12))
    done = CliRunner().invoke(cli, ["report", str(job.root)])
    assert done.exit_code == 0, done.output
    for said in (
        "grpo on toy, mode both, sync fixed",
        "prompts per step   4",
        "trainer 2, explorer 2",
        "verl 0.9.1, vllm 0.28.0, torch 2.9",
        "not known: the release of transformers, trinity-compat: the start did not record it",
        "(3 more in --json)",
    ):
        assert said in done.output


def test_a_job_without_steps_is_open_and_a_folder_that_is_no_job_is_refused(job, tmp_path):
    assert data_of(job)["coverage"]["verdict"] == "open"
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(cli, ["report", str(tmp_path / "empty"), "--json"])
    assert "nothing to compare here" in str(done.exception)


def test_the_json_has_the_fields_of_its_schema(job):
    killed_twice(job)
    done = CliRunner().invoke(cli, ["report", str(job.root), "--json"])
    found = Draft202012Validator(load("report")).iter_errors(json.loads(done.output))
    assert [each.message for each in found] == []


def test_each_load_is_compared_with_the_trainer_s_digest(job):
    job.train(1, 2)
    for engine in (0, 1):
        job.loaded(2, engine)
    found = data_of(job)["weights"]
    assert (found["verdict"], found["versions"][2]["loads"]) == ("proven", 2)
    assert found["summary"] == (
        "3 versions published; 2 loads into workers of engines, each with the trainer's digest"
    )
    assert found["unknown"] == ["2 versions at the engines: not loaded, or by an engine without a record"]
    job.loaded(1, 1, received="f" * 32)
    found = data_of(job)
    assert found["broken"] == ["weights"]
    assert found["weights"]["versions"][1]["differ"] == ["explorer 0 engine 1 rank 0"]


def test_engines_that_hold_other_tensors_are_named(job):
    job.train(1)
    job.loaded(1, 0)
    job.loaded(1, 1, held="a" * 16 + "1" * 32)
    assert data_of(job)["weights"]["versions"][1]["differ"] == [
        "explorer 0 engine 0 rank 0",
        "explorer 0 engine 1 rank 0",
    ]


def test_the_html_is_one_file_with_every_row_and_text_stays_text(job, tmp_path):
    job.train(*range(1, 12))
    record = json.loads((job.root / "config" / "launch.json").read_text())
    (job.root / "config" / "launch.json").write_text(json.dumps(record | {"script": "<b>run.sh"}))
    page = tmp_path / "report.html"
    done = CliRunner().invoke(cli, ["report", str(job.root), "--html", str(page)])
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "44 prompts trained in 11 steps" in text
    assert all(f'<td class="n">{step}</td>' in text for step in range(1, 12))
    assert "&lt;b&gt;run.sh" in text and "<b>" not in text
    assert not re.search(r"<script|<link|src=|url\((?!#|data:)|https?://", text)


def test_a_step_of_several_lags_is_split_by_what_the_trainer_logged_of_each():
    step = {"step": 3, "tokens": 40, "least_lag": 0, "most_lag": 1, "lag": 0.5}
    parts = {0: (0.01, 30.0), 1: (0.05, 10.0)}
    logged = {f"rollout_drift/lag_{lag}/kl": kl for lag, (kl, _) in parts.items()}
    logged |= {f"rollout_drift/lag_{lag}/tokens": tokens for lag, (_, tokens) in parts.items()}
    rows = [(each["lag"], each["tokens"], each["staleness"]) for each in by_lag([step], {3: logged})]
    assert rows == [(0, 30, 0.0), (1, 10, pytest.approx(0.04))]
    assert [each["lag"] for each in by_lag([step], {3: {"rollout_corr/kl": 0.02}})] == ["several"]
