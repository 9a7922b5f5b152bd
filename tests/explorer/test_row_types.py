"""Values of a dataset's rows: stock veRL on one side, our whole chain on the other, the same types.

Stock: its dataset, ``collate_fn``, ``DataProto``, ``AgentLoopWorker._compute_score`` up to the function.
Ours: task stream, scoring process, database, train batch.
"""

import asyncio
import dataclasses
import datetime as dt
import pickle
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from explorer_job import verl_config
from omegaconf import OmegaConf

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.data.tasks import check, train_stream
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.rewards.processes.pool import make_scorer
from trinity_compat.job.run_spec import ScoringSpec

sys.path.append(str(Path(__file__).parents[1] / "buffer"))
from test_typed_json import same

pytestmark = pytest.mark.runtime

ROWS = 4
UTC = dt.UTC

# What a reward function is called with, written down by the function itself.
REWARD = """
import pickle
def compute_score(data_source, solution_str, ground_truth, extra_info, **more):
    with open({out!r}, "wb") as file:
        pickle.dump((data_source, ground_truth, extra_info), file)
    return 1.0
"""

# A dataset of the user's: what no Parquet file can hold.
DATASET = """
import collections, datetime, decimal, uuid
import numpy as np
import pandas
import torch
from verl.utils.dataset.rl_dataset import RLHFDataset

class Rows(RLHFDataset):
    def __getitem__(self, item):
        row = super().__getitem__(item)
        row["extra_info"] = {
            **row["extra_info"],
            "keys": {1: "a", "1": "b", None: 2, (1, 2): 3, 2.5: 4, True and b"k": 5},
            "set": {1, "x"}, "frozen": frozenset([datetime.date(2020, 1, 1)]), "pair": (1, (2, [3])),
            "objects": np.array([{"a": (1,)}, None, np.arange(2)], dtype=object),
            "scalars": [np.int8(1), np.uint64(2**64 - 1), np.float16("nan"), np.float32(0.5), np.bool_(True),
                        np.str_("t"), np.bytes_(b"b"), np.complex64(1j), np.longdouble("1.1")],
            "moments": [np.datetime64("2020-01-01"), np.datetime64("NaT"), np.timedelta64(3, "h")],
            "missing": [pandas.NaT, pandas.NA],
            "small": np.arange(3, dtype="i2"), "large": np.zeros((40, 40)), "zero": np.empty((2, 0)),
            "stamp": pandas.Timestamp("2020-10-25T00:30", tz="UTC").tz_convert("Europe/Berlin"),
            "tensor": torch.tensor([[1.5]], dtype=torch.bfloat16),
            "id": uuid.UUID(int=item), "decimal": decimal.Decimal("1.50"), "array": bytearray(b"ab"),
            "far": float("inf"), "nan": float("nan"), "big": 10**30, "none": None, "complex": 1j,
        }
        row["pair"], row["tags"], row["of"] = (1, 2), ["a", "bb"], {1: {2}}
        row["stamp"] = pandas.Timestamp(1)
        row["scalar"] = np.float32(0.5)
        return row
"""


def parquet(toy, folder):
    table = pq.read_table(toy / "data" / "train.parquet").slice(0, ROWS)
    moment = dt.datetime(2020, 7, 1, 12, 30, 15, 250, tzinfo=UTC)
    inside = pa.struct(
        [
            ("index", pa.int64()),
            ("zone", pa.timestamp("us", "Europe/Berlin")),
            ("offset", pa.timestamp("us", "+05:30")),
            ("nanos", pa.timestamp("ns")),
            ("naive", pa.timestamp("ms")),
            ("date", pa.date32()),
            ("time", pa.time64("us")),
            ("span", pa.duration("us")),
            ("short", pa.duration("ns")),
            ("price", pa.decimal128(10, 3)),
            ("raw", pa.binary()),
            ("half", pa.float16()),
            ("nan", pa.float64()),
            ("huge", pa.uint64()),
            ("none", pa.null()),
            ("deep", pa.list_(pa.struct([("days", pa.list_(pa.date32())), ("price", pa.decimal256(50, 1))]))),
        ]
    )
    rows = [
        {
            "index": index,
            "zone": moment,
            "offset": moment,
            "nanos": 1577836800000000001 + index,
            "naive": moment.replace(tzinfo=None),
            "date": moment.date(),
            "time": moment.time(),
            "span": dt.timedelta(days=-1, microseconds=5),
            "short": 7,
            "price": Decimal("1.500"),
            "raw": b"a\0b\0",
            "half": 1.5,
            "nan": float("nan"),
            "huge": 2**64 - 1,
            "none": None,
            "deep": [{"days": [moment.date(), None], "price": Decimal("2.5")}, None],
        }
        for index in range(ROWS)
    ]
    truth = pa.struct([("style", pa.string()), ("ground_truth", pa.timestamp("us", "UTC"))])
    truths = [{"style": "rule", "ground_truth": moment}] * ROWS
    columns = {
        "extra_info": pa.array(rows, inside),
        "reward_model": pa.array(truths, truth),
        "when": pa.array([moment] * ROWS, pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.5")] * ROWS, pa.decimal128(5, 1)),
        "count": pa.array([3] * ROWS),
        "tags": pa.array([["a", "b"]] * ROWS),
        "raw": pa.array([b"ab"] * ROWS),
    }
    kept = [name for name in table.column_names if name not in columns]
    table = table.select(kept)
    for name, column in columns.items():
        table = table.append_column(name, column)
    path = folder / "odd.parquet"
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="module", params=["parquet", "class"])
def config(request, toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "reward.py").write_text(REWARD.format(out=str(folder / "seen")))
    (folder / "rows.py").write_text(DATASET)
    words = [
        f"data.train_files={parquet(toy, folder)}",
        "data.train_batch_size=2",
        "data.shuffle=False",
        f"reward.custom_reward_function.path={folder}/reward.py",
        "reward.num_workers=1",
    ]
    if request.param == "class":
        words += [f"data.custom_cls.path={folder}/rows.py", "data.custom_cls.name=Rows"]
    return OmegaConf.create(verl_config(toy, *words)), folder / "seen"


@pytest.fixture(scope="module")
def stock(config, tokenizer):
    """A batch of stock's: what its trainer hands to generation, each row twice, through Ray's pickles."""
    from verl import DataProto
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils.dataset.rl_dataset import collate_fn

    data = config[0].data
    dataset = create_rl_dataset(data.train_files, data, tokenizer, None, is_train=True)
    batch = DataProto.from_single_dict(collate_fn([dataset[0], dataset[1]]))
    return pickle.loads(pickle.dumps(batch.repeat(2, interleave=True)))


@pytest.fixture(scope="module")
def tasks(config, tokenizer):
    stream = train_stream(config[0], tokenizer, None)
    check(stream, "data.train_files")
    return stream


def answer(tokenizer):
    ids = tokenizer.encode("12")
    return Trajectory([1, 2], ids, [1] * len(ids), [0.0] * len(ids), extra={"turn_scores": []})


def by_stock(config, stock, tokenizer):
    """Through ``AgentLoopWorker._compute_score`` and ``RewardLoopWorker``, as the run has them in actors."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.utils.model import compute_position_id_with_mask

    async def go():
        rewards = RewardLoopWorker(config, None)

        async def remote(data):
            return await rewards.compute_score(pickle.loads(pickle.dumps(data)))

        worker = SimpleNamespace(
            reward_loop_worker_handles=[SimpleNamespace(compute_score=SimpleNamespace(remote=remote))],
            _compute_multi_modal_inputs=lambda output, ids: {},
            _compute_position_ids=lambda ids, mask, *_: compute_position_id_with_mask(mask),
            _get_mm_processor_kwargs=lambda *_: {},
        )
        part = answer(tokenizer)
        output = AgentLoopOutput(
            prompt_ids=part.prompt_ids,
            response_ids=part.response_ids,
            response_mask=part.response_mask,
            num_turns=part.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields={**part.extra},
        )
        kwargs = {name: column[0] for name, column in stock.non_tensor_batch.items()}
        await AgentLoopWorker._compute_score(worker, [output], kwargs=kwargs)

    asyncio.run(go())


def by_ours(config, task, tokenizer):
    async def go():
        with closing(make_scorer(config, ScoringSpec(timeout_s=120))) as scorer:
            return await scorer.group(task, [answer(tokenizer)])

    (score,) = asyncio.run(go())
    assert score.reward == 1.0


def seen(path):
    found = pickle.loads(path.read_bytes())
    path.unlink()
    return found


def differences(one, other, place="it"):
    """Places of what is not the same."""
    if type(one) is type(other) is dict and list(one) == list(other):
        return [each for key in one for each in differences(one[key], other[key], f"{place}[{key!r}]")]
    return [] if same(one, other) else [f"{place}: {one!r} ({type(one)}), {other!r} ({type(other)})"]


def test_a_reward_function_is_called_with_the_same(config, stock, tasks, tokenizer):
    by_stock(config[0], stock, tokenizer)
    theirs = seen(config[1])
    by_ours(config[0], tasks.task(0), tokenizer)
    ours = seen(config[1])
    assert theirs[2]["deep"][0]["days"][0] == dt.date(2020, 7, 1)
    assert differences(dict(enumerate(theirs)), dict(enumerate(ours))) == []


def test_an_agent_loop_is_called_with_the_same(config, stock, tasks, monkeypatch):
    called = []

    async def run(self, sampling, about, *, trace, **fields):
        called.append(fields)
        raise LookupError

    monkeypatch.setattr("trinity_compat.explorer.agents.verl_loops._Worker._run_agent_loop", run)
    monkeypatch.setattr("trinity_compat.explorer.agents.verl_loops._Worker.__init__", lambda *_: None)
    job = pickle.loads(pickle.dumps(RolloutTask(0, tasks.task(0), 1, {})))
    with pytest.raises(LookupError):
        asyncio.run(AgentLoops(config[0], None).run(job))
    (ours,) = called
    theirs = {name: column[0] for name, column in stock.non_tensor_batch.items()}
    assert ours.pop("agent_name") == "single_turn_agent"
    assert differences(dict(sorted(theirs.items())), dict(sorted(ours.items()))) == []


def test_a_reward_manager_finds_the_same_columns(stock, tasks, tokenizer):
    from trinity_compat.explorer.rewards.scoring import to_dataproto

    ours = to_dataproto(tasks.task(0), answer(tokenizer)).non_tensor_batch
    for name, column in stock.non_tensor_batch.items():
        theirs = np.array([column[0]])  # AgentLoopWorker._compute_score
        assert same(ours[name], theirs), name


@pytest.fixture
def claimed(tasks, tmp_path):
    """Two groups of two answers, out of the database."""
    ids = np.array([3, 4], np.int32)
    part = Experience(0, ids, ids, np.ones(2, np.uint8), np.zeros(2, np.float32), 1.0, 0, 0)
    parts = (part, dataclasses.replace(part, run=1))
    buffer = open_buffer(f"sqlite:///{tmp_path}/x.db")
    buffer.put_groups([Group(f"g{n}", n, tasks.task(n), 1, parts) for n in (0, 1)])
    claim = buffer.claim_groups(2, owner="t", step=1)
    buffer.close()
    return claim.groups


def test_the_train_batch_has_the_same(stock, claimed):
    from trinity_compat.trainer.batch import task_columns

    ours = task_columns([group for group in claimed for _ in range(2)])
    assert list(ours) == ["data_source", "reward_model", "extra_info", "raw_prompt"]
    for name, column in ours.items():
        assert column.dtype == object
        theirs = stock.non_tensor_batch[name]
        assert differences(dict(enumerate(theirs)), dict(enumerate(column))) == [], name
