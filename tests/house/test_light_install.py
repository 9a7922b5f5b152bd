"""Every command on every kind of input where no package of an extra can be imported: never a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_paths import commands

from trinity_compat.common.nested import put
from trinity_compat.trinity.pipelines.operators import OPERATORS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
EXAMPLES = ROOT / "examples"
WORKFLOW = EXAMPLES / "workflows" / "simple.yaml"
TASKSET = "buffer.explorer_input.tasksets.0"
NEEDS = "not installed here\n  hint: pip install "

# What Trinity's YAMLs may ask beyond the examples: dotted paths of the YAML → values.
ASKED = {
    **{
        f"operator {name}": {"data_processor.experience_pipeline.operators": [{"name": name, "args": {}}]}
        for name in (*OPERATORS, "data_juicer", "mine")
    },
    "Data-Juicer": {
        "data_processor.experience_pipeline.operators": [
            {"name": "data_juicer", "args": {"operators": [{"text_length_filter": {}}]}}
        ],
        "service.data_juicer.auto_start": True,
    },
    "task pipeline": {
        "data_processor.task_pipeline": {
            "inputs": ["rows.jsonl"],
            "operators": [{"name": "text_length_filter", "args": {}}],
            "output": {"path": "filtered"},
        },
        "service.data_juicer.auto_start": True,
    },
    **{
        f"selector {name}": {
            f"{TASKSET}.data_selector": {"selector_type": name, "feature_keys": ["weak", "strong"]}
        }
        for name in ("random", "shuffle", "offline_easy2hard", "difficulty_based")
    },
    **{f"mode {mode}": {"mode": mode} for mode in ("train", "explore", "bench", "serve", "colocate")},
    **{
        f"rows in {path}": {f"{TASKSET}.path": path}
        for path in ("rows.jsonl", "rows.json", "rows.parquet", "folder", "hub/name")
    },
    "rows in a database": {f"{TASKSET}.storage_type": "sql", f"{TASKSET}.path": "sqlite:///rows.db"},
    "PostgreSQL": {
        "buffer.trainer_input.experience_buffer": {
            "name": "b",
            "storage_type": "sql",
            "path": "postgresql://localhost/b",
        }
    },
    "replay": {
        "buffer.trainer_input.experience_buffer": {
            "name": "b",
            "storage_type": "queue",
            "replay_buffer": {"enable": True},
        }
    },
    "images": {f"{TASKSET}.format.image_key": "image"},
    "a chat": {f"{TASKSET}.format.prompt_type": "messages", f"{TASKSET}.format.messages_key": "messages"},
    "auxiliary model": {
        "explorer.auxiliary_models": [{"model_path": "m", "engine_num": 1, "tensor_parallel_size": 1}]
    },
    "a workflow of trinity-rft": {f"{TASKSET}.default_workflow_type": "alfworld_workflow"},
    "a reward of trinity-rft": {f"{TASKSET}.default_reward_fn_type": "rm_gallery_reward"},
    "lora": {"model.lora_configs": [{"name": "l", "lora_rank": 8}]},
    "stages": {
        "stages": [
            {"stage_name": "first", "mode": "train", "algorithm": {"algorithm_type": "sft"}},
            {"stage_name": "second"},
        ]
    },
    "wandb": {"monitor.monitor_type": "wandb"},
    **{
        f"algorithm {name}": {"algorithm.algorithm_type": name}
        for name in ("ppo", "opmd", "sft", "dpo", "mix", "gigpo", "multi_step_grpo", "sppo", "chord", "nope")
    },
    "megatron": {"trainer.trainer_strategy": "megatron"},
    "an unknown field": {"trainer.nonsense": 1},
    "a broken section": {"buffer": 5},
}
SCRIPTS = ["run_toy_grpo.sh", "run_toy_ppo.sh", "run_toy_sft.sh"]
FILES = {
    "launch.ipynb": json.dumps(
        {"cells": [{"cell_type": "code", "source": ["!python3 -m verl.trainer.main_ppo data.train_files=a"]}]}
    ),
    "job.yaml": "command: python3 -m verl.trainer.main_ppo data.train_files=a\n",
    "launch.py": "import os\nos.system('python3 -m verl.trainer.main_ppo data.train_files=a')\n",
    "empty.sh": "",
    "broken.sh": "if then",
    "broken.yaml": "a: [",
    "rows.jsonl": '{"question": "2", "answer": "3"}\n',
    "rows.json": '[{"question": "2", "answer": "3"}]',
    "rows.parquet": "PAR1",
    "rows.db": "",
    "a.jsonl": "".join(f'{{"step": {n}, "data": {{"critic/score/mean": 0.5}}}}\n' for n in range(1, 9)),
    "a.csv": "step,critic/score/mean\n1,0.5\n",
    "a.log": "step:1 - critic/score/mean:0.5\n",
    "tb/events.out.tfevents.1.x": "no event",
    "a.tb.parquet": "PAR1",
    "run.wandb": "no run",
    "plugins/mine.py": "from trinity.common.workflows import WORKFLOWS\nimport numpy\n",
    "job/config/run.json": '{"job_dir": "job", "database_url": "sqlite:///job/b.db", "verl": {}}',
    "job/buffer/experiences.db": "",
    "half/config/run.json": "{",
}


def words():
    """Every command, without words and on every file."""
    yaml_files = [f"{place}.yaml" for place in range(len(ASKED))]
    sources = [*SCRIPTS, *yaml_files, *FILES, "plugins", "job", "half", "nowhere", "tb"]
    for source in sources:
        for device in ("cpu", "cuda"):
            yield ["run", source, "--dry-run", "--device", device]
        yield from (["run", source], ["trial", source])
        yield from (["audit", source], ["parse", source], ["translate", source])
    yield from (["run", each, "--dry-run", "--plugin-dir", "plugins"] for each in (SCRIPTS[0], *yaml_files))
    few = [SCRIPTS[0], yaml_files[0], *FILES, "job", "half", "nowhere", "tb"]
    for source in few:
        yield from (["debug", source, "-m", half] for half in ("workflow", "inference_model"))
        yield from (["compare", source, "a.jsonl"], ["compare", "--configs", source, SCRIPTS[0]])
        yield from (["compare", source, "a.jsonl", "--format", form] for form in ("json", "md", "html"))
        yield from (["buffer", name, source] for name in ("export", "show", "stats"))
        yield ["buffer", "prune", source, "--keep-steps", "1"]
        yield from (
            ["checkpoint", "to-hf", source],
            ["status", source],
            ["report", source],
            ["studio", source],
            ["toy", source],
        )
        yield from (["rules", "init", source], ["profile", source], ["explain", source])
        yield from (["ignored", source], ["sizes", source], ["upgrade", source, "--diff"])
        yield ["export", source, "--to", "slurm"]
        yield ["audit", source, "--format", "html"]
        yield ["translate", source, "--target", "0.4.1"]
    yield from (["doctor"], ["plugin-dir"], ["rules", "families"], ["profile", "cpu"], ["toy", "toy"])
    yield from (["explain", "data.train_batch_size", "TC020"], ["compare", "--plan", "0.02", "a.jsonl"])
    yield from ([*path] for path in commands())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("light")
    for name in SCRIPTS:
        (folder / name).write_text((EXAMPLES / "verl_scripts" / name).read_text())
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for place, changes in enumerate(ASKED.values()):
        config = yaml.safe_load(WORKFLOW.read_text())
        for path, value in changes.items():
            put(config, path, value)
        (folder / f"{place}.yaml").write_text(yaml.safe_dump(config))
    made = subprocess.run(
        [sys.executable, HERE / "light_install.py"],
        cwd=folder,
        input=json.dumps(list(words())),
        text=True,
        capture_output=True,
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def test_no_command_ends_in_a_traceback(outcomes):
    assert {" ".join(each["words"]): each["trace"] for each in outcomes if each["trace"]} == {}
    assert [each["words"] for each in outcomes if "Traceback (most" in each["said"]] == []


def test_each_command_is_tried(outcomes):
    tried = {tuple(each["words"][: len(path)]) for each in outcomes for path in commands()}
    assert set(commands()) <= tried


def test_a_dry_run_does_without_any_extra(outcomes):
    """What it cannot look at it says; it never asks for a package."""
    asked = [each for each in outcomes if "--dry-run" in each["words"] and NEEDS in each["said"]]
    assert [each["words"] for each in asked] == []
