"""The report of a run reads the same from both databases."""

from contextlib import closing

from buffer_samples import groups

from trinity_compat.buffer.model import LoadedVersion, WeightVersion
from trinity_compat.buffer.reading import open_for_reading
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.report.coverage import coverage
from trinity_compat.report.drift import drift
from trinity_compat.report.restarts import restarts
from trinity_compat.report.weights import weights


def test_coverage_weights_drift_and_restarts_are_read(buffer, url, clock):
    spec = RunSpec("job", url, {}, 1, 2, SyncSpec())
    for step in (1, 2):
        buffer.put_groups(groups(2, first=step * 2 - 2, version=step - 1))
        buffer.mark_trained(buffer.claim_groups(2, owner="t", step=step), step=step)
        buffer.log_metrics("trainer", step, {"rollout_corr/kl": 0.1})
        buffer.publish_version(WeightVersion(step, "p", f"{step:032x}", 10))
        clock.seconds += 10
    buffer.reconcile(step=1)
    with closing(open_for_reading(url)) as database:
        read = database.run(
            lambda conn: [coverage(conn, spec), weights(conn), drift(conn), restarts(conn)], write=False
        )
    covered, published, drifted, started = (section.data for section in read)
    assert (covered["lost"], covered["twice"], covered["skipped"]["waiting"]) == (0, 0, 2)
    assert [(step["step"], step["tokens"], step["lag"]) for step in covered["steps"]] == [(1, 16, 0.0)]
    assert [each["version"] for each in published["versions"]] == [1]
    assert [(each["lag"], each["tokens"]) for each in drifted["by_lag"]] == [(0, 16)]
    assert [(each["steps_again"], each["idle_s"]) for each in started["restarts"]] == [(1, 10.0)]


def test_workers_that_hold_something_else_of_the_same_layout_are_returned(buffer):
    def note(worker, held, received="r"):
        return buffer.note_loaded(LoadedVersion(1, worker, received, held, ""))

    assert note("a", "x" * 16 + "1") == []
    assert note("b", "x" * 16 + "1") == note("c", "y" * 16 + "2") == note("d", "") == []
    assert note("e", "x" * 16 + "2") == ["a", "b"]
    assert note("f", "x" * 16 + "3", received="s") == []
