"""The page Translate: the command line's own bytes, and nothing of a text is run or breaks the next one."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from studio_jobs import client_of
from translate_texts import HOSTILE, ROOT, command_line, scripts

from trinity_compat.cli import _text_server
from trinity_compat.common.errors import UserError
from trinity_compat.common.python_command import of_code
from trinity_compat.studio.text_server import TextServer

GRPO = (ROOT / "examples/verl_scripts/run_toy_grpo.sh").read_text()
LAUNCH = "python3 -m verl.trainer.main_ppo {} trainer.n_gpus_per_node=8\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    client = client_of(tmp_path_factory.mktemp("jobs"))
    yield client
    client.app.state.studio.text_server.close()


@pytest.fixture
def ask(client):
    """Send the page's form."""

    def ask(text, **given):
        form = {"csrf": client.app.state.studio.listener.csrf, "text": text, **given}
        return client.post("/translate", data=form)

    return ask


def test_ten_scripts_are_there():
    assert len(scripts()) >= 10


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"name": "x.sh", "target": "0.4.1", "gpus": "8", "rollout-gpus": "4", "minimal": "on"},
        {"verl-version": "0.8.0", "mode": "explore", "no-comments": "on", "env": ["TOY_DIR=/toys", "A=b c"]},
    ],
)
def test_the_translation_is_the_command_line_s_byte_for_byte(ask, tmp_path, given):
    # a micro-batch that eight GPUs can share, for the launch that has them
    text = GRPO.replace("micro_batch=$((mini_prompts * n_resp_per_prompt))", "micro_batch=4")
    found = ask(text, **given).json()
    ran = command_line(found["command"], found["name"], text, tmp_path)
    assert found["text"].encode() == ran.stdout and found["code"] == ran.returncode == 0
    assert found["messages"] == ran.stderr.decode().splitlines()


def test_a_yaml_of_trinity_s_is_translated_back(ask, tmp_path):
    text = ask(GRPO).json()["text"]
    found = ask(text).json()
    assert found["trinity"] and found["name"] == "config.yaml"
    assert found["text"].encode() == command_line(found["command"], found["name"], text, tmp_path).stdout
    assert "verl.trainer.main_ppo" in found["text"]


def test_a_yaml_of_verl_s_is_recognised(ask):
    found = ask("data:\n  train_batch_size: 512\ntrainer:\n  n_gpus_per_node: 8\n").json()
    assert found["name"] == "config.yaml" and found["code"] == 0
    assert "config.yaml:2" in found["text"] and found["audit"]["launches"][0]["keys"] >= 2


def test_each_finding_has_its_line_rule_status_and_reason(ask):
    found = ask(LAUNCH.format("\\\n  actor_rollout_ref.actor.lr=1 \\\n")).json()
    (launch,) = found["audit"]["launches"]
    finding = next(each for each in launch["findings"] if each["key"] == "actor_rollout_ref.actor.lr")
    assert finding["source"] == "run.sh:2" and finding["status"] == "unknown" and finding["code"] == "TC001"
    assert "did you mean" in finding["reason"]


def test_an_error_has_its_line(ask):
    found = ask(LAUNCH.format("\\\n data.train_batch_size=ten")).json()
    assert found["code"] == 2 and found["text"] == ""
    assert any(line.startswith("error: run.sh:2: ") for line in found["messages"])


def test_values_that_only_a_run_would_give_are_offered_by_their_variable(ask):
    keys = "trainer.nnodes=$NODES data.seed=$GPUS trainer.project_name=$HOME"
    script = f"GPUS=$(nvidia-smi -L | wc -l)\n{LAUNCH.format(keys)}"
    found = ask(script).json()
    assert {each["variable"]: each["line"] for each in found["open"]} == {"NODES": 2, "GPUS": 2}
    filled = ask(script, env=["NODES=2", "GPUS=4"]).json()
    assert filled["open"] == [] and "--env=NODES=2" in filled["command"]


def test_the_upgrade_is_the_command_line_s_with_a_reason_for_each_change(ask, tmp_path):
    text = (ROOT / "tests/translate/published/run_ppo.sh").read_text()
    found = ask(text, view="upgrade", **{"verl-version": "0.7.0"}).json()
    ran = command_line(found["command"], found["name"], text, tmp_path)
    assert found["text"].encode() == ran.stdout and found["messages"] == ran.stderr.decode().splitlines()
    assert "reward.reward_model.enable=True" in found["text"]
    assert any(line.startswith("run.sh:46: reward_model.enable becomes") for line in found["messages"])


def test_a_diff_is_from_a_release_or_from_another_text(ask):
    found = ask(GRPO, view="diff", against="0.9.1").json()
    assert found["a"] == "verl==0.9.1" and "diff verl==0.9.1 run.sh" in found["command"]
    assert "data.seed" in {each["key"] for each in found["comparison"]["differences"]}
    other = GRPO.replace("seed=1", "seed=2")
    found = ask(GRPO, view="diff", other=other, **{"other-name": "run.sh"}).json()
    assert [each["key"] for each in found["comparison"]["differences"]] == ["data.seed"]
    assert "diff other-run.sh run.sh" in found["command"]


def test_keys_that_stock_verl_ignores_have_their_line_and_reason(ask, tmp_path):
    text = LAUNCH.format("\\\n  reward_model.reward_manager=dapo")
    found = ask(text, view="ignored", **{"verl-version": "0.9.1"}).json()
    (ignored,) = found["data"]["launches"][0]["ignored"]
    assert (ignored["key"], ignored["source"]) == ("reward_model.reward_manager", "run.sh:2")
    assert found["text"].encode() == command_line(found["command"], found["name"], text, tmp_path).stdout


def test_the_modes_of_a_launch_are_predicted_for_the_given_gpus(ask, tmp_path):
    found = ask(GRPO, view="advise", gpus="8", **{"verl-version": "0.9.1"}).json()
    assert "--verl-version=0.9.1" in found["command"]
    assert found["data"]["gpus"] == 8 and len(found["data"]["modes"]) > 4
    assert found["text"].encode() == command_line(found["command"], found["name"], GRPO, tmp_path).stdout
    refused = ask("echo", view="advise").json()
    assert refused["data"] is None and refused["messages"]


def test_a_text_without_a_launch_has_no_diff_and_says_why(ask):
    found = ask("echo", view="diff", against="0.9.1").json()
    assert found["comparison"] is None and "no veRL launch" in found["messages"][0]


def test_nothing_of_a_text_is_run(ask, client):
    found = ask(HOSTILE).json()
    assert found["limit"] == ""
    assert list(client.app.state.studio.jobs.root.iterdir()) == []
    assert ask(GRPO).json()["code"] == 0


def test_no_text_is_an_answer_without_a_command(ask):
    assert ask(" \n").json() == {"name": "run.sh", "empty": True}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "../run.sh"}, "name"),
        ({"name": "-o"}, "name"),
        ({"name": "a/b.sh"}, "name"),
        ({"target": "9.9"}, "target"),
        ({"verl-version": "--rules=x"}, "verl-version"),
        ({"mode": "<b>"}, "mode"),
        ({"gpus": "-1"}, "gpus"),
        ({"launch": "1; ls"}, "launch"),
        ({"folder": "relative"}, "folder"),
        ({"folder": "/nowhere/at/all"}, "folder"),
    ],
)
def test_a_field_that_is_wrong_is_named(ask, given, said):
    answer = ask(GRPO, **given)
    assert answer.status_code == 400 and answer.json()["problem"].startswith(f"{said}:")


def test_a_text_that_is_too_large_is_refused(ask, client):
    assert ask("#" * ((1 << 20) + 1)).status_code == 413
    assert client.post("/translate", content=b"x" * (13 << 20)).status_code == 413


def test_a_text_in_another_script_may_be_as_long(ask):
    assert ask("#" + "字" * 600_000).json()["code"] == 2


def test_a_form_that_the_studio_did_not_make_is_refused(client):
    assert client.post("/translate", data={"text": GRPO}).status_code == 403


# -- the processes --------------------------------------------------------------------------------


def busy(words):
    while True:
        pass


@pytest.mark.parametrize(
    ("does", "limit"),
    [
        (busy, "1 s of processor time"),
        (lambda words: time.sleep(1000), "more than 1 s"),
        (lambda words: len(bytearray(2 << 30)), "MiB of memory"),
        (lambda words: os.write(1, bytes(2 << 20)) and os.write(1, b"x"), "wrote more than 1 MiB"),
    ],
)
def test_a_command_ends_at_its_limits(monkeypatch, does, limit):
    monkeypatch.setattr(_text_server, "_code_of", does)
    monkeypatch.setattr(_text_server, "SECONDS", 1)
    monkeypatch.setattr(_text_server, "OUTPUT", 1 << 20)
    if limit == "more than 1 s":
        monkeypatch.setattr(_text_server, "WALL_S", 1)
    (found,) = _text_server._answered({"run.sh": ""}, [["translate"]])
    assert limit in found["limit"]


def test_the_server_has_no_variable_of_the_studio_s_that_it_does_not_need(monkeypatch):
    monkeypatch.setenv("DEPLOYMENT", "tok3n-of-the-studio")
    script = "source //proc/self/environ\nsource /proc/$PPID/environ\n" + LAUNCH.format("+a.b=$DEPLOYMENT")
    server = TextServer()
    try:
        result = server.run({"run.sh": script}, [["parse", "run.sh"], ["audit", "run.sh"]])
        seen = Path(f"/proc/{server._process.pid}/environ").read_bytes()
    finally:
        server.close()
    assert b"PATH=" in seen and b"tok3n" not in seen
    texts = "".join(one.out + one.err for one in result)
    assert "DEPLOYMENT" in texts and "tok3n" not in texts and "is set in this shell" not in texts


def test_a_server_that_died_is_started_again():
    server = TextServer()
    files, words = {"run.sh": GRPO}, [["parse", "run.sh"]]
    assert server.run(files, words)[0].code == 0
    server._process.kill()
    server._process.wait()
    assert server.run(files, words)[0].code == 0
    server.close()


def test_a_server_that_does_not_read_its_request_is_no_error(monkeypatch, tmp_path):
    deaf = f"import os, time; os.close(0); os.mkdir({str(tmp_path / 'deaf')!r}); time.sleep(1000)"
    monkeypatch.setattr("trinity_compat.studio.text_server.of_module", lambda _: of_code(deaf))
    server = TextServer()
    server.warm()
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    assert [each.limit for each in server.run({}, [["parse"]])] == ["no answer"]
    assert server._process is None  # the next request starts another


_SOME_ASLEEP = """
import time
from pathlib import Path
from trinity_compat.cli import _text_server

does = _text_server._code_of

def code_of(words):
    if words[0] != "parse":
        return does(words)
    Path("asleep").touch()
    time.sleep(1000)

_text_server._warm, _text_server._code_of = lambda: None, code_of
_text_server.WALL_S = 1000
_text_server.serve_studio()
"""


def test_a_page_s_texts_do_not_make_another_page_wait(monkeypatch, tmp_path):
    """Of one page two are answered at a time, of all pages three."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("trinity_compat.studio.text_server.of_module", lambda _: of_code(_SOME_ASLEEP))
    server, found = TextServer(), []
    asked = [
        threading.Thread(target=lambda: found.extend(server.run({"run.sh": ""}, [["parse"]]))) for _ in "123"
    ]
    for thread in asked:
        thread.start()
    while len(list(tmp_path.glob("*/texts/asleep"))) < 2:
        time.sleep(0.01)
    assert "actor_rollout_ref" in server.call("files_of_form", {})["script"]
    assert len(list(tmp_path.glob("*/texts/asleep"))) == server._running.total() == 2 and not found
    server.close()
    for thread in asked:
        thread.join()
    assert [each.limit for each in found] == ["no answer"] * 3 and list(tmp_path.iterdir()) == []


def test_a_request_that_has_no_answer_leaves_the_others_theirs(monkeypatch):
    dying = _SOME_ASLEEP.replace("time.sleep(1000)", "import os; os.kill(os.getppid(), 9); time.sleep(1000)")
    monkeypatch.setattr("trinity_compat.studio.text_server.of_module", lambda _: of_code(dying))
    server = TextServer()
    server.warm()
    process = server._process
    assert [each.limit for each in server.run({"run.sh": ""}, [["parse"]])] == ["no answer"]
    assert "actor_rollout_ref" in server.call("files_of_form", {})["script"]
    assert server._process is process
    server.close()


def test_a_function_answers_and_says_what_is_wrong():
    server = TextServer()
    assert "actor_rollout_ref" in server.call("files_of_form", {})["script"]
    with pytest.raises(UserError, match=r"^pasted\.yaml:2: model.modle_path: .*\n  hint: did you mean"):
        server.call("fields_of_text", "model:\n  modle_path: m\n")
    with pytest.raises(UserError, match="TypeError"):
        server.call("fields_of_text", 3)
    server.close()


_ASLEEP = """
import time
from pathlib import Path
from trinity_compat.cli import _text_server
from trinity_compat.common.errors import UserError
from trinity_compat.common.python_command import of_code
from trinity_compat.common.releases import TARGETS

def sleep(words):
    Path("asleep").touch()
    time.sleep(1000)

_text_server._warm, _text_server._code_of = lambda: None, sleep
_text_server.WALL_S = 1000
_text_server.serve_studio()
"""


def test_a_server_that_is_closed_leaves_no_process_and_no_text(monkeypatch, tmp_path):
    """In the middle of a request, which then has no answer, as has the next one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("trinity_compat.studio.text_server.of_module", lambda _: of_code(_ASLEEP))
    server, found = TextServer(), []
    asked = threading.Thread(target=lambda: found.extend(server.run({"run.sh": ""}, [["parse"]])))
    asked.start()
    while not list(tmp_path.glob("*/texts/asleep")):
        assert asked.is_alive()
        time.sleep(0.01)
    (folder,) = tmp_path.iterdir()
    server.close()
    asked.join()
    assert [each.limit for each in (*found, *server.run({}, [["parse"]]))] == ["no answer"] * 2
    assert list(tmp_path.iterdir()) == []
    assert not [place for place in working_directories() if place.startswith(str(folder))]


def working_directories():
    """Those of all processes; that of a folder that is gone ends with "(deleted)"."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield str((process / "cwd").readlink())


def test_the_studio_ends_its_server(tmp_path):
    client = client_of(tmp_path)
    with client:
        client.get("/configure")
        process = client.app.state.studio.text_server._process
        assert process.poll() is None
    assert process.returncode == 0


def test_more_than_a_few_requests_at_once_are_turned_away():
    server = TextServer()
    while server._waiting.acquire(blocking=False):
        pass
    assert [each.limit for each in server.run({}, [["parse", "run.sh"]])] == ["busy"]


def test_the_keys_to_complete_are_verl_s_by_release(client):
    found = client.get("/keys").json()
    newest = 1 << len(found["releases"]) - 1
    assert found["keys"]["actor_rollout_ref.actor.optim.lr"] & newest
    assert not found["keys"]["critic.model.fsdp_config.param_offload"] & newest


def test_a_server_that_is_late_is_ended():
    server = TextServer(wait_s=0)
    assert [each.limit for each in server.run({}, [["parse", "run.sh"]])] == ["no answer"]
    assert server._process is None
