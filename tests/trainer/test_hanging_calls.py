"""Calls to the training processes: each is told with the processes that it waits for."""

import os
from types import SimpleNamespace

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.common.errors import RunError
from trinity_compat.job.run_spec import RunSpec, SyncSpec

pytestmark = pytest.mark.runtime


class Group:
    """veRL's worker group as far as calls go."""

    def __init__(self, workers):
        self.workers = workers

    def _execute_remote_single_worker(self, worker, method_name, *args, **kwargs):
        return worker, method_name, args, kwargs

    def execute_all(self, method, *args):
        return [self._execute_remote_single_worker(worker, method, *args) for worker in self.workers]


class Worker:
    """An actor that tells where it is."""

    def __init__(self, pid, node):
        self.killed = False
        where = {"pid": pid, "started": 0.0, "node": node, "host": f"host of {node}"}
        self.__ray_call__ = SimpleNamespace(remote=lambda function: where)


def test_each_call_is_told_with_where_its_processes_are(monkeypatch):
    from trinity_compat.trainer import training_processes

    known = []
    fake = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a"),
        wait=lambda refs, timeout: ([ref for ref in refs if ref["pid"] in known], []),
        get=lambda ref: ref,
        kill=lambda worker: setattr(worker, "killed", True),
    )
    monkeypatch.setattr(training_processes, "ray", fake)
    calls = []
    kind = training_processes.observe_calls(Group, lambda method, suspects: calls.append((method, suspects)))
    here, there = Worker(os.getpid(), "a"), Worker(12, "b")
    made = kind([here, there]).execute_all("update_actor", 7)
    assert made == [(here, "update_actor", (7,), {}), (there, "update_actor", (7,), {})]
    method, suspects = calls[-1]
    assert (method, suspects()) == ("update_actor", []), "none has said yet where it is"
    known += [os.getpid(), 12]
    assert [(each.name, each.pid, each.host) for each in suspects()] == [
        ("training process 0", os.getpid(), ""),
        ("training process 1", 12, "host of b"),
    ]
    suspects()[1].kill()
    assert there.killed and not here.killed


def test_a_run_s_trainer_tells_its_heart(monkeypatch):
    from trinity_compat.trainer import main

    given = []
    monkeypatch.setattr(main, "build", lambda *arguments: given.append(arguments[-1]))
    heart = SimpleNamespace(note=lambda text: None, record_call=lambda method, suspects: None)
    main._build(None, None, None, SimpleNamespace(device="cpu"), heart)
    assert given == [heart.record_call]


def test_a_trainer_fails_for_what_hung_and_not_for_what_was_killed(tmp_path, monkeypatch):
    from trinity_compat.trainer import main

    class Found:
        reason = None

        def __init__(self, own, *, last_word):
            assert own.limit_s == 45.0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    def train(spec, buffer, heart):
        Found.reason = "no progress for 271 s: running step 3, update_actor"
        raise RuntimeError("the actor died")

    monkeypatch.setattr(main, "WatchdogThread", Found)
    monkeypatch.setattr(main, "_train", train)
    url = f"sqlite:///{tmp_path}/b.db"
    open_buffer(url).close()
    with pytest.raises(RunError, match="no progress for 271 s: running step 3, update_actor"):
        main.run(RunSpec("", url, {}, 1, None, SyncSpec(), stall_timeout_s=45.0))
    (trainer,) = open_buffer(url).participants()
    assert (trainer.state, trainer.detail["reason"][:14]) == ("failed", "no progress fo")
