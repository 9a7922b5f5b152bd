"""A logger that cannot work is said before the run starts, with the way out."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.run.checks import loggers
from trinity_compat.translate.verl_names import LOGGERS


@pytest.fixture(autouse=True)
def nobody_s_machine(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*names):
    loggers.check({"trainer": {"logger": list(names)}})


def test_console_file_and_tensorboard_need_nothing():
    check("console", "file", "tensorboard")
    loggers.check({"trainer": {"logger": "console"}})


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("wandbb", "veRL has no such logger", "wandb, "),
        ("clearml", "clearml is not installed", "pip install clearml"),
        ("wandb", "api_key not configured", "WANDB_MODE=offline"),
    ],
)
def test_what_cannot_log_is_refused_with_the_way_out(name, said, hint):
    with pytest.raises(UserError) as told:
        check("console", name)
    assert said in told.value.message
    assert hint in told.value.hint


@pytest.mark.parametrize("how", ["key", "mode", "netrc", "own server", "wandb offline"])
def test_wandb_with_a_key_or_offline_may_start(monkeypatch, nobody_s_machine, how):
    if how == "key":
        monkeypatch.setenv("WANDB_API_KEY", "k")
    if how == "mode":
        monkeypatch.setenv("WANDB_MODE", "offline")
    if how == "netrc":
        (nobody_s_machine / "netrc").write_text("machine api.wandb.ai login user password k\n")
    if how == "own server":
        monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8443/x")
        (nobody_s_machine / "netrc").write_text("machine wandb.example.org login user password k\n")
    if how == "wandb offline":
        (nobody_s_machine / "wandb").mkdir()
        (nobody_s_machine / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    check("wandb")


@pytest.mark.verl
def test_the_loggers_are_those_of_the_pinned_verl():
    from verl.utils.tracking import Tracking

    assert set(LOGGERS) - {"tracking"} == set(Tracking.supported_backend)  # an older name of wandb
