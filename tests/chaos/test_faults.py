"""Some faults of benchmarks/chaos/faults.py that only a whole job can show."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "chaos"))
import faults
from toys import made_toy

from trinity_compat.run.toy import ToySpec

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    rows = faults.STEPS * faults.BATCH
    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=rows, val_rows=8, warm_steps=1))


@pytest.mark.parametrize("name", ["database locked 45 s", "lock files deleted", "gcs stopped"])
def test_a_fault_ends_clearly_and_costs_no_answer(toy, tmp_path, name):
    (fault,) = faults.chosen([name])
    row = faults.under(fault, tmp_path, toy)
    assert row["clean"], row
