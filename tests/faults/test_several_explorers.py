"""One of two explorers is killed: the other makes its tasks, and the run ends well."""

import pytest

STEPS = 12


def explorer(one, index):
    """The process of explorer ``index``."""
    found = [p for p in one.alive() if p.cmdline()[-3:] == [str(one.job), "--index", str(index)]]
    return found[0] if found else None


@pytest.mark.runtime
def test_one_of_two_explorers_is_killed_and_the_other_finishes_its_tasks(run):
    one = run(f"trainer.total_training_steps={STEPS}", options=("--explorers", "2")).start()
    one.wait_for(lambda: one.trained_steps() > 2)
    explorer(one, 1).kill()
    one.finish()
    assert one.code == 0, one.err[-3000:]
    assert "the explorer_1 was killed by SIGKILL" in one.out
    assert "the other explorers take its tasks" in one.out
    one.nothing_is_left_and_nothing_lost()
    steps = one.sql(
        "select trainer_step, count(distinct group_id), count(*) from ledger group by 1 order by 1"
    )
    assert steps == [(step, 8, 64) for step in range(1, STEPS + 1)]
    tasks = one.sql("select task_no from task_groups where kind = 'train' order by 1")
    assert tasks == [(number,) for number in range(8 * STEPS)]
    assert one.sql("select count(*) from ledger") == one.sql(
        "select count(distinct experience_id) from ledger"
    )
