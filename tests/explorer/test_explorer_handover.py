"""Weights handed over on a device in turns: the real loop, offers and exchange; engines that take notes."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from explorer_job import BATCH, FakeMaker, job, says_once_that_it_lives
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import WeightVersion
from trinity_compat.explorer.data.tasks import eval_stream, train_stream
from trinity_compat.explorer.engine.weights import SharedDevice
from trinity_compat.explorer.rollout.nccl_receiver import Receiver
from trinity_compat.explorer.scheduling.loop import Explorer
from trinity_compat.explorer.scheduling.report import StepReporter
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.synchronizer.device_turns import DeviceTurn
from trinity_compat.synchronizer.transports.files import WeightFile, write_file
from trinity_compat.synchronizer.transports.nccl import TransferFailed
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver

pytestmark = pytest.mark.verl
STEPS = 4


class NotingEngines(FakeMaker):
    """Engines and their explorer's workers in one. ``holds``: the version, None for a mixture or nothing."""

    ranks, restarts_an_engine = 1, False

    def __init__(self, turn, fails, restarting=()):
        super().__init__(before=self._answer)
        self.turn, self.fails, self.restarting = turn, fails, restarting
        self.done, self.memory, self.holds = [], {"weights", "cache"}, 0
        self.asked = set()  # versions of the transfers that began

    async def sleep(self):
        self.memory, self.holds = set(), None

    async def wake(self):
        self.memory.add("weights")

    async def resume(self):
        assert self.turn.is_mine(), "the trainer still has the device"
        self.memory.add("cache")

    async def receive(self, meeting, first_rank):
        assert (first_rank, self.memory, self.turn.is_mine()) == (1, {"weights"}, False)
        assert meeting.on_devices
        self.asked.add(meeting.version)
        if meeting.version in self.fails:
            raise TransferFailed("the trainer's rank gave no answer in time")
        self.holds = meeting.version
        self.done.append(f"received {meeting.version}")
        return WeightVersion(meeting.version, "", f"digest {meeting.version}", 1, "device")

    def late(self):
        return []

    async def load(self, version):
        assert version.path and self.turn.is_mine()
        self.memory |= {"weights", "cache"}  # a file's load takes the cache's memory again
        self.holds = version.version
        self.done.append(f"loaded {version.version}")

    def _answer(self, work):
        assert self.memory == {"weights", "cache"} and self.holds is not None, work.step
        self.done.append(f"{work.kind.partition(':')[0]} {work.step} by {self.holds}")


def explore(spec, made, fails):
    buffer, config, tokenizer = open_buffer(spec.database_url), OmegaConf.create(spec.verl), make_tokenizer()
    tasks, evaluation = train_stream(config, tokenizer, None), eval_stream(config, tokenizer, None)
    turn = DeviceTurn(buffer, "explorer")
    engines = NotingEngines(turn, fails)
    made.append(engines)
    receiver = Receiver(OfferReceiver(buffer, 0, engines.ranks), engines, lambda: None)
    heart, report = SimpleNamespace(check=lambda: None, state=""), StepReporter(buffer, "explorer")
    scheduler = Scheduler(spec, buffer, tasks, evaluation)
    shared = SharedDevice(turn, engines)
    asyncio.run(Explorer(buffer, scheduler, engines, report, heart, receiver, shared).explore())


def train(spec, buffer, made, fails, validate):
    from trinity_compat.trainer.exchange import BufferExchange
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    def send(version, meeting=None, check=None):
        if meeting is None:
            return write_file(spec.sync.directory, version, [("w", torch.zeros(1))])
        until = time.monotonic() + 300
        while version not in made[-1].asked:  # the real one ends with the answers of the engines' workers
            assert time.monotonic() < until
            time.sleep(0.01)
        if version in fails:
            raise TransferFailed("the engine's worker gave no answer in time")
        return WeightFile("", f"digest {version}", 1)

    with LeaseHeartbeat(buffer, "t") as heart:
        exchange = BufferExchange(buffer, spec, heart, batch_size=BATCH, group_size=2, val_size=6)
        says_once_that_it_lives(buffer)
        exchange.wait_for_device()
        exchange.publish(0, send)
        for step in range(1, STEPS + 1):
            exchange.claim(step)
            exchange.publish(step, send)
            if step in validate:
                exchange.evaluate(step, send)
        buffer.set_state("finished", True)


def run(tmp_path, toy, *, trainer_fails=(), engine_fails=(), validate=(), explorer=explore):
    sync = SyncSpec(timeout_s=600, directory=str(tmp_path / "sync"))
    spec, buffer = job(
        tmp_path / "job",
        toy,
        "trainer.n_gpus_per_node=1",
        steps=STEPS,
        sync=sync,
        mode="colocate",
        handover="device",
    )
    made = []
    exploring = threading.Thread(target=explorer, args=(spec, made, engine_fails), daemon=True)
    exploring.start()
    train(spec, buffer, made, trainer_fails, validate)
    exploring.join(60)
    assert not exploring.is_alive()
    assert buffer.depth()["trained"] == STEPS * BATCH
    methods = [buffer.get_version(version).method for version in range(STEPS + 1)]
    return made[-1].done, methods


def test_engines_take_a_version_in_the_trainer_s_turn_and_answer_with_it_in_theirs(tmp_path, toy):
    done, methods = run(tmp_path, toy, validate=(2,))
    assert methods == ["memory", *["device"] * STEPS]
    steps = [[f"train {step} by {step - 1}", f"received {step}"] for step in range(1, STEPS + 1)]
    assert [what for what in done if not what.startswith("eval")] == [what for step in steps for what in step]
    assert "eval 2 by 2" in done


def test_a_version_that_either_side_could_not_hand_over_comes_by_a_file(tmp_path, toy):
    done, methods = run(tmp_path, toy, trainer_fails=(1, 2), engine_fails=(2, 3))
    assert methods == ["memory", "memory", "memory", "memory", "device"]
    # Of 1 the engines have the whole, and the trainer does not know it; of 3 it is the other way about.
    trained = [what for what in done if what.startswith("train")]
    assert trained == [f"train {step} by {step - 1}" for step in range(1, STEPS + 1)]
    assert [what for what in done if what.startswith("loaded")] == ["loaded 1", "loaded 2", "loaded 3"]


def test_without_an_explorer_that_takes_it_a_version_is_a_file_in_time(tmp_path, toy, monkeypatch):
    monkeypatch.setattr("trinity_compat.trainer.device_sender.TAKEN_S", 0.2)
    monkeypatch.setattr(NotingEngines, "restarts_an_engine", True)
    done, methods = run(tmp_path, toy)
    assert methods == ["memory"] * (STEPS + 1)
    assert [what for what in done if what.startswith("received")] == []


def test_an_offer_of_a_dead_trainer_s_is_withdrawn_by_the_next_one(tmp_path, toy):
    def explores_after_an_offer(spec, made, fails):
        from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferSender

        OfferSender(open_buffer(spec.database_url), 1).open(1)
        explore(spec, made, fails)

    done, methods = run(tmp_path, toy, explorer=explores_after_an_offer)
    assert methods == ["memory", *["device"] * STEPS]
    assert done[0] == "train 1 by 0"
