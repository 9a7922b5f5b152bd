"""A teacher in the reference's place."""

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.verl  # verl is imported along the way


def test_the_reference_is_built_with_the_teachers_weights(monkeypatch):
    from verl.workers.engine_workers import TrainingWorkerConfig

    from trinity_compat.trainer import training_processes

    monkeypatch.setattr(training_processes, "omega_conf_to_dataclass", lambda named: named)
    model = OmegaConf.create({"path": "policy", "hf_config_path": "policy", "trust_remote_code": True})
    own = TrainingWorkerConfig(model_type="language_model", model_config=model)
    made = training_processes._teacher_worker(lambda config: config, model, "teacher", own)
    assert (made.model_config.path, made.model_config.hf_config_path) == ("teacher", None)
    assert made.model_config.trust_remote_code and made.model_type == "language_model"
    assert model.path == "policy"
