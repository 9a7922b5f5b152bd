"""`answer`, the web page's entry: what the command line prints, as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trinity_compat.cli._browser import KINDS, OPTIONS, answer

SCRIPT = Path(__file__).parents[2] / "examples" / "verl_scripts" / "run_toy_grpo.sh"
TEXT = SCRIPT.read_text()


def answered(kind, text=TEXT, **request):
    return json.loads(answer(json.dumps({"kind": kind, "name": "run.sh", "text": text, **request})))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("translate", {"gpus": 1, "mode": "explore", "minimal": True}),
        ("translate", {"release": "0.9.0", "target": "0.4.1", "env": ["HOME=/a b"], "launch": ""}),
        ("audit", {"set": ["data.seed=1", "mode=train"]}),
        ("upgrade", {"env": ["X=1"]}),
        ("ignored", {"release": "0.8.0"}),
        ("advise", {"gpus": 8, "model_size": "7B", "release": "0.9.1"}),
        ("parse", {}),
    ],
)
def test_an_answer_is_what_its_command_line_prints(tmp_path, kind, options):
    folder = tmp_path / "texts"
    found = json.loads(
        answer(json.dumps({"kind": kind, "name": "run.sh", "text": TEXT, "options": options}), str(folder))
    )
    assert not folder.exists()
    folder.mkdir()
    (folder / "run.sh").write_text(TEXT)
    line = ["bash", "-c", f'PATH="{Path(sys.executable).parent}:$PATH"; exec {found["command"]}']
    printed = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert (found["code"], found["text"]) == (printed.returncode, printed.stdout)
    assert found["messages"] == [told for told in printed.stderr.splitlines() if told.strip()]
    assert found["data"] == (json.loads(printed.stdout) if KINDS[kind] else None)
    assert "error" not in found


def test_a_script_finds_the_configurations_beside_it():
    launch = "python3 -m verl.trainer.main_ppo --config-path=$PWD/config --config-name=mine\n"
    config = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "data": {"train_batch_size": 48},
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 48}},
    }
    trees = {"repo/config/mine.yaml": json.dumps(config)}
    found = answered("translate", "cd repo\n" + launch, files=trees)
    assert "batch_size: 48" in found["text"], found["error"]


def test_an_upgrade_shows_its_change():
    text = TEXT.replace("reward.custom_reward_function", "custom_reward_function")
    found = answered("upgrade", text)
    assert "-    custom_reward_function.path=" in found["diff"]
    assert "+    reward.custom_reward_function.path=" in found["diff"]
    assert answered("upgrade", found["text"])["diff"] == ""


def test_two_texts_differ_where_their_settings_do():
    other = TEXT.replace("data.seed=", "data.seed=4")
    found = answered("diff", files={"other.sh": other}, options={"against": "other.sh"})
    assert found["command"] == "trinity-compat diff other.sh run.sh --format=json"
    assert "data.seed" in json.dumps(found["data"])
    assert answered("diff", options={"against": "gone.sh"})["error"]["message"].startswith(
        "diff: option against"
    )


def test_what_a_command_refuses_is_named_with_its_place():
    found = answered("translate", "python3 -m verl.trainer.main_ppo data.max_prompt_length=\n")
    assert found["code"] == 2 and found["text"] == "" and found["data"] is None
    assert found["error"]["where"] == "run.sh:1" and found["error"]["message"]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([], "a request is an object"),
        ({"kind": "run"}, "kind 'run' is not known"),
        ({"kind": "translate", "text": 5}, "text is not a text"),
        ({"kind": "translate", "files": []}, "files is not an object"),
        ({"kind": "translate", "files": {"a": 1}}, "files has something other than texts"),
        ({"kind": "translate", "files": {"../a": ""}}, "'../a' is not the path"),
        ({"kind": "translate", "name": "/etc/passwd"}, "'/etc/passwd' is not the path"),
        ({"kind": "translate", "name": "--argv"}, "'--argv' is not the path"),
        ({"kind": "translate", "name": ""}, "'' is not the path"),
        ({"kind": "translate", "name": "a/b", "files": {"a": ""}}, "'a/b': "),
        ({"kind": "translate", "text": "x" * (1 << 20) + "x"}, "the text has more than 1 MiB"),
        ({"kind": "translate", "options": {"realease": "0.9.0"}}, "translate has no option 'realease'"),
        ({"kind": "translate", "options": {"target": "9"}}, "Invalid value for '--target'"),
        ({"kind": "parse", "options": {"gpus": 1}}, "parse has no option 'gpus'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_told_and_lays_no_file(tmp_path, request_, told):
    found = json.loads(answer(json.dumps(request_), str(tmp_path / "texts")))
    assert found["error"]["message"].startswith(told), found
    assert found["code"] == 2 and not (tmp_path / "texts").exists()


def test_every_kind_has_its_options():
    assert KINDS.keys() == OPTIONS.keys()
