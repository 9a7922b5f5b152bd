"""One run as three commands on two machines: network namespaces, with a Ray for each command and a job
directory for each machine. They share PostgreSQL over TCP, and a file system for the weights. ReMax's greedy
answers go the same way."""

import os
import socket

import needs
import numpy as np
import pytest
from namespaced import Machine, take_away_what_killed_tests_left

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.report import BufferReport

STEPS = 3


@pytest.fixture
def machines():
    needs.program("ip", "iproute2")
    take_away_what_killed_tests_left()
    made = [Machine(number) for number in (1, 2)]
    yield made
    for machine in made:
        machine.close()


@pytest.fixture
def server(machines):
    from buffer_postgres import PostgresServer, Unavailable

    try:
        found = PostgresServer(fsync=False)
    except Unavailable as reason:
        needs.lacking(str(reason))
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    found.new_database("two")
    found.stop()
    with (found.data / "pg_hba.conf").open("a") as rules:
        rules.writelines(f"host all tc {machine.address}/32 trust\n" for machine in machines)
    addresses = ",".join(sorted({machine.server for machine in machines}))
    found.settings = {**found.settings, "listen_addresses": addresses, "port": str(port)}
    os.environ["PGPORT"] = str(port)
    found.start()
    yield found
    del os.environ["PGPORT"]
    found.close()


@pytest.mark.runtime
@pytest.mark.whole
@pytest.mark.postgres
def test_two_explorers_and_a_trainer_on_two_machines(run, tmp_path, machines, server):
    port = server.settings["port"]

    def side(machine, mode, place, *more):
        url = f"postgresql+psycopg://tc@{machine.server}:{port}/two"
        options = ["--mode", mode, "--database", url, "--job", str(tmp_path / place)]
        options += ["--set", "synchronizer.sync_method=checkpoint", "--set", "log.group_by_node=true"]
        options += ["--explorers", "2", *more]
        words = (f"trainer.total_training_steps={STEPS}", "algorithm.adv_estimator=remax")
        one = run(*words, options=options, name="-".join([mode, *more]))
        one.command = [*machine.prefix, *one.command]
        return one.start()

    far = side(machines[0], "explore", "far", "--explorer", "0")
    near = side(machines[1], "explore", "near", "--explorer", "1")
    near.wait_for(lambda: (tmp_path / "near" / "config" / "run.json").exists())
    train = side(machines[1], "train", "near")  # last, so that both explorers come in time
    train.finish()
    for one in (train, far.ends(), near.ends()):
        assert one.code == 0, one.name + one.out + one.err
        assert one.alive() == []
    assert "joining the run" in train.out

    url = f"{server.url('two')}&port={port}"
    report = BufferReport(url)
    stats = report.stats()
    report.close()
    assert (stats.ledger_steps, stats.last_step, stats.used_twice) == (STEPS, STEPS, 0)
    assert stats.lag == {0: STEPS * 8 * 9}  # a group's greedy answer too
    buffer = open_buffer(url)
    weights = buffer.get_version(STEPS)
    made = [len(buffer.read_metrics(f"explorer_{index}")) for index in (0, 1)]
    remax_compares_each_answer_with_its_group_s_greedy_one(buffer, STEPS)
    buffer.close()
    # each one its share of every step that it came in time for: the first makes what nobody is there for
    assert made[0] == STEPS and 1 <= made[1] <= STEPS
    assert (weights.path, weights.method) == (
        f"{tmp_path}/near/weights/v0000000{STEPS}",
        "checkpoint",
    )
    if machines[0].prefix:  # each one's logs under its own address
        assert (tmp_path / "far" / "log" / machines[0].address / "explorer_0.log").stat().st_size
        assert (tmp_path / "near" / "log" / machines[1].address / "explorer_1.log").stat().st_size
        assert (tmp_path / "near" / "log" / machines[1].address / "trainer.log").stat().st_size


def remax_compares_each_answer_with_its_group_s_greedy_one(buffer, steps):
    groups = buffer.groups("train")
    told = {
        step: metrics["critic/advantages/mean"] for step, metrics in buffer.read_metrics("trainer") if step
    }
    assert sorted(told) == [*range(1, steps + 1)]
    for step, mean in told.items():
        advantages, lengths = [], []
        for group in groups[(step - 1) * 8 : step * 8]:
            *sampled, greedy = group.experiences
            assert len(sampled) == 8
            advantages += [part.reward - greedy.reward for part in sampled]
            lengths += [len(part.response_ids) for part in sampled]
        assert mean == pytest.approx(np.average(advantages, weights=lengths), abs=1e-6)
