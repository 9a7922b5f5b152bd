"""A run of veRL's v1 trainer on a Ray where another one's TransferQueue is: a Ray has one."""

import pytest


@pytest.mark.runtime
@pytest.mark.nightly
def test_a_second_run_of_v1_on_one_ray_is_refused(run, fresh_ray_token):
    import ray

    from trinity_compat.run.supervise.cluster import local_ray
    from trinity_compat.trainer.verl_v1 import queue

    class Controller:
        """In place of the other run's."""

    with local_ray({}, gpus=0, cpus=32) as cluster:
        name = {"name": queue._CONTROLLER, "namespace": queue._NAMESPACE}
        other = ray.remote(Controller).options(num_cpus=0, **name).remote()
        options = ("--set", "trinity_compat.trainer=v1")
        one = run("trainer.total_training_steps=1", options=options, env={"RAY_ADDRESS": cluster.address})
        one.start().finish()
        del other
    assert one.code == 2, one.out + one.err
    assert len(one.errors) == 1 and "another run on this Ray trains with veRL's v1" in one.errors[0]
    assert "unset RAY_ADDRESS" in one.err
    assert one.trained_steps() == 0
