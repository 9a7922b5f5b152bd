"""veRL's own end-to-end scripts, unchanged, each run whole on the CPU with a toy in its variables.

Collected only where TC_VERL_GIT names a git clone of volcengine/verl (conftest.py): the scripts are not ours
to copy. docs/measurements/starts.md has how long each took.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toys import made_toy

from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.run.toy import ToySpec

CLONE = os.environ.get("TC_VERL_GIT", "")
FOLDER = "tests/special_e2e"
RUNS_S = 1800


@dataclass(frozen=True)
class Case:
    """``script`` of release ``tag`` with ``variables`` ends with 0 after ``steps``, and says ``says``.

    ``arguments`` are those of the script. In both ``{home}`` and ``{work}`` are the home and a new folder.
    """

    tag: str
    script: str
    variables: str = ""
    steps: int = 1
    says: tuple[str, ...] = ()
    arguments: str = ""
    folder: str = FOLDER

    def __str__(self):
        place = self.script.removesuffix(".sh").replace("/", "_")
        return "-".join((self.tag, place, *self.variables.split()))


REWARD = "ppo_trainer/run_function_reward.sh"
ONE = "NUM_GPUS=1 MAX_RESPONSE_LEN=64"
PASSES = ("\nCheck passes\n",)  # its check_custom_rwd_fn.py
LORA = "USE_SHM=True LORA_RANK=32 LOAD_FORMAT=safetensors LAYERED_SUMMON=True"

# One process, the folder of its checkpoints, one step, and no logger of the web.
ONE_PROCESS = "1 {work}/checkpoints trainer.total_training_steps=1 trainer.logger=console"
TOY = "MODEL_PATH={home}/models/Qwen/Qwen2.5-0.5B-Instruct"

CASES = [
    Case("v0.4.1", REWARD, f"{ONE} CUSTOM_REWARD_FN=True ADV_ESTIMATOR=grpo USE_KL=True", says=PASSES),
    Case("v0.5.0", "run_one_step_off_policy.sh", "NUM_GPUS=4", steps=2),
    Case("v0.6.1", REWARD, f"{ONE} ADV_ESTIMATOR=remax USE_KL=True"),
    Case("v0.6.1", "run_fully_async_policy.sh", steps=8),
    Case("v0.7.0", REWARD, ONE),
    Case("v0.7.0", "ppo_trainer/run_model_reward.sh", "NUM_GPUS=1"),
    Case("v0.7.0", "sft/run_sft.sh", "NUM_GPUS=1"),
    Case("v0.8.0", REWARD, f"{ONE} ADV_ESTIMATOR=grpo LOSS_MODE=gspo"),
    Case("v0.9.0", REWARD, f"{ONE} ADV_ESTIMATOR=grpo USE_KL=True"),
    Case("v0.9.0", REWARD, f"{ONE} ADV_ESTIMATOR=grpo SAVE_FREQ=1 {LORA}"),
    Case("v0.9.0", "run_one_step_off_policy.sh", "NUM_GPUS=4", steps=2),
    Case("v0.9.0", "run_fully_async_policy.sh", "NUM_GPUS=4", steps=8),
    Case("v0.9.0", "sft/run_sft.sh", "NUM_GPUS=1"),
    Case("v0.9.0", "sft/run_sft_engine.sh", "NUM_GPUS=1", steps=2),
    *(
        Case("v0.9.0", f"sft/{kind}/run_qwen2_5_0_5b_fsdp.sh", f"{TOY}{more}", 1, (), ONE_PROCESS, "examples")
        for kind, more in (("gsm8k", ""), ("gsm8k", " USE_PEFT=1"), ("multiturn", ""))
    ),
]
# The one of `make test-whole`: its own check reads what the command printed.
SAMPLE = Case("v0.7.0", REWARD, f"{ONE} CUSTOM_REWARD_FN=True ADV_ESTIMATOR=grpo USE_KL=True", says=PASSES)


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A home folder with model and data where the scripts look for them."""
    home = tmp_path_factory.mktemp("home")
    toy = made_toy(home / "toy", ToySpec(train_rows=256, val_rows=8, warm_steps=1))
    _with_long_places(toy / "model" / "config.json")
    (home / "models" / "Qwen").mkdir(parents=True)
    for name in ("Qwen2.5-0.5B", "Qwen2.5-0.5B-Instruct"):
        (home / "models" / "Qwen" / name).symlink_to(toy / "model")
    for ours, theirs in (("train", "train"), ("val", "test")):
        rows = list(map(_as_gsm8k, pq.read_table(toy / "data" / f"{ours}.parquet").to_pylist()))
        for folder in ("gsm8k", "gsm8k_sft", "multiturn"):
            path = home / "data" / folder / f"{theirs}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), path)
    downloads = home / "bin" / "huggingface-cli"  # scripts of 0.4 to 0.6 do; the model is there
    downloads.parent.mkdir()
    downloads.write_text("#!/bin/sh\n")
    downloads.chmod(0o755)
    return home


def _with_long_places(path):
    """The scripts ask for prompts and answers of 3,072 tokens together; rotary positions have no weights."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 4096}))


def _as_gsm8k(row):
    """With the columns of veRL's gsm8k.py and gsm8k_multiturn_sft.py."""
    question, answer = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
    return {
        **row,
        "data_source": "openai/gsm8k",
        "extra_info": row["extra_info"] | {"question": question, "answer": answer},
        "messages": [*row["prompt"], {"role": "assistant", "content": answer}],
    }


def tree_of(tag, folder, inside=FOLDER):
    """The folder ``inside`` of that release of veRL's, below ``folder``."""
    made = subprocess.run(["git", "-C", CLONE, "archive", tag, inside], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / inside


def check(case, tmp_path, home):
    script = tree_of(case.tag, tmp_path, case.folder) / case.script
    environment = {
        **os.environ,
        **dict(pair.split("=", 1) for pair in case.variables.format(home=home, work=tmp_path).split()),
        "HOME": str(home),
        "PATH": f"{home}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }
    made = subprocess.run(
        [
            *(sys.executable, "-m", "trinity_compat", "run", "--device", "cpu", str(script)),
            *("--", *case.arguments.format(home=home, work=tmp_path).split()),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUNS_S,
        preexec_fn=die_with_parent,
    )
    told = f"{made.stdout[-3000:]}\n{made.stderr[-3000:]}"
    assert made.returncode == 0, told
    assert f"step {case.steps}/{case.steps} " in made.stdout, told
    for text in case.says:
        assert text in made.stdout, told


@pytest.mark.nightly
@pytest.mark.runtime
@pytest.mark.timeout(RUNS_S + 60)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_script_ends_with_exit_code_0(case, tmp_path, home):
    check(case, tmp_path, home)


@pytest.mark.whole
@pytest.mark.runtime
@pytest.mark.timeout(RUNS_S + 60)
def test_a_reward_function_s_words_are_in_the_command_s_output(tmp_path, home):
    check(SAMPLE, tmp_path, home)
