import re


def test_it_is_said_before_anything_starts(run, tmp_path):
    one = run("actor_rollout_ref.model.path=/nowhere/model").start().finish()
    assert one.code == 2
    (told,) = one.errors
    assert re.fullmatch(r"error: \S+\.sh: actor_rollout_ref.model.path=/nowhere/model: no such folder", told)
    assert not one.job.exists()


def test_a_folder_that_is_no_model(run, tmp_path):
    (tmp_path / "empty").mkdir()
    one = run(f"actor_rollout_ref.model.path={tmp_path}/empty").start().finish()
    assert one.code == 2
    assert "no config.json" in one.errors[0]
