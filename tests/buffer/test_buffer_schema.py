"""The schema: reading it with SQLAlchemy, opening what isn't ours, plans at size."""

from __future__ import annotations

import re
import sqlite3

import pytest
import sqlalchemy as sa
from buffer_samples import group, groups
from sqlalchemy.orm import sessionmaker

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.database import Database
from trinity_compat.buffer.schema import Base, ExperienceModel, GroupModel
from trinity_compat.common.errors import UserError


def test_the_snippet_of_trinitys_faq_works_with_the_import_changed(buffer, url):
    buffer.put_groups(groups(3))
    engine = sa.create_engine(url)
    session = sessionmaker(bind=engine)
    sess = session()

    MAX_EXPERIENCES = 4
    experiences = sess.query(ExperienceModel).limit(MAX_EXPERIENCES).all()

    exp_list = []
    for exp in experiences:
        exp_list.append(ExperienceModel.to_experience(exp))

    shown = [f"{exp.prompt_text=} {exp.response_text=}" for exp in exp_list]
    assert shown[3] == "exp.prompt_text='prompt 1' exp.response_text='response 1.1'"
    assert exp_list[0].logprobs.tolist() == group(0).experiences[0].logprobs.tolist()
    sess.close()
    engine.dispose()


def test_groups_lead_to_their_experiences(buffer, url):
    buffer.put_groups(groups(2))
    engine = sa.create_engine(url)
    with sessionmaker(bind=engine)() as session:
        second = session.query(GroupModel).filter_by(task_no=1).one()
        assert [e.response_text for e in second.experiences] == ["response 1.0", "response 1.1"]
        assert second.task["index"] == 1
    engine.dispose()


def test_models_and_migrations_have_the_same_columns(buffer, url):
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    for table in Base.metadata.tables.values():
        there = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
        assert list(there) == [column.name for column in table.columns], table.name
        expected = {c.name: bool(c.nullable) for c in table.columns if not c.primary_key}
        assert {name: there[name] for name in expected} == expected, table.name
    engine.dispose()


def test_answers_are_queryable_by_sql(buffer, sql):
    buffer.put_groups(groups(2))
    assert sql("SELECT count(*) FROM experiences WHERE response_text LIKE '%1.1' AND reward = 1") == [(1,)]


# -- opening ------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(buffer, url):
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO schema_migrations (number, name) VALUES (99, 'later')")
    engine.dispose()
    with pytest.raises(UserError, match="has schema 99; this trinity-compat knows up to") as caught:
        open_buffer(url)
    assert "newer" in caught.value.hint


def test_another_programs_database_is_refused(url):
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(UserError, match="another program's tables \\(invoices\\)"):
        open_buffer(url)
    assert sa.inspect(engine).get_table_names() == ["invoices"]
    engine.dispose()


def test_an_empty_database_is_no_buffer(url):
    if url.startswith("sqlite"):
        sqlite3.connect(url.removeprefix("sqlite:///")).close()
    with pytest.raises(UserError, match="no buffer"):
        open_buffer(url, create=False)


def test_a_missing_file_is_named_and_not_made(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(UserError, match=f"no buffer at {path}"):
        open_buffer(f"sqlite:///{path}", create=False)
    assert not path.exists()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n")
    with pytest.raises(UserError, match="is not an SQLite database"):
        open_buffer(f"sqlite:///{path}")
    assert path.read_text().startswith("these are my notes")


@pytest.mark.parametrize(
    ("bad", "message"),
    [("experiences.db", "is not a database URL"), ("mysql://h/d", "mysql is not supported")],
)
def test_other_urls_are_refused_with_what_to_write(bad, message):
    with pytest.raises(UserError, match=message) as caught:
        open_buffer(bad)
    assert "sqlite:///" in caught.value.hint


# -- plans at size ------------------------------------------------------------------------------

FILL = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000)",
    "postgresql": "WITH n(i) AS (SELECT generate_series(1, 50000))",
}


GROUPS = """INSERT INTO task_groups (key, kind, task_no, task, explorer_step, priority, state, size,
    min_model_version, max_model_version, history_id, use_count, last_used_at, written_at)
{rows} SELECT 'k' || i, 'train', i, '{{}}', 1, 0, CASE WHEN i % 10 = 0 THEN 'ready' ELSE 'trained' END,
    0, 0, 0, 1, 1, 0, 0 FROM n"""
CLAIMS = """INSERT INTO claims (request, owner, step, history_id, state, lease_until,
    claimed_at, trained_step)
{rows} SELECT 'r' || i, 'o', i, 1, 'trained', i, i, i FROM n"""


@pytest.fixture
def full(buffer, url):
    """50,000 groups, every tenth ready, the others trained by as many claims."""
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        for statement in (GROUPS, CLAIMS):
            conn.execute(sa.text(statement.format(rows=FILL[engine.dialect.name])))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("ANALYZE")
    yield engine
    engine.dispose()


PLANNED = {
    "TAKE_READY": ("next_ready", {"kind": "train", "count": 32, "token": 1}),
    "DROP_STALE": ("oldest_ready", {"kind": "train", "min_version": 0}),
    "CLAIMED_GROUPS": ("by_claim", {"token": 1}),
    "LAPSED": ("open_claims", {"now": 1.0}),
    "FIRST_UNTRAINED": ("by_claim", {"first": 0}),
    "TRAINED_BEYOND": ("live_task", {"below": 49_900}),
    "LIVE_TASKS": ("live_task", {"kind": "train", "first": 49_000, "upto": 49_500}),
}


@pytest.mark.parametrize("name", PLANNED)
def test_hot_queries_use_their_index_at_size(full, name):
    from trinity_compat.buffer import queries

    index, bind = PLANNED[name]
    prefix = "EXPLAIN QUERY PLAN " if full.dialect.name == "sqlite" else "EXPLAIN "
    statement = getattr(queries, name).format(skip_locked=queries.skip_locked(full.dialect.name))
    with full.connect() as conn:
        plan = "\n".join(str(row) for row in conn.execute(sa.text(prefix + statement), bind))
    assert index in plan, plan
    assert not re.search("SCAN (task_groups|claims)(?! USING)|Seq Scan on (task_groups|claims)", plan), plan


def test_each_migration_is_entered_by_its_name(buffer, sql):
    entered = sql("SELECT number, name FROM schema_migrations ORDER BY number")
    assert entered == [
        (1, "first schema"),
        (2, "pruned groups"),
        (3, "leases of tasks"),
        (4, "images of tasks"),
        (5, "retention"),
        (6, "batches of steps"),
        (7, "no batches of steps"),
        (8, "arrays of teachers"),
        (9, "dropped arrays"),
        (10, "proof of weights"),
        (11, "scores of tokens"),
    ]


@pytest.mark.postgres
def test_a_connection_that_is_dropped_in_silence_is_noticed(server):
    url = server.clean_database()
    for asked, idle in ((url, "30"), (f"{url}{'&' if '?' in url else '?'}keepalives_idle=7", "7")):
        db = Database(asked)
        with db.engine.connect() as conn:
            given = conn.connection.driver_connection.info.get_parameters()
        assert (given["keepalives"], given["keepalives_idle"]) == ("1", idle)
        assert given["tcp_user_timeout"] == "60000"
        db.close()
