"""A GPU without flash-attn: sdpa is laid over and said, or the run is refused before it starts."""

from pathlib import Path

import pytest
from toy_plan import SCRIPT, planned

from trinity_compat.common.errors import UserError
from trinity_compat.run import dry_run
from trinity_compat.run.checks import start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.plan import devices, overlay, refusals
from trinity_compat.run.plan.source import RunOptions

MODEL = "actor_rollout_ref.model.override_config.attn_implementation"
ULYSSES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"


@pytest.fixture(params=[True, False])
def has_flash(request, monkeypatch):
    monkeypatch.setattr(overlay, "flash_attn_installed", lambda: request.param)
    return request.param


@pytest.fixture
def without_flash(monkeypatch):
    monkeypatch.setattr(overlay, "flash_attn_installed", lambda: False)


def implementation(made):
    model = made.spec.verl["actor_rollout_ref"]["model"]
    return (model.get("override_config") or {}).get("attn_implementation")


def test_sdpa_takes_its_place_where_it_is_missing_and_that_is_said(has_flash):
    made = planned(device="cuda", mode="both")
    assert implementation(made) == (None if has_flash else "sdpa")
    assert made.spec.verl["actor_rollout_ref"]["model"]["use_remove_padding"] is has_flash
    assert (overlay.FLASH_ATTN_INSTALL in "\n".join(made.notes)) is not has_flash


def test_the_critic_gets_sdpa_too(without_flash):
    critic = planned(device="cuda", mode="both").spec.verl["critic"]["model"]
    assert critic["override_config"]["attn_implementation"] == "sdpa"


def test_what_the_launch_asks_for_stays_if_it_needs_no_flash_attn(without_flash):
    made = planned(f"+{MODEL}=eager", device="cuda", mode="both")
    assert implementation(made) == "eager"


def test_a_cpu_run_does_not_mention_flash_attn(without_flash):
    assert overlay.FLASH_ATTN_INSTALL not in "\n".join(planned().notes)


def test_ulysses_needs_it_and_is_refused_before_anything_starts(without_flash):
    made = planned(f"{ULYSSES}=2", "trainer.n_gpus_per_node=8", device="cuda", mode="both")
    assert implementation(made) is None
    with pytest.raises(UserError, match="needs flash-attn") as refused:
        overlay.check_flash_attn(made.spec.verl, "cuda")
    assert overlay.FLASH_ATTN_INSTALL in str(refused.value)


def test_a_run_with_sdpa_may_start(without_flash):
    overlay.check_flash_attn(planned(device="cuda", mode="both").spec.verl, "cuda")


def test_the_preflight_check_refuses_a_run_that_needs_flash_attn(without_flash, monkeypatch):
    from trinity_compat.common import optional_packages
    from trinity_compat.run.checks import preflight

    made = planned(f"{ULYSSES}=2", "trainer.n_gpus_per_node=8", device="cuda", mode="both")
    monkeypatch.setattr(optional_packages, "need_for_a_run", lambda: None)
    with pytest.raises(UserError, match="needs flash-attn"):
        preflight.check(made)


@pytest.fixture
def shown(monkeypatch):
    """The kind of device that this machine shows."""
    here = {"device": "cpu"}
    monkeypatch.setattr(devices, "detect_device", lambda: here["device"])
    return here


@pytest.mark.parametrize(
    ("device", "dry_run", "counts"),
    [("cpu", True, False), ("cpu", False, True), ("cuda", True, True), ("cuda", False, True)],
)
def test_a_dry_run_for_another_machine_s_gpus_assumes_it_there(without_flash, shown, device, dry_run, counts):
    """Of a run, and of a dry run on a machine with GPUs, this machine's packages count."""
    shown["device"] = device
    made = planned(device="cuda", mode="both", dry_run=dry_run)
    assert implementation(made) == ("sdpa" if counts else None)
    assert made.spec.verl["actor_rollout_ref"]["model"]["use_remove_padding"] is not counts


def assumed(tmp_path, *words):
    """The line of a dry run that says what it assumes."""
    lines = dry_run.lines(str(SCRIPT), words, RunOptions(dry_run=True, device="cuda", job=str(tmp_path)))
    return [line for line in lines if line.startswith("assumed")]


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(start_check, "check", lambda *_, **__: StartReport())


def test_assumed_packages_are_named_on_one_line(without_flash, shown, unchecked, tmp_path, monkeypatch):
    said = "assumed   {} on the machine with the GPUs; not installed here, where there are none"
    mark = f" (a run without flash-attn takes profile {overlay.FLASH_ATTN_PROFILE})"
    assert assumed(tmp_path / "a") == [said.format("flash-attn") + mark]
    assert assumed(tmp_path / "b", f"+{MODEL}=eager") == []
    monkeypatch.setattr(refusals, "media_held", lambda verl, cwd: {"images": "they hold images"})
    monkeypatch.setattr(refusals, "find_spec", lambda module: None)
    both = "torchvision, qwen-vl-utils"
    assert assumed(tmp_path / "c", f"+{MODEL}=eager") == [said.format(both)]
    assert assumed(tmp_path / "d") == [said.format(f"flash-attn, {both}") + mark]
    shown["device"] = "cuda"
    with pytest.raises(UserError, match="not installed here"):
        assumed(tmp_path / "e")


def test_the_profile_s_words_are_in_the_repository():
    assert (Path(__file__).parents[2] / "overrides" / f"{overlay.FLASH_ATTN_PROFILE}.yaml").is_file()
