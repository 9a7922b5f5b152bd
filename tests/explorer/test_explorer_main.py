"""An explorer's process from its words to its exit code, on groups that are made without an engine."""

import asyncio
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from explorer_job import BATCH, FakeMaker, job, publish

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer import main
from trinity_compat.explorer.heartbeat import TrainerGone
from trinity_compat.job.lora import is_handed_over
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.engine_dtypes import agreed

pytestmark = pytest.mark.verl


class Engines:
    """In the place of Workers: notes what the explorer asks of its engines."""

    def __init__(self):
        self.done, self.ranks = [], 1

    async def start(self, check, *, timeout_s):
        check()
        self.done.append(f"started in {timeout_s:.0f} s")

    async def dtypes(self):
        self.done.append("told dtypes")
        return {"w": "float32"}

    async def set_auxiliary_models(self, routers):
        self.done.append(routers)

    def close(self):
        self.done.append("closed")


@pytest.fixture
def engines(monkeypatch):
    """The explorer's, which needs no Ray and scores nothing; signals are this process's own again."""
    made, before = Engines(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(main, "_join_ray", lambda spec: None)
    monkeypatch.setattr(main.machines, "living", list)
    monkeypatch.setattr(main, "warm", lambda: None)
    monkeypatch.setattr(main, "_workers", lambda *_: made)
    monkeypatch.setattr(main, "_scorer", lambda *_: SimpleNamespace(close=lambda: made.done.append("scored")))
    monkeypatch.setattr(main, "_group_builder", lambda *_: FakeMaker())
    monkeypatch.setattr(main.fingerprint, "check", lambda *_: None)
    monkeypatch.setattr(main, "sign", lambda *_: None)
    monkeypatch.setattr(main, "fingerprint_of", lambda spec: "f")
    yield made
    signal.signal(signal.SIGTERM, before)


def finishing(buffer, condition):
    """Says for the trainer that it has finished, once ``condition`` holds."""

    def watch():
        end = time.monotonic() + 300
        while not condition() and time.monotonic() < end:
            time.sleep(0.05)
        buffer.set_state("finished", True)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_it_makes_the_steps_of_its_run_and_ends_with_its_trainer(tmp_path, toy, engines):
    spec, buffer = job(tmp_path / "job", toy, steps=2)
    publish(spec, buffer, toy, 0, 1)
    request = buffer.request_eval(step=0, version=0)
    finishing(buffer, lambda: buffer.depth()["ready"] >= 2 * BATCH and buffer.eval_done(request))
    assert main.main([spec.job_dir]) == main.DONE
    assert len(buffer.groups("train")) == 2 * BATCH
    assert len(buffer.groups(f"eval:{request.request_id}")) == 6
    (me,) = buffer.participants()
    assert (me.role, me.name, me.state) == ("explorer", "explorer", "done")
    # Of the model's files at the start, and of the first version after its load.
    assert engines.done == ["started in 600 s", "told dtypes", "told dtypes", "scored", "closed"]
    assert agreed(buffer, 1) == {"w": "float32"}


def test_a_second_of_several_explorers_has_a_name_of_its_own(tmp_path, toy, engines):
    spec, buffer = job(tmp_path / "job", toy, steps=1, explorers=2)
    finishing(buffer, buffer.participants)
    assert main.main([spec.job_dir, "--index", "1"]) == main.DONE
    assert [one.name for one in buffer.participants()] == ["explorer_1"]


def test_data_that_cannot_be_read_end_it_before_anything_starts(tmp_path, toy, engines, capsys):
    spec, _ = job(tmp_path / "job", toy, "actor_rollout_ref.model.path=/nowhere/model")
    assert main.main([spec.job_dir]) == main.BAD_INPUT
    assert "error: actor_rollout_ref.model.path=/nowhere/model: no model there" in capsys.readouterr().err
    assert engines.done == []


@pytest.mark.parametrize(
    ("raised", "code", "state", "reason"),
    [
        (None, 0, "done", None),
        (TrainerGone("the trainer failed"), 3, "failed", "error: the trainer failed"),
        (UserError("no such model"), 2, "failed", "error: no such model"),
        (RunError("the engine failed"), 1, "failed", "error: the engine failed"),
        (ValueError("a defect"), 1, "failed", "error: ValueError: a defect"),
        (KeyboardInterrupt(), 143, "stopped", "stopped by a signal"),
        (asyncio.CancelledError(), 143, "stopped", "stopped by a signal"),
    ],
)
def test_an_end_is_an_exit_code_a_state_and_one_line(
    tmp_path, toy, monkeypatch, capsys, raised, code, state, reason
):
    spec, buffer = job(tmp_path / "job", toy)

    async def explore(*_):
        await asyncio.sleep(0)
        if raised:
            raise raised

    monkeypatch.setattr(main, "_async_run", explore)
    assert main.run(spec) == code
    (me,) = buffer.participants()
    said = capsys.readouterr().err
    assert me.state == state
    assert (reason in said) if reason else not said
    assert me.detail.get("reason") == (reason.partition(" ")[2] if reason else None)
    assert ("Traceback" in said) == isinstance(raised, ValueError)


def test_sigterm_stops_it_and_what_it_holds_is_given_back(tmp_path, toy, monkeypatch):
    spec, buffer = job(tmp_path / "job", toy)
    given_back = []

    async def explore(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(300)
        finally:
            given_back.append(1)

    monkeypatch.setattr(main, "_async_run", explore)
    assert main.run(spec) == 128 + signal.SIGTERM
    assert given_back == [1] and [one.state for one in buffer.participants()] == ["stopped"]


@pytest.mark.parametrize("argv", [[], ["--index", "1"]])
def test_without_a_job_it_says_how_it_is_called(capsys, argv):
    assert main.main(argv) == main.BAD_INPUT
    assert capsys.readouterr().err == f"usage: {main.USAGE}\n"


@pytest.mark.parametrize(
    ("words", "file", "work"),
    [
        (["--index", "3"], "run", ("run", 3)),
        ([], "run", ("run", 0)),
        (["--bench"], "bench", ("run", 0)),
        (["--serve"], "serve", ("run", 0)),
        (["--reward-model", "judge", "--parts", "2"], "run", ("reward_model", 2)),
        (["--reward-model", "judge"], "run", ("reward_model", 1)),
        (["--reward-model", "judge", "--bench"], "bench", ("reward_model", 1)),
        (["--teachers", "teachers_1", "--parts", "2"], "run", ("teachers", 2)),
    ],
)
def test_its_words_choose_the_work_and_the_file_that_describes_it(monkeypatch, tmp_path, words, file, work):
    before, done = signal.getsignal(signal.SIGTERM), []

    async def serve(spec, role, heart, *, parts):
        assert heart == (words[1], role)
        done.append((spec, (role, parts)))

    monkeypatch.setattr(RunSpec, "load", lambda path: path.relative_to(tmp_path).as_posix())
    monkeypatch.setattr(main, "run", lambda spec, index: done.append((spec, ("run", index))) or 0)
    monkeypatch.setattr(main, "_serve", serve)
    monkeypatch.setattr(main, "_heartbeat", lambda spec, name, role: (name, role))
    monkeypatch.setattr(main, "_run_to_end", lambda spec, heart, work: asyncio.run(work()) or 0)
    assert main.main([str(tmp_path), *words]) == 0
    assert done == [(f"config/{file}.json", work)]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_a_job_that_is_not_there_is_bad_input(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert main.main([str(tmp_path)]) == main.BAD_INPUT
    signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("fields", "name", "alone"),
    [
        ({"mode": "both"}, "explorer", False),
        ({"mode": "both", "explorers": 2}, "explorer_1", False),
        ({"mode": "bench", "explorers": 2}, "bench", True),
        ({"mode": "serve"}, "serve", True),
    ],
)
@pytest.mark.parametrize("rank", [0, 4])
def test_what_loads_checkpoints_takes_whole_models(tmp_path, toy, monkeypatch, fields, name, alone, rank):
    spec, _ = job(tmp_path / "job", toy, f"actor_rollout_ref.model.lora_rank={rank}")
    spec, done = replace(spec, **fields), []

    async def work(given, *_):
        done.append(is_handed_over(given.verl))

    for each in ("_async_run", "_bench", "_answer_clients"):
        monkeypatch.setattr(main, each, work)
    monkeypatch.setattr(main, "_run_to_end", lambda spec, heart, work: asyncio.run(work()) or heart)
    monkeypatch.setattr(main, "_heartbeat", lambda spec, name, role: (name, role))
    assert main.run(spec, 1) == (name, name if alone else "explorer")
    assert done == [rank > 0 and not alone]


def test_engines_on_the_trainer_s_device_wait_for_their_turn(tmp_path, monkeypatch):
    done, engines = [], Engines()

    class Device:
        async def wait(self, check):
            check()
            done.append("its turn")

    monkeypatch.setattr(main.placement, "report_when_pending", lambda what, note: nullcontext())
    spec = SimpleNamespace(sync=SimpleNamespace(timeout_s=7.0))
    heart = SimpleNamespace(check=lambda: done.append("checked"), note=None)
    asyncio.run(main._start(spec, engines, Device(), heart))
    asyncio.run(main._start(spec, engines, None, heart))
    assert done == ["checked", "its turn", "checked", "checked"]
    assert engines.done == ["started in 7 s"] * 2


@pytest.mark.parametrize("models", [0, 2])
def test_engines_learn_where_the_models_beside_them_answer(tmp_path, monkeypatch, models):
    async def awaited(buffer, check, *, timeout_s, place):
        return f"router {place} within {timeout_s:.0f} s"

    engines = Engines()
    monkeypatch.setattr(main, "served_models", lambda verl: ["m"] * models)
    monkeypatch.setattr(main.address, "wait_for_address", awaited)
    spec = SimpleNamespace(verl={}, sync=SimpleNamespace(timeout_s=900.0))
    found = asyncio.run(main._auxiliary_models(spec, None, engines, SimpleNamespace(check=None)))
    assert found == [f"router {place} within 900 s" for place in range(models)]
    assert engines.done == ([found] if models else [])


def test_whether_the_trainer_had_finished_is_looked_at_first(tmp_path, toy):
    spec, buffer = job(tmp_path / "job", toy)
    assert main._trainer_finished(spec).is_confirmed(True)
    buffer.set_state("finished", True)
    assert not main._trainer_finished(spec).is_confirmed(True)  # the mark may be an earlier run's
