"""Dashboards built on stock veRL keep working: what it logs on the toy, ours logs under the same names.

``metric_names.txt`` is frozen: the names that stock veRL 0.9.1 (v0) logs on the GRPO toy, with validation
and a checkpoint; ``metric_names_ppo.txt`` for the PPO toy with a critic. ``benchmarks/parity/record.py``
made them and the recordings of both sides beside them. ``metric_names_v1.txt`` is what stock's v1 trainer
(``trainer.use_v1=True``) logs on the GRPO toy; ours on v0 adds the names of v1 that it can, and on v1 logs
all (``tests/trainer/test_trainer_runs.py``). Whole runs of today are held against the same names in
``tests/faults/test_undisturbed_runs.py``.
"""

from pathlib import Path

import pytest

from trinity_compat.compare.sources import read_runs

HERE = Path(__file__).parent
FROZEN = {"grpo": "metric_names.txt", "ppo": "metric_names_ppo.txt"}
# What only a rollout engine inside the trainer's processes can log: name → reason.
CANNOT_EXIST: dict[str, str] = {}
# What v1 logs and ours does not: name → reason. docs/measurements/parity.md says so too.
ONLY_V1 = {
    "val-aux/toy/sort/acc_success_only/mean@1": "v1's validation tells failed rollouts apart",
}


def frozen(algorithm):
    return set((HERE / FROZEN[algorithm]).read_text().split())


def recorded(algorithm, side):
    [run] = read_runs(HERE / "recorded" / f"{algorithm}-{side}.jsonl")
    return set(run.series)


@pytest.mark.parametrize("algorithm", FROZEN)
def test_the_frozen_names_are_those_of_the_recorded_stock_run(algorithm):
    assert recorded(algorithm, "stock") == frozen(algorithm)


@pytest.mark.parametrize("algorithm", FROZEN)
def test_our_recorded_run_has_every_name_of_stock(algorithm):
    assert frozen(algorithm) - recorded(algorithm, "ours") == set(CANNOT_EXIST) & frozen(algorithm)


def test_the_frozen_names_of_v1_are_those_of_its_recorded_run():
    assert recorded("grpo", "stock_v1") == set((HERE / "metric_names_v1.txt").read_text().split())


def test_our_recorded_run_has_every_name_of_v1_but_those_listed():
    assert recorded("grpo", "stock_v1") - recorded("grpo", "ours") == set(ONLY_V1)
