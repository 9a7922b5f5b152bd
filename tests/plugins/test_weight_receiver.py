"""What a worker of vLLM's does with versions, on a model and a LoRA manager that only take notes."""

import contextlib
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged
from trinity_compat.synchronizer.transports.nccl import LoadFailed, Rendezvous, TransferFailed

pytestmark = pytest.mark.verl

MEETING = Rendezvous("h", "g", "127.0.0.1", 1, 2, version=1, timeout_s=1.0)


@pytest.fixture
def receiver():
    """A worker that veRL's update has nothing to do for; ``loaded`` is what came in, bucket by bucket."""
    from trinity_compat.plugins.vllm_weights import WeightReceiver

    class Worker(WeightReceiver):
        def _update_weights(self, weights, peft_config, base_sync_done):
            self.loaded.append([(name, tensor.tolist()) for name, tensor in weights])

        def remove_lora(self, number):
            self.removed.append(number)

    worker = Worker()
    model = torch.nn.Linear(1, 1)
    model.model = SimpleNamespace(layers=[])
    settings = SimpleNamespace(
        quant_config=None,
        speculative_config=None,
        lora_config=None,
        model_config=SimpleNamespace(dtype=torch.float32, quantization=None),
    )
    worker.rank, worker.local_rank, worker.device = 1, 1, torch.device("cpu")
    worker.model_runner = SimpleNamespace(model=model, get_model=lambda: model, vllm_config=settings)
    worker.loaded, worker.removed = [], []
    return worker


def named(*names):
    return [(name, torch.full((2,), float(ord(name)))) for name in names]


def listed(*names):
    return [(name, [float(ord(name))] * 2) for name in names]


def proven(answer, proof="same in all engines"):
    """The answer to a load without what it says of the tensors that the worker holds."""
    assert (len(answer["held"]), answer["proof"]) == (48, proof)
    return {name: value for name, value in answer.items() if name not in ("held", "proof")}


class Group:
    """In the place of a WeightGroup: hands two buckets on, or raises ``error`` after the first."""

    def __init__(self, meeting, rank, device, error=None):
        self.name, self.rank, self.device, self.error = meeting.group, rank, device, error
        self.closed, self.told = False, []

    def receive(self, where, load):
        load(named("a", "b"))
        if self.error:
            raise self.error
        load(named("c"))
        return WeightFile("", "digest", 24)

    def give_up(self, where, error):
        self.told.append(str(error))
        return f"rank {self.rank}: {error}"

    def close(self):
        self.closed = True


@pytest.fixture
def groups(monkeypatch):
    """The groups that a receiver has joined; ``errors`` are those of the next ones."""
    from trinity_compat.plugins import vllm_weights

    found = SimpleNamespace(made=[], errors=[])

    def join(meeting, rank, device):
        error = found.errors.pop(0) if found.errors else None
        found.made.append(Group(meeting, rank, device, error))
        return found.made[-1]

    monkeypatch.setattr(vllm_weights, "WeightGroup", join)
    return found


def test_a_group_serves_version_after_version_until_another_is_named(receiver, groups):
    for group in ("g", "g", "other"):
        meeting = Rendezvous("h", group, "127.0.0.1", 1, 4, version=1, timeout_s=1.0)
        assert proven(receiver.receive_broadcast(asdict(meeting), 2)) == {"digest": "digest", "nbytes": 24}
    assert [(each.name, each.rank, each.closed) for each in groups.made] == [
        ("g", 3, True),
        ("other", 3, False),
    ]
    assert groups.made[0].device == torch.device("cpu")
    assert receiver.loaded == [listed("a", "b"), listed("c")] * 3


@pytest.mark.parametrize(
    ("error", "answer", "left"),
    [
        (TransferFailed("a rank was lost"), {"failed": "a rank was lost"}, True),
        (WeightsDamaged("other bytes"), {"damaged": "other bytes"}, False),
        (LoadFailed("rank 3: no room"), {"unloadable": "rank 3: no room"}, True),
        (ValueError("a wrong shape"), {"unloadable": "rank 3: a wrong shape"}, True),
    ],
)
def test_a_broken_handover_is_an_answer_and_a_group_of_no_more_use_is_left(
    receiver, groups, error, answer, left
):
    groups.errors.append(error)
    assert receiver.receive_broadcast(asdict(MEETING), 2) == answer
    (group,) = groups.made
    assert group.closed == left
    assert group.told == (["a wrong shape"] if isinstance(error, ValueError) else [])
    assert receiver.receive_broadcast(asdict(MEETING), 2).get("nbytes") == (24 if left else None)


def test_an_error_before_a_group_is_joined_is_an_answer_too(receiver, groups, monkeypatch):
    from trinity_compat.plugins import vllm_weights

    def refuse(*_):
        raise OSError("no such device")

    monkeypatch.setattr(vllm_weights, "WeightGroup", refuse)
    assert receiver.receive_broadcast(asdict(MEETING), 2) == {"unloadable": "OSError: no such device"}


class Files:
    """In the place of a Reader."""

    def __init__(self, parts):
        self.parts, self.asked = parts, []

    @contextlib.contextmanager
    def opened(self, file):
        self.asked.append(file)
        yield iter(self.parts)


def test_a_file_is_loaded_part_by_part_and_its_tensors_counted(receiver):
    receiver._reader = Files([named("a", "b"), named("c")])
    assert proven(receiver.receive_file("v1", "d", 24)) == {"tensors": 3, "digest": "d"}
    assert receiver._reader.asked == [WeightFile("v1", "d", 24)]
    assert receiver.loaded == [listed("a", "b"), listed("c")]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (WeightsDamaged("a part is cut"), {"damaged": "a part is cut"}),
        (KeyError("lm_head"), {"failed": "KeyError: 'lm_head'"}),
    ],
)
def test_a_file_that_is_not_in_place_is_an_answer(receiver, monkeypatch, error, answer):
    def broken():
        yield named("a")
        raise error

    receiver._reader = Files(broken())
    assert receiver.receive_file("v1", "d", 24) == answer
    assert receiver.loaded == [listed("a")]


def test_the_reader_is_kept_from_version_to_version(receiver):
    assert receiver._files() is receiver._files()


@pytest.mark.parametrize("broken", [False, True])
def test_the_model_s_own_files_go_the_same_way(receiver, monkeypatch, broken):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    asked = []

    def weights(self, config, model):
        asked.append((config, model))
        yield from named("a", "b", "c")
        if broken:
            raise OSError("no such file")

    monkeypatch.setattr(DefaultModelLoader, "get_all_weights", weights)
    answer = receiver.receive_model()
    runner = receiver.model_runner
    assert asked == [(runner.vllm_config.model_config, runner.model)]
    if broken:
        assert answer == {"failed": "OSError: no such file"}
    else:
        assert answer == {"tensors": 3} and receiver.loaded == [listed("a", "b", "c")]


def test_parts_are_as_large_as_asked_and_lose_nothing(monkeypatch):
    from trinity_compat.plugins import vllm_weights

    monkeypatch.setattr(vllm_weights, "PART_BYTES", 16)
    parts = [[name for name, _ in part] for part in vllm_weights.grouped_in_parts(named(*"abcde"))]
    assert parts == [["a", "b"], ["c", "d"], ["e"]]
    assert [len(part) for part in vllm_weights.grouped_in_parts(named("a", "b"))] == [2]
    assert list(vllm_weights.grouped_in_parts([])) == []


@pytest.mark.parametrize("device", ["meta", None])
def test_what_verl_quantises_is_moved_to_the_device_first(device):
    from trinity_compat.plugins import vllm_weights

    moved = vllm_weights._on(device and torch.device(device), named("a"))
    assert [(name, tensor.device.type) for name, tensor in moved] == [("a", device or "cpu")]


@pytest.mark.parametrize("quantised", [True, False])
def test_the_device_of_a_quantised_model_is_where_it_is_quantised(receiver, monkeypatch, quantised):
    from trinity_compat.plugins import vllm_weights

    monkeypatch.setattr(vllm_weights.verl_rollout, "is_quantized_model", lambda config: quantised)
    assert receiver._quantisation_device() == (receiver.device if quantised else None)


@pytest.mark.parametrize("quantised", [True, False])
def test_veRL_0_9_0_says_it_under_another_name(receiver, monkeypatch, quantised):
    from trinity_compat.plugins import vllm_weights

    monkeypatch.delattr(vllm_weights.verl_rollout, "is_quantized_model")
    monkeypatch.setattr(vllm_weights.verl_rollout, "is_fp8_model", lambda config: quantised, raising=False)
    assert receiver._quantisation_device() == (receiver.device if quantised else None)


def test_layers_are_processed_although_the_handover_broke(receiver, groups, monkeypatch):
    from vllm.model_executor.model_loader import utils

    done = []
    monkeypatch.setattr(utils, "process_weights_after_loading", lambda *_: done.append("processed"))
    for error in (TransferFailed("lost"), WeightsDamaged("other bytes")):
        groups.errors.append(error)
        receiver._weight_group = None
        receiver.receive_broadcast(asdict(MEETING), 2)
    assert done == ["processed"] * 2


def test_no_gradient_is_kept_of_what_is_loaded(receiver):
    seen = []
    receiver._update_weights = lambda *_, **__: seen.append(torch.is_grad_enabled())
    receiver._load([named("a")])
    assert seen == [False]


class Manager:
    """vLLM's manager of adapters: notes what it is given."""

    def __init__(self, adapted, layers):
        self.done, self.adapted = [], adapted
        self._adapter_manager = SimpleNamespace(modules=layers, get_adapter=self._adapter)

    def _adapter(self, number):
        self.done.append(f"looked at {number}")
        return SimpleNamespace(loras=self.adapted)

    @contextlib.contextmanager
    def dummy_lora_cache(self):
        self.done.append("cache")
        yield
        self.done.append("no cache")

    def add_dummy_lora(self, request, rank):
        self.done.append((request.lora_name, request.lora_int_id, request.lora_path, rank))


@pytest.fixture
def adapting(receiver):
    """The receiver, started for LoRA; ``given`` is what veRL's update was called with."""
    receiver.model_runner.vllm_config.lora_config = SimpleNamespace(lora_dtype=torch.float16)
    a, b = (tensor.to(torch.float16) * 2 for _, tensor in named("a", "b"))  # scaled by alpha ÷ r
    held = SimpleNamespace(lora_a=a, lora_b=b)
    receiver.model_runner.lora_manager = Manager({"q_proj": held}, {"q_proj": 1, "k_proj": 1})
    receiver.given = []
    receiver._update_weights = lambda weights, **how: receiver.given.append((dict(weights), how))
    return receiver


def test_an_adapter_takes_the_place_of_the_one_before(adapting):
    from verl.workers.rollout.vllm_rollout import utils

    from trinity_compat.synchronizer.adapters import as_version

    whole = list(as_version(named("a", "b"), {"r": 4, "lora_alpha": 8}))
    assert adapting._load([whole[:2], whole[2:]]) == 3
    assert adapting.removed == [utils.VLLM_LORA_INT_ID]
    ((tensors, how),) = adapting.given
    assert [(name, value.tolist()) for name, value in tensors.items()] == listed("a", "b")
    assert how == {"peft_config": {"r": 4, "lora_alpha": 8}, "base_sync_done": True}
    assert tensors["a"].data_ptr() != whole[1][1].data_ptr()  # a bucket's memory is used again
    assert adapting.dtypes() == {
        "a": "float16",
        "b": "float16",
    }  # vLLM's for adapters


def test_an_adapter_with_other_values_than_those_that_arrived_is_refused(adapting):
    from trinity_compat.synchronizer.adapters import as_version

    adapting.model_runner.lora_manager.adapted["q_proj"].lora_b[0] += 1
    adapting._reader = Files([list(as_version(named("a", "b"), {"r": 4, "lora_alpha": 8}))])
    assert "another adapter than the one that arrived" in adapting.receive_file("v", "d", 1)["failed"]


def test_a_whole_model_or_half_an_adapter_is_refused_by_an_engine_for_adapters(adapting):
    from trinity_compat.synchronizer.adapters import as_version

    adapting._reader = Files([named("a")])
    assert "the version is a whole model" in adapting.receive_file("v", "d", 1)["failed"]
    assert adapting.removed == [] and adapting.given == []
    adapting.model_runner.lora_manager.adapted["visual.merger"] = 1
    adapting._reader = Files([list(as_version(named("a"), {"r": 4}))])
    assert "no place for the adapter's visual.merger" in adapting.receive_file("v", "d", 1)["failed"]


def test_an_engine_starts_with_a_zero_adapter(adapting):
    from trinity_compat.plugins.vllm_weights import adapter_request

    adapting.begin_unadapted()
    asked = adapter_request()
    named_as = (asked.lora_name, asked.lora_int_id, asked.lora_path)
    assert adapting.model_runner.lora_manager.done == ["cache", (*named_as, 1), "no cache"]


class Scoring:
    def __init__(self, logits):
        self.logits, self.asked = logits, []

    def compute_logits(self, *args, **kwargs):
        self.asked.append((args, kwargs))
        return self.logits


def test_what_lies_outside_the_vocabulary_is_never_sampled(receiver):
    model, draft = Scoring(torch.zeros(2, 6)), Scoring(None)
    receiver._iter_all_models = lambda: iter([model, draft])
    receiver.mask_vocabulary(4, banned=(1,))
    never = float("-inf")
    for _ in range(2):
        model.logits = torch.zeros(2, 6)
        assert model.compute_logits("hidden", scale=2).tolist() == [[0.0, never, 0.0, 0.0, never, never]] * 2
    assert model.asked == [(("hidden",), {"scale": 2})] * 2
    assert draft.compute_logits() is None  # a rank that gets no logits
    receiver.mask_vocabulary(6)
    assert model.compute_logits().tolist()[0][0] == 0.0


def test_a_worker_is_made_without_verl_s_death_signal(monkeypatch):
    from verl.workers.rollout.vllm_rollout import utils

    from trinity_compat.plugins.vllm_weights import WeightReceiver

    done = []
    monkeypatch.setattr(utils, "set_death_signal", lambda: done.append("killed"))
    assert isinstance(WeightReceiver(), WeightReceiver)
    assert done == []
    utils.set_death_signal()
    assert done == ["killed"]
