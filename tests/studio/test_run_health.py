"""A run in words: what it is, whether it goes well, which side waits; its logs as files."""

import json

import pytest
from studio_jobs import SECRET, client_of, make_job

from trinity_compat.run.job_dir.alerts import Alert
from trinity_compat.run.job_dir.start_record import RecordedStart, StartEnd
from trinity_compat.studio import health, step_time
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.series import Metrics


def metrics_of(trainer, explorer):
    """Three steps of 10 s on either side, of which these are waiting; None: it logged nothing."""
    found = Metrics()
    rows = {"timing_s/step": 10.0, "timing_s/gen": trainer or 0.0, "timing_s/buffer_wait": trainer or 0.0}
    if trainer is not None:
        found.rows["trainer"] = dict.fromkeys((1, 2, 3), rows)
    if explorer is not None:
        row = {"time/rollout": 10.0 - explorer, "time/wait": explorer}
        found.rows["explorer_0"] = dict.fromkeys((1, 2, 3), row)
    return found


@pytest.mark.parametrize(
    ("trainer", "explorer", "mode", "said"),
    [
        (4.0, 0.5, "both", "The explorer is the bottleneck: the trainer waits 40%"),
        (0.5, 6.0, "both", "The trainer is the bottleneck: the explorer waits 60%"),
        (5.0, 5.0, "both", "the trainer 50% of its time, the explorer 50%. A synchronizer.sync_offset of 1"),
        (0.5, 0.5, "both", "Neither side waits more than 10%"),
        (5.0, 7.0, "colocate", "the explorer has 30% of the time"),
    ],
)
def test_which_side_waits_is_one_sentence(trainer, explorer, mode, said):
    assert said in step_time.bottleneck(metrics_of(trainer, explorer), mode)


@pytest.mark.parametrize(("trainer", "explorer"), [(None, None), (4.0, None), (None, 4.0)])
def test_of_one_side_alone_nothing_is_said(trainer, explorer):
    assert step_time.bottleneck(metrics_of(trainer, explorer), "both") == ""


def test_the_trainers_memory_and_use_are_said_where_they_were_logged():
    found = metrics_of(1.0, 1.0)
    assert step_time.device_use(found) == ""
    found.rows["trainer"][3] = {
        "timing_s/step": 1.0,
        "perf/max_memory_reserved_gb": 71.34,
        "perf/mfu/actor": 0.37,
    }
    said = "The trainer uses 71.3 GB of GPU memory at most and 37% of its GPUs' peak FLOPs (MFU)."
    assert step_time.device_use(found) == said


OFF = [Alert("reward", "fell", "critic/score/mean", 7), Alert("disk", "full")]


@pytest.mark.parametrize(
    ("state", "step", "alerts", "failure", "verdict"),
    [
        ("running", 0, [], "", ("plain", "No step has finished yet")),
        ("running", 9, [], "", ("good", "Healthy after step 9")),
        ("running", 9, OFF, "", ("bad", "2 things are wrong, since step 7")),
        ("running", 9, OFF[1:], "", ("bad", "One thing is wrong")),
        ("stopping", 9, [], "", ("good", "Healthy after step 9")),
        ("stopped", 9, [], "", ("plain", "Stopped after step 9")),
        ("failed", 9, OFF, "no room", ("bad", "Failed after step 9: no room")),
        ("done", 9, [], "", ("good", "Done: all 9 steps are trained")),
        ("new", 0, [], "", ("plain", "")),
    ],
)
def test_the_verdict_on_a_run(state, step, alerts, failure, verdict):
    assert health.verdict(state, step, alerts, failure) == verdict


def test_the_page_and_the_row_say_what_the_run_is(tmp_path):
    root = make_job(tmp_path / "job", state="running")
    spec = json.loads((root / "config" / "run.json").read_text())
    spec["device"] = "cuda"
    spec["verl"] = {
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "model": {"path": "/models/Qwen/Qwen3-4B"},
            "rollout": {"nnodes": 1, "n_gpus_per_node": 2, "tensor_model_parallel_size": 1},
        },
        "data": {"train_files": ["/data/gsm8k/train.parquet", "/data/math/train.parquet"]},
        "trainer": {"nnodes": 1, "n_gpus_per_node": 6},
    }
    (root / "config" / "run.json").write_text(json.dumps(spec))
    job = Jobs(tmp_path).get("job")
    found = dict(health.facts(job.spec, root))
    assert found.pop("owner")
    assert found == {
        "algorithm": "grpo",
        "model": "Qwen/Qwen3-4B",
        "data": "gsm8k/train.parquet and 1 more",
        "GPUs": "6 trainer + 2 explorer GPUs",
        "mode": "both (sides apart)",
    }
    studio = client_of(tmp_path)
    assert "6 trainer + 2 explorer GPUs</span>" in studio.get("/run/job").text
    assert "grpo · Qwen/Qwen3-4B · gsm8k/train.parquet and 1 more · 6 trainer + 2" in studio.get("/").text


def test_the_time_of_a_start_ends_with_the_run():
    assert health.elapsed([]) == ""
    assert health.elapsed([RecordedStart(100.0, (), StartEnd(0, "", "", 160.0))]) == "60 s"


def test_a_log_is_a_file_with_its_secrets_masked(tmp_path):
    make_job(tmp_path / "job")
    studio = client_of(tmp_path)
    answer = studio.get("/log/job?name=trainer")
    assert answer.text.startswith("loading 100%\nred\n") and SECRET not in answer.text
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''trainer.log"
    for name in ("", "none", "../config/run", "/etc/passwd"):
        assert studio.get("/log/job", params={"name": name}).status_code == 404
