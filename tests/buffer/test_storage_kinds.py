"""What a YAML's storage does, whatever kind it names and wherever it lies: experiences (queue, sql, file) in
the run's database, tasks (file, sql) where they are. One suite for every kind and backend."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml
from buffer_samples import BACKENDS, group, groups
from trinity_files import LEAST, TASKSET, merged

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.data.tasksets import load_rows
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, from_yaml

KINDS = ("queue", "sql", "file")
ROWS = [{"question": f"1 + {number}", "answer": str(1 + number)} for number in range(3)]


def plan_of(tmp_path, change):
    base = {"project": "p", "name": "n", "checkpoint_root_dir": str(tmp_path / "jobs")}
    train = {"algorithm": {"algorithm_type": "grpo", "repeat_times": 2}, "cluster": {"gpu_per_node": 3}}
    sync = {"synchronizer": {"sync_style": "trainer_driven"}}
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(merged(merged(LEAST, {**base, **train, **sync}), change)))
    return plan_source(from_yaml(file), RunOptions(device="cuda"), cwd=tmp_path)


# -- experiences --------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def backup(kind, url, tmp_path):
    """The path that the YAML names: the database on PostgreSQL; else where upstream would write its own."""
    own = f"sqlite:///{tmp_path}/backup.db" if kind == "sql" else f"{tmp_path}/backup.jsonl"
    return url if url.startswith("postgresql") else own


@pytest.fixture
def plan(kind, backup, tmp_path):
    """Return a function: a replay buffer's fields, the storage's other fields → the run's plan."""

    def made(replay=None, **fields):
        storage = {"storage_type": kind, "path": backup, **fields}
        if replay is not None:
            storage["replay_buffer"] = {"enable": True, **replay}
        return plan_of(tmp_path, {"buffer": {"trainer_input": {"experience_buffer": storage}}})

    return made


@pytest.fixture
def store(plan, clock):
    """Return a function: as ``plan``, → the run's buffer, and what it is claimed by."""
    opened = []

    def made(replay=None, **fields):
        spec = plan(replay, **fields).spec
        if spec.database_url.startswith("sqlite"):
            Path(sa.make_url(spec.database_url).database).parent.mkdir(parents=True, exist_ok=True)
        opened.append(open_buffer(spec.database_url, clock=clock))
        return opened[-1], {"replay": spec.replay} if spec.replay else {}

    yield made
    for each in opened:
        each.close()


def tasks(claim):
    return None if claim is None else [each.task_no for each in claim.groups]


def train(buffer, count, step, **how):
    claim = buffer.claim_groups(count, owner="t", step=step, **how)
    buffer.mark_trained(claim, step=step)
    return tasks(claim)


def test_it_is_one_durable_database_and_says_so(plan, kind, backup, url):
    made = plan(capacity=3, max_read_timeout=5)
    own = f"sqlite:///{made.job.root}/buffer/experiences.db"
    assert made.spec.database_url == (url if url.startswith("postgresql") else own)

    def told(field):
        return [note for note in made.notes if f"{field}=" in note and "x.yaml:" in note]

    (line,) = told(".capacity")
    assert "has no capacity" in line
    (line,) = told(".max_read_timeout")
    assert "waits for a whole batch as long as an explorer lives" in line
    kinds = [line for line in told(".storage_type") if "a durable queue, whatever kind is named" in line]
    assert len(kinds) == (kind != "queue")  # trinity-rft's default
    assert len([note for note in made.notes if f"path={backup}: " in note]) == (backup != url)


def test_what_is_put_outlives_whoever_put_it_beyond_any_capacity(store):
    """It is the backup that upstream's queue writes beside itself."""
    buffer, _ = store(capacity=2)
    buffer.put_groups(groups(5))
    assert train(buffer, 2, 1) == [0, 1]
    again, _ = store(capacity=2)
    assert [each.task_no for each in again.groups("train")] == [0, 1, 2, 3, 4]
    assert {each.response_text for _, each in again.experiences()} == {
        f"response {task}.{run}" for task in range(5) for run in range(2)
    }
    assert train(again, 3, 2) == [2, 3, 4]


def test_without_replay_each_group_is_trained_once_in_task_order(store, clock):
    buffer, how = store()
    assert not how
    buffer.put_groups([group(2, version=0), group(0, version=2), group(1, version=1)])
    assert [train(buffer, 1, step) for step in (1, 2, 3)] == [[0], [1], [2]]
    clock.seconds += 1e6
    assert buffer.claim_groups(1, owner="t", step=4) is None


def test_a_reader_waits_for_a_whole_batch_however_long(store, clock):
    """Upstream ends the run after max_read_timeout, with what there is."""
    buffer, _ = store(max_read_timeout=5)
    buffer.put_groups(groups(3))
    assert buffer.claim_groups(4, owner="t", step=1) is None
    clock.seconds += 3600
    assert buffer.claim_groups(4, owner="t", step=1) is None
    buffer.put_groups([group(3)])
    assert train(buffer, 4, 1) == [0, 1, 2, 3]


def test_trained_groups_come_again_after_their_cooldown_as_often_as_is_asked(store, clock):
    limited = {"priority_fn": "decay_limit_randomization", "priority_fn_args": {"use_count_limit": 2}}
    buffer, how = store({"reuse_cooldown_time": 30, **limited})
    buffer.put_groups(groups(2))
    assert train(buffer, 2, 1, **how) == [0, 1]
    clock.seconds += 29
    assert buffer.claim_groups(1, owner="t", step=2, **how) is None
    clock.seconds += 1
    buffer.put_groups([group(9)])
    assert train(buffer, 2, 2, **how) == [9, 0]  # of one version: the fresh one first
    assert train(buffer, 1, 3, **how) == [1]
    clock.seconds += 30
    assert train(buffer, 1, 4, **how) == [9]
    clock.seconds += 99
    assert buffer.claim_groups(1, owner="t", step=5, **how) is None


@pytest.mark.parametrize(
    ("decay", "order"),
    [
        (2.0, [4, 5, 3, 2, 4, 5]),  # after a use 4 has 2, as task 2 has, which was never used
        (0.5, [4, 5, 4, 5, 3, 4]),
        (5.0, [4, 5, 3, 2, 0, 1]),
        (0.0, [4, 5, 4, 5, 4, 5]),
        (-1.0, [4, 4, 4, 4, 4, 4]),
    ],
)
def test_the_highest_of_version_less_decay_per_use_comes_first(store, decay, order):
    buffer, how = store({"reuse_cooldown_time": 0, "priority_fn_args": {"decay": decay}})
    for number, version in enumerate((0, 0, 2, 3, 4, 4)):
        buffer.put_groups([group(number, version=version)])
    assert [train(buffer, 1, step, **how)[0] for step in range(1, 7)] == order


def test_without_reuse_the_newest_weights_come_first_and_each_group_once(store, clock):
    buffer, how = store({})
    buffer.put_groups([group(0, version=1), group(1, version=3), group(2, version=3), group(3, version=2)])
    assert buffer.claim_groups(5, owner="t", step=1, **how) is None
    assert [train(buffer, 1, step, **how)[0] for step in range(1, 5)] == [1, 2, 3, 0]
    clock.seconds += 1e6
    assert buffer.claim_groups(1, owner="t", step=5, **how) is None


def test_sigma_draws_the_order_of_an_explorer_s_steps(store):
    """Groups of one version, eight to a step."""
    noisy = {"priority_fn": "decay_limit_randomization", "priority_fn_args": {"sigma": 1.0}}
    buffer, how = store(noisy)
    made = [dataclasses.replace(group(number, runs=1), explorer_step=number // 8) for number in range(64)]
    buffer.put_groups(made)

    def order(replay):
        claims = [buffer.claim_groups(8, owner="t", step=1, replay=replay) for _ in range(8)]
        for claim in claims:
            buffer.release(claim)
        steps = [{each.explorer_step for each in claim.groups} for claim in claims]
        return [step for (step,) in steps]

    seeds = [dataclasses.replace(how["replay"], seed=seed) for seed in range(4)]
    orders = [order(each) for each in seeds]
    assert orders == [order(each) for each in seeds]
    assert all(sorted(each) == list(range(8)) for each in orders)
    assert len({tuple(each) for each in orders}) == 4
    assert order(dataclasses.replace(how["replay"], sigma=0.0)) == list(range(8))


# -- tasks --------------------------------------------------------------------------------------


def in_a_table(url, named="sums"):
    """As trinity-rft writes it (TaskModel in its buffer/schema/sql_schema.py), the rows in another order."""
    engine = sa.create_engine(url)
    columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("raw_task", sa.JSON)
    table = sa.Table(named, sa.MetaData(), *columns)
    with engine.begin() as connection:
        table.create(connection)
        rows = [{"id": number, "raw_task": row} for number, row in enumerate(ROWS, 1)]
        connection.execute(table.insert(), rows[::-1])
    engine.dispose()
    return {"storage_type": "sql", "path": url, "name": named}


def in_files(folder, suffix):
    folder.mkdir()
    lines = [json.dumps(row) for row in ROWS]
    (folder / f"train.{suffix}").write_text("\n".join(lines) if suffix == "jsonl" else f"[{','.join(lines)}]")
    return {"storage_type": "file", "path": str(folder)}


@pytest.fixture(params=[*BACKENDS, "its file", "jsonl", "json"])
def stored(request, tmp_path):
    if request.param == "postgresql":
        return in_a_table(request.getfixturevalue("server").clean_database())
    if request.param in ("sqlite", "its file"):
        table = in_a_table(f"sqlite:///{tmp_path}/tasks.db")
        return table if request.param == "sqlite" else {**table, "path": f"{tmp_path}/tasks.db"}
    return in_files(tmp_path / "rows", request.param)


@pytest.mark.parametrize("place", ["train", "eval"])
def test_tasks_are_read_in_their_order_and_again_in_each_epoch(stored, place, tmp_path):
    both = {"taskset": TASKSET, "eval_tasksets": [stored]} if place == "eval" else {"taskset": stored}
    made = plan_of(tmp_path, {"buffer": {"explorer_input": both}})
    taskset = made.spec.verl["data"]["tasksets"][f"{place}/0"]
    for _ in range(2):
        found = list(load_rows(taskset))
        assert [(row["question"], row["answer"]) for row in found] == [
            (row["question"], row["answer"]) for row in ROWS
        ]


def test_a_table_that_is_not_there_is_said_with_its_field(url):
    taskset = {**in_a_table(url), "place": "tasksets.0", "split": "train"}
    with pytest.raises(UserError, match=r"tasksets\.0\.path=.*no table 'products'"):
        load_rows({**taskset, "name": "products"})
    with pytest.raises(UserError, match="cannot be read"):
        load_rows({**taskset, "path": "postgres://h/d"})


@pytest.mark.parametrize("place", ["train", "eval"])
def test_a_queue_of_tasks_is_refused_with_its_line(place, tmp_path):
    queue = {**TASKSET, "storage_type": "queue"}
    both = {"taskset": TASKSET, "eval_tasksets": [queue]} if place == "eval" else {"taskset": queue}
    with pytest.raises(UserError, match="storage_type=queue: tasks are read from files or a table") as error:
        plan_of(tmp_path, {"buffer": {"explorer_input": both}})
    assert error.value.where.line > 0
