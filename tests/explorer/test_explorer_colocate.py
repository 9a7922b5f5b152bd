"""Two sides in turns on one device: the real loop and the real exchange, told apart by who is busy."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from explorer_job import BATCH, FakeMaker, experience, job, says_once_that_it_lives
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Group
from trinity_compat.explorer.data.tasks import eval_stream, train_stream
from trinity_compat.explorer.engine.weights import SharedDevice
from trinity_compat.explorer.scheduling.loop import Explorer
from trinity_compat.explorer.scheduling.pool import WorkPool, WorkUnit
from trinity_compat.explorer.scheduling.report import StepReporter
from trinity_compat.explorer.scheduling.scheduler import Scheduler
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.run.toy import make_tokenizer
from trinity_compat.synchronizer.device_turns import TURN, DeviceTurn
from trinity_compat.synchronizer.transports.files import write_file
from trinity_compat.synchronizer.versions import is_available

pytestmark = pytest.mark.verl  # the exchange imports verl's DataProto

STEPS = 4


class Device:
    """Notes what is done on it, and whether ever two did something at once."""

    def __init__(self):
        self.done, self.users, self.clash = [], set(), False

    def begin(self, who):
        self.users.add(who)
        self.clash |= len(self.users) > 1

    def end(self, who, what):
        self.users.discard(who)
        self.done.append(what)


class Engines:
    """Hold the device while they are awake, and weights until they sleep."""

    def __init__(self, device):
        self.device = device
        device.begin("explorer")
        device.weights = True  # the model path's

    async def sleep(self):
        self.device.end("explorer", "asleep")
        self.device.weights = False

    async def wake(self):
        self.device.begin("explorer")


class Maker(FakeMaker):
    def __init__(self, device):
        super().__init__(before=self._answer)
        self.device = device

    async def load(self, version):
        await super().load(version)
        assert is_available(version)
        self.device.weights = True

    def _answer(self, work):
        assert "explorer" in self.device.users, "the engines sleep"
        assert self.device.weights, "nothing was loaded since they slept"
        time.sleep(0.02)
        self.device.done.append(f"{work.kind.partition(':')[0]} {work.step}")


class UnevenMaker(Maker):
    """The last answer of each step takes as long as the others of several; a token needs the engines."""

    def room(self):
        return 4 * BATCH

    async def groups(self, work, version, history):
        for job_ in work.jobs:
            left = 200 if work.kind == "train" and job_.task_no % BATCH == BATCH - 1 else 2
            while left:
                await asyncio.sleep(0.005)
                left -= self.device.weights
            parts = tuple(experience(run, version, max(version, *self.loaded, 0)) for run in range(job_.n))
            key, step = f"h{history}/{work.kind}/{job_.task_no}", work.step_of(job_.task_no)
            yield Group(key, job_.task_no, job_.task, step, parts, work.kind)


def explore(spec, device, maker):
    buffer, config, tokenizer = open_buffer(spec.database_url), OmegaConf.create(spec.verl), make_tokenizer()
    scheduler = Scheduler(
        spec, buffer, train_stream(config, tokenizer, None), eval_stream(config, tokenizer, None)
    )
    shared = SharedDevice(DeviceTurn(buffer, "explorer"), Engines(device))
    heart = SimpleNamespace(check=lambda: None, state="")
    report = StepReporter(buffer, "explorer")
    asyncio.run(Explorer(buffer, scheduler, maker(device), report, heart, device=shared).explore())


def train(spec, buffer, device, *, first=1, validate=()):
    from trinity_compat.trainer.exchange import BufferExchange
    from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat

    with LeaseHeartbeat(buffer, "t") as heart:
        exchange = BufferExchange(buffer, spec, heart, batch_size=BATCH, group_size=2, val_size=6)
        says_once_that_it_lives(buffer)

        def send(version, meeting=None, check=None):
            return write_file(spec.sync.directory, version, [("w", torch.zeros(1))])

        exchange.before_leaving(lambda: device.done.append("emptied"))
        exchange.wait_for_device()
        exchange.publish(first - 1, send)
        for step in range(first, STEPS + 1):
            exchange.claim(step)
            device.begin("trainer")
            time.sleep(0.02)
            device.end("trainer", f"trained {step}")
            exchange.publish(step, send)
            if step in validate:
                exchange.evaluate(step, send)
                device.begin("trainer")  # veRL's loop goes on with the device after an evaluation
                device.end("trainer", f"validated {step}")
        buffer.set_state("finished", True)


def run(tmp_path, toy, *, sync=None, maker=Maker, fields=None, **more):
    sync = SyncSpec(timeout_s=600, directory=str(tmp_path / "sync"), **(sync or {}))
    spec, buffer = job(tmp_path / "job", toy, steps=STEPS, sync=sync, mode="colocate", **(fields or {}))
    device = Device()
    exploring = threading.Thread(target=explore, args=(spec, device, maker), daemon=True)
    exploring.start()
    train(spec, buffer, device, **more)
    exploring.join(300)
    assert not exploring.is_alive()
    return device


def test_on_policy_steps_alternate_and_the_engines_sleep_while_the_trainer_works(tmp_path, toy):
    device = run(tmp_path, toy)
    steps = [[f"train {step}", "asleep", f"trained {step}"] for step in range(1, STEPS + 1)]
    done = [what for what in device.done if what != "emptied"]
    assert done[: 3 * STEPS] == [what for step in steps for what in step]
    assert not device.clash


def test_the_trainer_empties_its_cache_before_the_engines_wake(tmp_path, toy):
    done = run(tmp_path, toy).done
    for step in range(1, STEPS):
        between = done[done.index(f"trained {step}") : done.index(f"train {step + 1}")]
        assert "emptied" in between


def test_an_evaluation_is_a_turn_of_the_explorers(tmp_path, toy):
    device = run(tmp_path, toy, validate=(2,))
    assert not device.clash
    done = [what for what in device.done if what != "emptied"]
    after = done[done.index("trained 2") :]
    assert after[:1] == ["trained 2"]
    assert after.index("eval 2") < after.index("validated 2") < after.index("trained 3")


@pytest.mark.parametrize(
    "sync",
    [
        {"offset": 2},
        {"interval": 2},  # the version in place is used again, after a turn of the trainer's
        {"style": "explorer_driven"},
        {"style": "fully_async", "interval": 2},
    ],
)
def test_engines_and_trainer_never_use_the_device_at_once(tmp_path, toy, sync):
    device = run(tmp_path, toy, sync=sync)
    assert not device.clash
    assert [what for what in device.done if what.startswith("trained")] == [
        f"trained {step}" for step in range(1, STEPS + 1)
    ]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("interval", "limit"), [(1, None), (2, None), (1, 1)])
def test_under_fully_async_the_trainer_s_turn_waits_for_a_step_and_not_for_the_longest_answers(
    tmp_path, toy, monkeypatch, keeps, interval, limit
):
    pauses = []
    monkeypatch.setattr(WorkPool, "add_pause", lambda pool, seconds: pauses.append(seconds))
    sync, fields = {"style": "fully_async", "interval": interval}, {"max_staleness": limit}
    fields["partial_rollout"] = keeps
    device = run(tmp_path, toy, sync=sync, maker=UnevenMaker, fields=fields, validate=(2, 3))
    assert not device.clash
    turns = [what for what in device.done if what.startswith(("trained", "validated"))]
    assert turns == ["trained 1", "trained 2", "validated 2", "trained 3", "validated 3", "trained 4"]
    buffer = open_buffer(f"sqlite:///{tmp_path}/job/experiences.db")
    answers = [each for group in buffer.groups("train") for each in group.experiences]
    assert any(each.max_model_version > each.min_model_version for each in answers) == keeps
    assert buffer.depth()["trained"] == STEPS * BATCH
    assert bool(pauses) == keeps and all(seconds > 0 for seconds in pauses)


def test_a_pause_of_the_engines_is_no_time_of_a_task_in_flight():
    async def go():
        async def build():
            await asyncio.Event().wait()
            yield

        async with WorkPool(lambda: 1) as pool:
            pool.begin([WorkUnit(build, 1, task=7)], at_once=True)
            await asyncio.sleep(0)
            before = pool.longer_than(-1)
            pool.add_pause(1000)
            return before, pool.longer_than(-1), pool.drop()

    assert asyncio.run(go()) == ([7], [], None)


def test_only_the_holder_can_give_a_turn_and_a_new_start_begins_with_the_explorer(tmp_path):
    buffer = open_buffer(f"sqlite:///{tmp_path}/b.db")
    explorer, trainer = DeviceTurn(buffer, "explorer"), DeviceTurn(buffer, "trainer")
    trainer.give()
    assert (explorer.is_mine(), trainer.is_mine()) == (True, False)
    explorer.give()
    explorer.give()
    assert (explorer.is_mine(), trainer.is_mine()) == (False, True)
    TURN.set(buffer, "explorer")
    assert explorer.is_mine()
