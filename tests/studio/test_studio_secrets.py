"""No page of the studio shows a secret, in whatever form and file of a job it stands."""

import json
import shlex

import pytest
from planted_secrets import leaks, planted_script, planted_words
from studio_jobs import client_of, make_job
from test_access_and_escaping import PAGES


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A studio of two jobs whose files hold every secret as it was written, unmasked."""
    root = tmp_path_factory.mktemp("jobs")
    words = [shlex.split(word)[0] for word in planted_words()]
    tree = {"kwargs": dict(word.partition("=")[::2] for word in words)}
    for name in ("toy/grpo", "plain"):
        job = make_job(root / name, evil=False)
        (root / name).parent.joinpath("run.sh").write_text(planted_script())
        config = job / "config"
        launch = json.loads((config / "launch.json").read_text())
        launch |= {"module": "verl.trainer.main_ppo", "script_arguments": words, "notes": words}
        launch["arguments"] = [{"text": word, "where": "run.sh:3"} for word in words]
        launch["options"]["sets"] = words
        (config / "launch.json").write_text(json.dumps(launch))
        audit = json.loads((config / "audit.json").read_text())
        finding = audit["launches"][0]["findings"][0]
        audit["launches"][0]["findings"] += [
            finding
            | {"key": key, "value": value, "target": key, "target_value": value, "reason": f"{key}={value}"}
            for key, _, value in (word.partition("=") for word in words)
        ]
        (config / "audit.json").write_text(json.dumps(audit))
        for file in ("trinity.yaml", "verl.yaml"):
            (config / file).write_text(json.dumps(tree, indent=1))
        for file in ("trainer.log", "explorer.log", "launcher.log"):
            (job / "log" / file).write_text("".join(f"{word}\n" for word in words))
    with client_of(root) as studio:
        yield studio


@pytest.mark.parametrize("page", PAGES)
def test_no_page_shows_a_planted_secret(planted, page):
    answer = planted.get(page)
    assert answer.status_code == 200
    assert leaks({page: answer.text}) == []


def test_the_words_are_there_to_be_masked(planted):
    assert "reward_kwargs.dsn" in planted.get("/configuration/toy/grpo").text
