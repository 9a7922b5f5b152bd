import pytest


@pytest.mark.runtime
def test_ray_s_own_reason_is_told(run):
    one = run(options=["--set", "+ray_kwargs.ray_init.object_store_memory=1"]).start().finish()
    assert one.code == 1
    assert len(one.errors) == 1
    assert one.errors[0].startswith("error: Ray does not start: ")
    assert "object store memory" in one.errors[0].lower()
    assert one.alive() == []
