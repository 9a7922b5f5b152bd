"""Published figures of memory against the estimate, through a launch's own keys."""

import json
from pathlib import Path

import pytest
from advise_launch import LAUNCH

from trinity_compat.advise import memory, model_shape
from trinity_compat.job.known_models import stand_in
from trinity_compat.run import dry_run
from trinity_compat.run.plan import estimates
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions

PUBLISHED = json.loads(Path(__file__).with_name("published_memory.json").read_text())
REPORTS = PUBLISHED["reports"]


def ours(report, tmp_path, monkeypatch):
    """GiB that torch has allocated on a GPU of the trainer, by our estimate."""
    monkeypatch.chdir(tmp_path)
    if report["loss"] == "transformers":
        monkeypatch.setattr(memory, "LOGIT_BYTES", dict.fromkeys(memory.LOGIT_BYTES, 14))
    micro = {key: value for key, value in LAUNCH.items() if "micro_batch" not in key}
    base = micro if any("max_token_len" in key for key in report["keys"]) else LAUNCH
    words = " ".join(f"{key}={value}" for key, value in (base | report["keys"]).items())
    Path("run.sh").write_text(f"python3 -m verl.trainer.main_ppo {words}\n")
    options = RunOptions(dry_run=True, device="cuda")
    ((source, rest),) = dry_run.sources("run.sh", (), options)
    verl = make_plan(source.config, rest, cwd=tmp_path, device="cuda").spec.verl
    shape, _ = estimates.shape_of(verl, tmp_path)
    training, why = estimates.training_of(verl)
    assert training, why
    return memory.of_trainer(shape, training, report["gpus"]).allocated


@pytest.mark.parametrize("report", [each for each in REPORTS if each["held"]], ids=lambda each: each["name"])
def test_a_published_figure_is_met_within_15_percent(report, tmp_path, monkeypatch):
    assert ours(report, tmp_path, monkeypatch) == pytest.approx(report["seen_gib"], rel=0.15)


@pytest.mark.parametrize("report", PUBLISHED["engines"], ids=lambda each: each["name"])
def test_a_published_cache_of_an_engine_is_met_within_15_percent(report):
    shape = model_shape.of_config(stand_in(report["model"]).config)
    sizes = {name: report[name] for name in ("width", "slots", "utilization", "card_gib")}
    found = memory.of_engine(shape, **sizes)
    assert found.kv_tokens == pytest.approx(report["seen_tokens"], rel=0.15)


@pytest.mark.parametrize("report", REPORTS, ids=lambda each: each["name"])
def test_the_docs_say_what_was_seen_and_how_far_off_it_is(report, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "advise.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {report['name']} |"))
    seen, here, off = (cell.strip().replace("−", "-") for cell in row.split("|")[2:5])
    found = ours(report, tmp_path, monkeypatch)
    assert (float(seen), float(here)) == (round(report["seen_gib"], 1), pytest.approx(found, abs=0.06))
    assert float(off.removesuffix(" %")) == pytest.approx(100 * (found / report["seen_gib"] - 1), abs=0.6)
