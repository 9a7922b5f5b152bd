"""Models are looked for before a run starts."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.checks.preflight import check_models


@pytest.mark.parametrize(
    ("algorithm", "critic", "wanted"),
    [("grpo", None, False), ("gae", None, True), ("grpo", True, True), ("gae", False, False)],
)
def test_the_critic_s_model_is_looked_for_where_the_run_has_a_critic(tmp_path, algorithm, critic, wanted):
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "config.json").write_text("{}")
    verl = {
        "algorithm": {"adv_estimator": algorithm},
        "actor_rollout_ref": {"model": {"path": "./actor"}},
        "critic": {"enable": critic, "model": {"path": "./critic"}},
    }
    if not wanted:
        check_models(verl, cwd=tmp_path)
        return
    with pytest.raises(UserError, match=r"critic.model.path=./critic: no such folder"):
        check_models(verl, cwd=tmp_path)
