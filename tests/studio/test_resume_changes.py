"""What a resume would do otherwise than the run's last start: shown first, and given to the resume."""

import json
import os
import re
import sys

import pytest
from studio_jobs import SECRET, client_of, make_job
from test_stop_and_resume import job_of, post, until

from trinity_compat.run.job_dir.environment import RecordedEnvironment
from trinity_compat.studio import control

SCRIPT = """#!/bin/bash
export NCCL_DEBUG=INFO
python3 -m verl.trainer.main_ppo \\
    data.train_files=$DATA \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    trainer.experiment_name=$(hostname) \\
    reward.api_key=sk-1234
"""
WORDS = {
    "data.train_files=": "run.sh:4",
    "actor_rollout_ref.actor.optim.lr=1e-6": "run.sh:5",
    "trainer.experiment_name=machine": "run.sh:6",
    "reward.api_key=***": "run.sh:7",
    "trainer.total_epochs=3": "--set",
}


@pytest.fixture
def root(tmp_path):
    root = make_job(tmp_path / "job", state="stopped", evil=False)
    (tmp_path / "run.sh").write_text(SCRIPT)
    record = {
        "script": "run.sh",
        "script_arguments": [],
        "module": "verl.trainer.main_ppo",
        "arguments": [{"text": text, "where": where} for text, where in WORDS.items()],
        "started_in": str(tmp_path),
        "options": {"sets": ["trainer.total_epochs=3"], "mains": {}},
    }
    (root / "config" / "launch.json").write_text(json.dumps(record))
    return root


def rows(root):
    """The cells of the page's tables, each row a list."""
    page = client_of(root.parent).get("/resume/job").text.replace("<wbr>", "")
    found = re.findall(r'<tr><th scope="row">(.*?)</tr>', page)
    return [re.findall(r">([^<]+)<", row) for row in found], page


def edit(root, before, after):
    script = root.parent / "run.sh"
    assert before in script.read_text()
    script.write_text(script.read_text().replace(before, after))


def test_an_unchanged_script_is_said_to_be_the_recorded_one(root):
    found, page = rows(root)
    assert found == [] and "The configuration is the recorded one" in page


def test_a_changed_word_an_added_and_a_removed_one_are_listed_with_their_place(root):
    edit(root, "lr=1e-6", "lr=3e-6")
    edit(root, "    reward.api_key=sk-1234\n", f"    +reward.other_key={SECRET}\n")
    found, page = rows(root)
    assert found == [
        ["+reward.other_key", "run.sh:7", "–", "***"],
        ["actor_rollout_ref.actor.optim.lr", "run.sh:5", "1e-6", "3e-6"],
        ["reward.api_key", "***", "–"],
    ]
    assert SECRET not in page


def test_a_script_is_read_and_never_executed(root):
    edit(root, "export", f"touch {root.parent}/ran; export")
    edit(root, "$(hostname)", f"$(hostname; touch {root.parent}/ran)")
    assert rows(root)[0] == [] and not (root.parent / "ran").exists()


def test_a_script_that_starts_the_module_no_more_is_said_so(root):
    edit(root, "main_ppo", "main_generation")
    assert "starts no verl.trainer.main_ppo any more" in rows(root)[1]


@pytest.mark.parametrize("record", ["{}", '{"script": "run.sh", "arguments": 3}', '{"yaml": "none.yaml"}'])
def test_a_record_that_tells_nothing_is_no_error(root, record):
    (root / "config" / "launch.json").write_text(record)
    record = json.loads(record)
    assert control._since_last_start(job_of(client_of(root.parent)), root.parent).unread


def test_a_yaml_is_compared_by_its_fields(root):
    recorded = "algorithm:\n  kl: 0.1\nmodel:\n  api_key: ***\nlist: [1, 2]\n"
    now = f"algorithm:\n  kl: 0.2\nmodel:\n  api_key: {SECRET}\nlist: [1, 2]\nmode: both\n"
    (root / "config" / "trinity.yaml").write_text(recorded)
    (root.parent / "x.yaml").write_text(now)
    record = {"yaml": str(root.parent / "x.yaml"), "cwd": str(root.parent), "options": {}}
    (root / "config" / "launch.json").write_text(json.dumps(record))
    found, page = rows(root)
    assert found == [["algorithm.kl", "x.yaml", "0.1", "0.2"], ["mode", "x.yaml", "–", "both"]]
    assert SECRET not in page


@pytest.fixture
def recorded(root, monkeypatch):
    environ = {"DATA": "/data", "PATH": os.environ["PATH"], "NCCL_DEBUG": "WARN", "HF_TOKEN": SECRET}
    text = RecordedEnvironment.of(environ, SCRIPT + "$NAME").as_text()
    (root / "config" / "environment.json").write_text(text)
    for name in list(os.environ):  # other tests of this process have left theirs, torch's among them
        if not re.fullmatch("PATH|HOME|USER|TMPDIR|PYTEST_.*", name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DATA", "/other")
    monkeypatch.setenv("NAME", "set since")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("WANDB_API_KEY", "w-1")
    return root


def test_the_environment_of_the_last_start_is_shown_against_the_studio_s(recorded):
    found, page = rows(recorded)
    assert found == [
        ["CUDA_VISIBLE_DEVICES", "–", "3"],
        ["DATA", "/data", "/other"],
        ["NAME", "–", "set since"],
        ["NCCL_DEBUG", "WARN", "–"],
    ]
    assert "The run had HF_TOKEN" in page and SECRET not in page and "WANDB_API_KEY" not in page


def test_a_resume_gets_it(recorded, monkeypatch):
    show = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    told = recorded.parent / "environ.json"
    monkeypatch.setattr(
        control, "_resume_command", lambda job: ([sys.executable, "-c", show, str(told)], recorded.parent, "")
    )
    studio = client_of(recorded.parent)
    assert post(studio, "/resume/job").status_code == 303
    until(lambda: not job_of(studio).resumed.lives)
    got = json.loads(told.read_text())
    assert got["DATA"] == "/data" and got["NCCL_DEBUG"] == "WARN" and got["WANDB_API_KEY"] == "w-1"
    assert not {"CUDA_VISIBLE_DEVICES", "NAME"} & got.keys()


@pytest.mark.parametrize("text", ["[]", '{"values": {"A=B": "x"}, "secrets": [], "unset": []}', "\x00"])
def test_a_file_that_no_run_wrote_is_named_and_nothing_is_started(root, text):
    (root / "config" / "environment.json").write_text(text)
    studio = client_of(root.parent)
    for answer in (studio.get("/resume/job"), post(studio, "/resume/job")):
        assert answer.status_code == 503 and "environment.json cannot be read" in answer.text
    assert job_of(studio).resumed is None
