"""What the pages of runs say, and what they read it from."""

import dataclasses
import json
import re
import sqlite3
import threading
import time

import pytest
from studio_jobs import STEPS, client_of, make_job, train_step

from trinity_compat.buffer import codec, open_buffer
from trinity_compat.cli.run import command as run_command
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.studio.control import command_of
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.live import PageState
from trinity_compat.studio.logs import clean
from trinity_compat.studio.run_state import spark_points
from trinity_compat.studio.series import SeriesCache
from trinity_compat.studio.summaries import Summaries


def test_every_job_below_the_folder_has_a_row(studio):
    page = studio.get("/").text
    assert 'href="/run/toy/grpo"' in page and 'href="/run/plain"' in page
    assert f"{STEPS}<small> / {STEPS}" in page and "<polyline" in page and "1006" in page


def test_a_folder_that_is_a_job_is_the_one_job(folder):
    assert list(Jobs(folder / "toy" / "grpo").all()) == ["grpo"]


def test_jobs_in_hidden_folders_and_among_node_s_modules_are_not_listed(tmp_path):
    for place in ("mine", ".trash/old", "web/node_modules/odd"):
        make_job(tmp_path / place)
    assert list(Jobs(tmp_path).all()) == ["mine"]


def test_a_job_that_began_after_the_last_scan_has_its_page_at_once(tmp_path):
    studio = client_of(tmp_path)
    assert "<tbody" not in studio.get("/").text
    make_job(tmp_path / "new", steps=1)
    assert studio.get("/run/new").status_code == 200


def test_names_of_no_job_that_are_asked_for_at_the_same_time_cost_one_scan(tmp_path, monkeypatch):
    jobs, scans = Jobs(tmp_path), []
    jobs.all()
    monkeypatch.setattr("trinity_compat.studio.jobs._scan", lambda root: scans.append(root) or iter(()))
    with jobs.scan._lock:
        asking = [threading.Thread(target=jobs.get, args=("gone",)) for _ in range(8)]
        for thread in asking:
            thread.start()
        jobs.scan._began = float("inf")  # a scan that began after all of them asked
    for thread in asking:
        thread.join()
    assert scans == []
    jobs.scan._began = float("-inf")
    assert jobs.get("gone") is None and len(scans) == 1


def test_a_folder_without_jobs_says_how_to_get_one(tmp_path):
    assert "trinity-compat run" in client_of(tmp_path).get("/").text


def test_a_job_that_cannot_be_read_has_a_row_that_says_so(tmp_path):
    (tmp_path / "broken" / "config").mkdir(parents=True)
    (tmp_path / "broken" / "config" / "run.json").write_text("{")
    make_job(tmp_path / "odd")
    (tmp_path / "odd" / "buffer" / "experiences.db").write_text("not a database")
    for name in ("-wal", "-shm"):
        (tmp_path / "odd" / "buffer" / f"experiences.db{name}").unlink(missing_ok=True)
    studio = client_of(tmp_path)
    page = studio.get("/")
    assert page.status_code == 200 and "cannot be read" in page.text and "not an SQLite database" in page.text
    for name in ("broken", "odd"):
        answer = studio.get(f"/run/{name}")
        assert answer.status_code == 200 and "alert" in answer.text
        assert studio.get(f"/metrics/{name}").status_code == 503


def test_series_by_name_with_the_names_of_what_is_not_a_number(studio):
    names = ["critic/score/mean", "actor/entropy", "explorer/critic/score/mean", "nope"]
    found = studio.get("/metrics/plain", params={"name": names}).json()
    assert found["series"]["critic/score/mean"] == [[1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]]
    assert found["series"]["actor/entropy"][1][2] == "NaN"
    assert found["series"]["explorer/critic/score/mean"][1][0] == pytest.approx(1 / 9)
    assert "nope" not in found["series"] and found["last"] == {"trainer": [4, 9], "explorer": [4, 4]}


def test_a_step_s_seconds_with_the_waiting_apart(studio):
    found = studio.get("/seconds/plain").json()
    step, parts = found["sides"]["trainer"][0]
    assert step == 1 and parts["waiting for the buffer"] == 0.5 and parts["gen"] == 0.5
    assert sum(parts.values()) == pytest.approx(4.0)
    assert dict(found["sides"]["explorer"])[1] == {"rollout": 1.0, "waiting": 2.0}
    assert {"waiting for the buffer", "waiting"} <= set(found["waiting"])


def test_the_evaluations_of_a_run(studio):
    page = studio.get("/run/toy/grpo").text
    assert "val-core/toy/acc/mean@1" in page and ">0.3<" in page


def watch_of(root, name="job", **seen):
    return PageState(Jobs(root).get(name), SeriesCache(), 1, dict(seen))


def events(found):
    return {name: data for name, data in found if name != "log"}


def test_what_happens_reaches_an_open_page_once(tmp_path):
    root = make_job(tmp_path / "job", state="running")
    watch = watch_of(tmp_path, trainer=(STEPS, 10), explorer=(STEPS, 4))
    first = events(watch.look())
    assert first["now"]["step"] == STEPS and first["now"]["state"] == "running" and "rows" not in first
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    train_step(buffer, STEPS + 1)
    second = events(watch.look())
    assert [step for step, _ in second["rows"]["rows"]] == [STEPS + 1, STEPS + 1]
    assert second["rows"]["seconds"]["sides"]["trainer"][0][0] == STEPS + 1
    assert second["now"]["step"] == STEPS + 1
    assert events(watch.look()).get("rows") is None


def test_a_resume_has_the_page_made_again(tmp_path):
    root = make_job(tmp_path / "job")
    watch = watch_of(tmp_path)
    watch.look()
    open_buffer(f"sqlite:///{root}/buffer/experiences.db").reconcile(step=2)
    assert "again" in events(watch.look())
    assert watch.store.of(watch.job).last()["trainer"][0] == 2


def test_the_figures_that_an_evaluation_adds_to_the_last_step_arrive(tmp_path):
    root = make_job(tmp_path / "job", state="running", steps=4)
    watch = watch_of(tmp_path)
    watch.look()
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    row = dict(buffer.read_metrics("trainer"))[4]
    buffer.log_metrics("trainer", 4, row | {"val-core/toy/acc/mean@1": 0.25})
    ((step, told),) = events(watch.look())["rows"]["rows"]
    assert step == 4 and told["val-core/toy/acc/mean@1"] == 0.25
    assert "rows" not in events(watch.look())


def test_a_resume_s_first_validation_leaves_its_step_s_curves(tmp_path):
    root = make_job(tmp_path / "job", state="running", steps=2)
    buffer = open_buffer(f"sqlite:///{root}/buffer/experiences.db")
    buffer.reconcile(step=2)
    buffer.log_metrics("trainer", 2, {"val-core/toy/acc/mean@1": 0.75})
    names = ["critic/score/mean", "val-core/toy/acc/mean@1"]
    found = client_of(tmp_path).get("/metrics/job", params={"name": names}).json()["series"]
    assert found == {names[0]: [[1, 2], [0.1, 0.2]], names[1]: [[2], [0.75]]}


def test_a_look_reads_only_what_is_new(tmp_path, monkeypatch):
    root = make_job(tmp_path / "job", state="running")
    watch = watch_of(tmp_path)
    watch.look()
    read = []
    monkeypatch.setattr(codec, "numbers", lambda text: read.append(text) or json.loads(text))
    monkeypatch.setattr(RunSpec, "of_text", lambda *_: pytest.fail("config/run.json has not changed"))
    train_step(open_buffer(f"sqlite:///{root}/buffer/experiences.db"), STEPS + 1)
    assert events(watch.look())["now"]["step"] == STEPS + 1
    assert len(read) == 4  # of each side the last step that was known, and the new one


def test_a_database_that_goes_away_is_told_and_does_not_end_the_page(tmp_path):
    root = make_job(tmp_path / "job")
    watch = watch_of(tmp_path)
    watch.look()
    (root / "buffer").rename(root / "gone")
    assert "problem" in events(watch.look())
    (root / "gone").rename(root / "buffer")
    assert "now" in events(watch.look())


def test_the_logs_are_followed_line_by_line(tmp_path):
    root = make_job(tmp_path / "job")
    watch = watch_of(tmp_path)
    logs = dict(data for kind, data in watch.look() if kind == "log")
    assert logs["trainer"].startswith("loading 100%\nred\n") and "***" in logs["trainer"]
    with (root / "log" / "trainer.log").open("a") as file:
        file.write("whole\nhalf")
        file.flush()
        assert ("log", ["trainer", "whole\n"]) in watch.look()
        file.write(" a line\n")
        file.flush()
        assert ("log", ["trainer", "half a line\n"]) in watch.look()


def test_a_long_log_begins_with_a_whole_line_near_its_end(tmp_path):
    root = make_job(tmp_path / "job")
    (root / "log" / "trainer.log").write_text("".join(f"line {n}\n" for n in range(50_000)))
    found = dict(data for kind, data in watch_of(tmp_path).look() if kind == "log")["trainer"]
    lines = found.splitlines()
    assert lines[-1] == "line 49999" and len(found) < 70_000
    assert lines[0] == f"line {50_000 - len(lines)}"


def test_control_sequences_are_taken_out():
    assert clean("\x1b[1;31mred\x1b[0m \x1b]0;title\x07text\x00\r\n") == "red text\n"


def test_the_job_s_database_is_never_written(tmp_path):
    root = make_job(tmp_path / "job")
    database = root / "buffer" / "experiences.db"
    before = database.read_bytes()
    studio = client_of(tmp_path)
    for page in ("/", "/run/job", "/configuration/job", "/metrics/job?name=critic/score/mean"):
        assert studio.get(page).status_code == 200
    assert database.read_bytes() == before
    found = Jobs(tmp_path).get("job").database()
    with pytest.raises(PermissionError):
        found.run(lambda conn: conn.exec_driver_sql("DELETE FROM metrics"))
    with pytest.raises(Exception, match="readonly"):
        found.run(lambda conn: conn.exec_driver_sql("DELETE FROM metrics"), write=False)


def test_no_read_holds_back_the_checkpoint_of_a_run_s_wal(tmp_path):
    root = make_job(tmp_path / "job")
    studio = client_of(tmp_path)
    assert studio.get("/run/job").status_code == 200
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    raw.execute("INSERT INTO job_state VALUES ('x', '1')")
    raw.commit()
    busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0


def test_a_job_that_is_no_longer_heard_of_is_lost(tmp_path):
    root = make_job(tmp_path / "job", state="running")
    raw = sqlite3.connect(root / "buffer" / "experiences.db")
    raw.execute("UPDATE participants SET beat_at = ?", (time.time() - 100,))
    raw.commit()
    assert "pill lost" in client_of(tmp_path).get("/run/job").text


def test_the_configuration_says_where_a_value_was_set(studio):
    page = studio.get("/configuration/plain").text.replace("<wbr>", "")
    assert "run.sh:7" in page and "algorithm.optimizer.lr" in page and "approximated" in page


def test_the_configuration_counts_and_filters_by_status(tmp_path):
    root = make_job(tmp_path / "job", evil=False)
    keys = {"a": "mapped", "b": "approximated", "c": "mapped", "d": "<of no release>"}
    found = [{"key": f"key.{key}", "status": status} for key, status in keys.items()]
    (root / "config" / "audit.json").write_text(json.dumps({"launches": [{"findings": found}]}))
    studio = client_of(tmp_path)
    whole = studio.get("/configuration/job").text
    counts = re.findall(r'href="\?(?:status=([^"]*))?".*?<b>(\d+)</b>', whole)
    assert counts == [("", "4"), ("mapped", "2"), ("approximated", "1"), ("%3Cof%20no%20release%3E", "1")]
    mapped = studio.get("/configuration/job?status=mapped").text.replace("<wbr>", "")
    assert re.findall(r"key\.\w", mapped) == ["key.a", "key.c"]
    assert "same meaning, other name" in mapped and "of 4 keys" in mapped
    assert re.findall(r"key\.\w", studio.get("/configuration/job?status=nothing").text) == []


def test_a_sparkline_of_one_point_or_of_equal_ones():
    assert spark_points([(1, 0.5)]) == ""
    assert spark_points([(1, 0.5), (2, 0.5)]) == "2.0,14.0 118.0,14.0"
    assert spark_points([(1, 0.5), (1, 0.7)]) == "2.0,25.0 2.0,3.0"
    assert spark_points([(1, 0.5), (2, float("nan")), (2, 0.5)]) == spark_points([(1, 0.5), (2, 0.5)])


def test_a_reward_that_is_no_number_is_shown_as_such(tmp_path):
    buffer = open_buffer(f"sqlite:///{make_job(tmp_path / 'job')}/buffer/experiences.db")
    buffer.log_metrics("trainer", STEPS, {"critic/score/mean": float("nan"), "timing_s/step": 1.0})
    studio = client_of(tmp_path)
    assert "<b>NaN</b>" in studio.get("/").text
    assert '<b id="t-reward">NaN</b>' in studio.get("/run/job").text


def test_a_row_has_the_newest_figures_and_the_rewards_of_its_steps(tmp_path):
    make_job(tmp_path / "job")
    found = Summaries().of(Jobs(tmp_path).get("job"))
    assert [(step, round(value, 6)) for step, value in found.spark] == [
        (step, round(step / 10, 6)) for step in range(1, STEPS + 1)
    ]
    assert (found.name, found.state, found.step, found.total) == ("job", "done", STEPS, STEPS)
    assert found.reward == pytest.approx(STEPS / 10) and not found.problem


def test_every_recorded_option_is_one_that_run_takes_again(tmp_path):
    given = {
        "profiles": ("cpu",),
        "sets": ("buffer.batch_size=8",),
        "mains": {"my.main": "verl.trainer.main_ppo"},
        "restarts": 2,
        "explorer": 0,
        "dry_run": False,
    }
    fields = {field.name: field.default for field in dataclasses.fields(RunOptions)}
    told = {name: "x" if default is None else default for name, default in fields.items()}
    told |= {name: value for name, value in given.items() if name in fields}
    told = {name: True if value is False and name != "dry_run" else value for name, value in told.items()}
    record = {"script": "run.sh", "options": json.loads(json.dumps(told, default=dict))}
    words = command_of(record, tmp_path)[5:]
    options = {spelling for parameter in run_command.params for spelling in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert words[words.index("--main") + 1] == "my.main=verl.trainer.main_ppo"
    plain = {"script": "run.sh", "options": json.loads(json.dumps(dataclasses.asdict(RunOptions())))}
    assert "--main" not in command_of(plain, tmp_path)
