"""``trinity-compat buffer``: stats, show, export, prune."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from buffer_samples import group, groups
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from trinity_compat.buffer import migrations, open_buffer, queries
from trinity_compat.cli.buffer import command
from trinity_compat.cli.schema import load
from trinity_compat.common.errors import UserError
from trinity_compat.job.run_spec import ReplaySpec


def invoke(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def trained(buffer):
    """Tasks 0 to 2 trained in steps 1 to 3, task 3 ready, task 4 stale; one evaluation of step 1."""
    buffer.put_groups([group(n, version=n) for n in range(3)])
    for step in (1, 2, 3):
        buffer.mark_trained(buffer.claim_groups(1, owner="t", step=step), step=step)
    buffer.put_groups([group(3, version=2), group(4, version=0)])
    assert buffer.claim_groups(9, owner="t", step=4, min_version=1) is None
    asked = buffer.request_eval(step=1, version=1)
    buffer.put_groups([group(0, key="e", kind=f"eval:{asked.request_id}")])
    buffer.finish_eval(asked)
    return buffer


def test_stats_count_groups_uses_and_lag(trained, url):
    found = json.loads(invoke("stats", url, "--json"))
    assert found["states"] == {"eval:1": {"ready": 1}, "train": {"ready": 1, "stale": 1, "trained": 3}}
    assert (found["ledger_uses"], found["ledger_steps"], found["last_step"]) == (6, 3, 3)
    assert found["lag"] == {"0": 6}
    assert found["used_twice"] == 0
    assert found["mean_reward"] == 0.5
    assert found["nbytes"] > 0


@pytest.mark.parametrize(
    ("words", "name"), [("show --json -n 9", "buffer-show"), ("export", "buffer-export")]
)
def test_a_line_has_the_fields_of_its_schema(trained, url, words, name):
    command, *options = words.split()
    lines = [json.loads(line) for line in invoke(command, url, *options).splitlines()]
    told = [error.message for line in lines for error in Draft202012Validator(load(name)).iter_errors(line)]
    assert lines and told == []


def test_stats_reads_as_text(trained, url):
    shown = invoke("stats", url)
    assert "ledger             6 uses in 3 steps, last 3" in shown
    assert "groups train       1 ready, 1 stale, 3 trained" in shown


def test_show_gives_the_newest_first(trained, url):
    shown = invoke("show", url, "-n", "1", "--state", "trained")
    assert shown.splitlines() == [
        "task 2  trained  version 2–2  key task 2",
        "  prompt   'prompt 2'",
        "     0.000 'response 2.0'",
        "     1.000 'response 2.1'",
    ]
    assert json.loads(invoke("show", url, "-n", "1", "--json"))["task_no"] == 4


def test_export_writes_every_experience(trained, url, tmp_path):
    target = tmp_path / "out.jsonl"
    invoke("export", url, "-o", str(target))
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["experience_id"] for line in lines] == list(range(1, 13))
    expected = group(0).experiences[1]
    assert lines[1]["response_ids"] == expected.response_ids.tolist()
    assert lines[1]["logprobs"] == expected.logprobs.tolist()


@pytest.mark.parametrize("named", ["job", "job/buffer/experiences.db"])
@pytest.mark.parametrize("output", ["job/buffer/experiences.db", "job/link.db"])
def test_export_overwrites_no_store(tmp_path, monkeypatch, named, output):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job" / "buffer").mkdir(parents=True)
    store = tmp_path / "job" / "buffer" / "experiences.db"
    open_buffer(f"sqlite:///{store}").close()
    (tmp_path / "job" / "link.db").symlink_to("buffer/experiences.db")
    before = store.read_bytes()
    result = CliRunner().invoke(command, ["export", named, "-o", output])
    assert isinstance(result.exception, UserError)
    assert "would be overwritten" in str(result.exception)
    assert store.read_bytes() == before


def test_export_overwrites_no_file_of_the_job(tmp_path):
    (tmp_path / "buffer").mkdir()
    open_buffer(f"sqlite:///{tmp_path}/buffer/experiences.db").close()
    (tmp_path / "run.log").write_text("lines")
    result = CliRunner().invoke(command, ["export", str(tmp_path), "-o", str(tmp_path / "run.log")])
    assert "a file of the job" in str(result.exception)
    assert (tmp_path / "run.log").read_text() == "lines"


def test_prune_empties_what_is_old_and_keeps_the_ledger(trained, url, sql):
    before = sql("SELECT * FROM ledger ORDER BY 1")
    assert invoke("prune", url, "--keep-steps", "1") == "pruned 8 experiences\n"  # tasks 0, 1, stale 4, eval
    assert invoke("prune", url, "--keep-steps", "1") == "pruned 0 experiences\n"
    assert sql("SELECT * FROM ledger ORDER BY 1") == before
    assert sql("SELECT count(*), sum(reward) FROM experiences") == [(12, 6.0)]
    assert len(invoke("export", url).splitlines()) == 4
    assert "response 3.1" in invoke("show", url)
    (pruned, *_) = trained.groups("train")
    assert pruned.experiences[0].response_text == ""


def test_a_resume_from_before_the_pruned_steps_has_their_tasks_made_again(trained, url):
    invoke("prune", url, "--keep-steps", "0")
    done = trained.reconcile(step=2)
    assert (done.ready_again, done.voided, done.kept) == (1, 1, 2)
    assert trained.missing_tasks(upto=5, limit=9) == [2, 4]


def test_a_pruned_group_is_not_used_again(trained, url):
    invoke("prune", url, "--keep-steps", "0")
    trained.mark_trained(trained.claim_groups(1, owner="t", step=4), step=4)
    again = ReplaySpec(max_uses=2)
    assert [g.task_no for g in trained.claim_groups(1, owner="t", step=5, replay=again).groups] == [3]


def test_a_job_directory_stands_for_its_database(tmp_path):
    buffer = open_buffer(f"sqlite:///{tmp_path}/buffer/experiences.db")
    buffer.put_groups(groups(1))
    buffer.close()
    for source in (tmp_path, tmp_path / "buffer" / "experiences.db"):
        assert json.loads(invoke("stats", str(source), "--json"))["experiences"] == 2


def test_a_job_without_a_buffer_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="no buffer at"):
        CliRunner().invoke(command, ["stats", str(tmp_path)], catch_exceptions=False)


# As the releases up to schema 7 wrote an experience.
PUT_BEFORE_TEACHERS = queries.PUT_EXPERIENCES.replace(",\n    teacher_ids, teacher_logprobs", "").replace(
    ",\n    :teacher_ids, :teacher_logprobs", ""
)


def test_an_older_schema_is_upgraded_and_keeps_its_rows(url, monkeypatch):
    with monkeypatch.context() as old:
        old.setattr("trinity_compat.buffer.database.MIGRATIONS", migrations.MIGRATIONS[:1])
        old.setattr("trinity_compat.buffer.database.LATEST", 1)
        old.setattr(queries, "PUT_EXPERIENCES", PUT_BEFORE_TEACHERS)
        buffer = open_buffer(url)
        buffer.put_groups(groups(2))
        buffer.close()
    buffer = open_buffer(url)
    assert len(buffer.groups("train")) == 2
    (claimed,) = buffer.claim_groups(1, owner="t", step=1).groups
    assert claimed.experiences[0].teacher_logprobs is None
    buffer.put_groups(groups(1, first=2))
    assert len(buffer.groups("train")) == 3
    buffer.close()
    engine = sa.create_engine(url)
    assert "pruned_at" in {column["name"] for column in sa.inspect(engine).get_columns("task_groups")}
    engine.dispose()


def test_show_refuses_a_kind_a_state_and_a_number_that_give_nothing(trained, url):
    with pytest.raises(UserError, match=r"no groups of kind 'eval'") as caught:
        invoke("show", url, "--kind", "eval")
    assert caught.value.hint == "there are eval:1, train"
    assert invoke("show", url, "--kind", "train", "--state", "void") == ""  # no such group is not an error
    for words in (("--state", "done"), ("-n", "-3"), ("-n", "0")):
        assert CliRunner().invoke(command, ["show", url, *words]).exit_code == 2
