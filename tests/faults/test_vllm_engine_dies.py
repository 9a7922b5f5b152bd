import pytest


def engine(run):
    """The Ray actor that holds the engine; Ray names its process after the class."""
    return [process for process in run.alive() if "ray::RolloutWorker" in " ".join(process.cmdline())]


@pytest.mark.runtime
def test_the_run_ends_with_the_explorer_s_reason(run):
    one = run("trainer.total_training_steps=1000").start()
    one.wait_for(lambda: one.trained_steps() > 0)
    found = engine(one)
    assert found, [process.cmdline() for process in one.alive()]
    for process in found:
        process.kill()
    one.ends()
    assert one.code == 1
    assert len(one.errors) == 1 and "the explorer ended" in one.errors[0]
    one.nothing_is_left_and_nothing_lost()
