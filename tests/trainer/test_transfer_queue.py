"""TransferQueue of the v1 adapter on a real Ray: rows that are left, and a second run."""

import queue as queue_module

import pytest
import ray
from omegaconf import OmegaConf
from test_verl_v1 import answer, row

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.trainer.verl_v1 import queue

pytestmark = pytest.mark.runtime

STORE = {"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}}


@pytest.fixture
def opened(monkeypatch):
    """The context manager of one queue, on a Ray of the test's own."""
    monkeypatch.setattr(queue, "_LEAVES_S", 0.0)
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
    yield lambda died=None: queue.opened(OmegaConf.create({"transfer_queue": STORE}), died)
    ray.shutdown()


def test_a_queue_is_this_run_s_alone_and_has_no_row_where_a_checkpoint_counts(opened):
    with opened():
        queue.check_empty()
        batch = queue.put([row(answer([11], [21]))], "train")
        with pytest.raises(RunError, match=r"rows are left in TransferQueue after their step \(1\)"):
            queue.check_empty()
        queue.clear(batch.keys, "train")
        queue.check_empty()
        with pytest.raises(UserError, match="another run on this Ray trains with veRL's v1"), opened():
            raise AssertionError("two runs share a queue")
        queue.check_empty()  # the refused one has not ended this one's
    with opened():  # and its end leaves the Ray to the next
        queue.check_empty()


def test_the_death_of_one_of_its_processes_is_told(opened):
    told = queue_module.Queue()
    with opened(lambda reason, error: told.put(reason)):
        ray.kill(ray.get_actor(queue._CONTROLLER, namespace=queue._NAMESPACE))
        assert told.get(timeout=300) == "TransferQueue's controller has died"
