"""A class of trinity-rft's, a class of one's own and an agent's program train the toy, and it learns."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from beside import ROOT, modules
from transformers import AutoTokenizer

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import DROPPED, DROPPED_KIND
from trinity_compat.explorer.scheduling.difficulty_feedback import last_known_step
from trinity_compat.job.run_spec import SyncSpec
from trinity_compat.trinity.selectors import selector_of

EXAMPLES = ROOT / "examples" / "workflows"
OPERATOR = """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator

@EXPERIENCE_OPERATORS.register_module("leave_first_out")
class LeaveFirstOut(ExperienceOperator):
    def process(self, exps):
        tasks = list(dict.fromkeys(exp.eid.tid for exp in exps))
        kept = [exp for exp in exps if exp.eid.run != 0 and tasks.index(exp.eid.tid) % 5 != 4]
        return kept, {"left_out_count": len(exps) - len(kept)}
"""

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    from toys import made_toy

    made = made_toy(tmp_path_factory.mktemp("toy"))
    subprocess.run([sys.executable, EXAMPLES / "questions.py", made], check=True)
    return made


def trained(tmp_path, toy, name, *, plugins, change=lambda config: None, path=(), updates=None):
    """The buffer of a run of an example: to its end, or for some updates that nothing is evaluated beside."""
    config = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    if updates:
        config["buffer"]["total_steps"] = updates
        config["trainer"]["save_interval"] = config["explorer"]["eval_interval"] = updates
        config["explorer"]["eval_on_startup"] = False
    config["checkpoint_root_dir"] = str(tmp_path / "checkpoints")
    config["model"]["model_path"] = f"{toy}/model"
    for kind, part in (("tasksets", "train"), ("eval_tasksets", "val")):
        config["buffer"]["explorer_input"][kind][0]["path"] = f"{toy}/data/{part}.jsonl"
    change(config)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "trinity_compat", "run", str(file), "--plugin-dir", str(plugins)]
    whole = os.pathsep.join([*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": whole}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (database,) = tmp_path.rglob("experiences.db")
    return open_buffer(f"sqlite:///{database}")


def gain(buffer):
    """Mean score of the last quarter of the steps, less that of the first."""
    scores = [metrics["critic/score/mean"] for _, metrics in buffer.read_metrics("explorer")]
    part = max(1, len(scores) // 4)
    return sum(scores[-part:]) / part - sum(scores[:part]) / part


@pytest.mark.nightly
def test_a_class_of_one_s_own(tmp_path, toy):
    assert gain(trained(tmp_path, toy, "plugin", plugins=EXAMPLES / "plugins", updates=12)) > 0.2


@pytest.mark.whole
def test_an_agent_s_program_with_a_tool(tmp_path, toy):
    buffer = trained(tmp_path, toy, "agent", plugins=tmp_path, updates=12)
    assert gain(buffer) > 0.08
    (group,) = buffer.groups("train", limit=1)
    tokenizer = AutoTokenizer.from_pretrained(toy / "model")
    for part in group.experiences:
        assert set(json.loads(tokenizer.decode(part.response_ids, skip_special_tokens=True))) == {"digits"}


def every_step(config):
    config["algorithm"]["algorithm_type"] = "grpo"
    config["trainer"]["trainer_config"]["trinity_compat"] = {"steps_as_rows": True}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "change", [lambda config: None, every_step], ids=["multi_step_grpo", "steps_as_rows"]
)
def test_a_class_whose_steps_are_no_conversation(tmp_path, toy, change):
    buffer = trained(tmp_path, toy, "steps", plugins=EXAMPLES / "plugins", change=change)
    assert gain(buffer) > 0.1
    explored = dict(buffer.read_metrics("explorer"))
    assert explored[1]["rollout/rows_per_run"] > 1.2
    assert {metrics["rollout/runs"] for metrics in explored.values()} == {16 * 8}
    for step, metrics in buffer.read_metrics("trainer"):  # the same rows on both sides, no filler among them
        assert metrics["critic/score/mean"] == pytest.approx(explored[step]["critic/score/mean"], abs=1e-5)


@pytest.mark.nightly
@pytest.mark.upstream
def test_a_class_of_trinity_rft_s(tmp_path, toy):
    """Its package beside us, as requirements/workflows.txt installs it; the reward is a plugin's."""

    def change(config):
        config["buffer"]["explorer_input"]["default_workflow_type"] = "simple_workflow"

    path = [modules(tmp_path / "modules")]
    plugins = EXAMPLES / "plugins"
    buffer = trained(tmp_path, toy, "plugin", plugins=plugins, change=change, path=path, updates=12)
    assert gain(buffer) > 0.2


@pytest.mark.nightly
def test_an_agent_s_program_whose_answers_a_pipeline_thins(tmp_path, toy):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "leaving.py").write_text(OPERATOR)

    def change(config):
        names = ("leave_first_out", "mask_response_truncated", "pass_rate_calculator")
        operators = [{"name": name} for name in names]
        config["data_processor"] = {"experience_pipeline": {"operators": operators}}

    buffer = trained(tmp_path, toy, "agent", plugins=tmp_path / "plugins", change=change)
    assert gain(buffer) > 0.1
    steps = len(buffer.read_metrics("explorer"))
    assert buffer.depth()["trained"] == steps * 16
    groups = buffer.groups("train", limit=64)
    assert all(
        [bool(part.metrics.get(DROPPED)) for part in group.experiences][:2] == [True, False]
        for group in groups
    )
    assert len(buffer.groups(DROPPED_KIND)) == steps * 16  # two draws a step: a fifth, and what was too much


SELECTOR = {"selector_type": "difficulty_based", "seed": 3, "feature_keys": ["weak", "strong"]}
ARGUMENTS = {"m": 8, "lamb": 0.2, "rho": 0.2, "target_reward": 0.5, "tau": 0.02}


@pytest.mark.nightly
def test_rows_are_drawn_by_what_came_back(tmp_path, toy):
    """Each step's rows follow from the rewards in the buffer, by the two pass rates that the file gives."""
    rows = [json.loads(line) for line in (toy / "data" / "train.jsonl").read_text().splitlines()]
    columns = {"weak": [0.0] * len(rows), "strong": [1 / len(row["answer"]) for row in rows]}
    told = (
        {**row, "weak": 0.0, "strong": strong} for row, strong in zip(rows, columns["strong"], strict=True)
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))

    def change(config):
        taskset = config["buffer"]["explorer_input"]["tasksets"][0]
        taskset |= {"path": str(tmp_path / "rows.jsonl"), "data_selector": {**SELECTOR, "kwargs": ARGUMENTS}}
        operators = [{"name": "pass_rate_calculator"}]
        config["data_processor"] = {"experience_pipeline": {"operators": operators}}
        config["buffer"]["total_steps"] = 12

    buffer = trained(tmp_path, toy, "plugin", plugins=EXAMPLES / "plugins", change=change)
    groups = buffer.groups("train")
    found = [group.task["index"] for group in groups]
    rates = [sum(part.reward for part in group.experiences) / len(group.experiences) for group in groups]
    assert len(found) == 12 * 16
    assert found == expected(columns, found, rates)
    assert found != expected(columns, found, [0.0] * len(rates))


def expected(columns, found, rates):
    """The rows that the steps draw, ``rates`` having come back of the rows ``found``."""
    arguments = {**ARGUMENTS, "do_sample": False, "adaptive_rho": False}
    asked = {**SELECTOR, "type": "difficulty_based", "kwargs": arguments, "place": ""}
    drawn = []
    for step in range(12):
        selector = selector_of(asked, len(columns["weak"]), columns, "")
        for each in range(last_known_step(SyncSpec(interval=2), step + 1)):
            batch = slice(each * 16, (each + 1) * 16)
            selector.learn(found[batch], rates[batch])
        drawn += selector.rows(step * 16, 16)
    return drawn
