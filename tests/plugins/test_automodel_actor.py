"""The actor of supervised launches with automodel, built as veRL's worker builds it."""

import pytest
from omegaconf import OmegaConf

from trinity_compat.verl_config.pinned import compose_pinned

pytestmark = pytest.mark.verl
ACTOR = "actor_rollout_ref.actor"


def test_its_engine_and_optimizer_are_automodel_s():
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import AutomodelEngineConfig, AutomodelOptimizerConfig

    told = {
        f"{ACTOR}.automodel.tp_size": 2,
        f"{ACTOR}.optim.eps": 1e-5,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.rollout_n": 1,
    }
    section = compose_pinned(told, "sft_automodel")["actor_rollout_ref"]["actor"]
    actor = omega_conf_to_dataclass(OmegaConf.create(section))
    assert isinstance(actor.engine, AutomodelEngineConfig)
    assert (actor.engine.strategy, actor.engine.tp_size) == ("automodel", 2)
    assert isinstance(actor.optim, AutomodelOptimizerConfig) and actor.optim.eps == 1e-5
    actor.engine.use_dynamic_bsz = True  # as the worker sets it
