"""The trainer's process, end to end: real veRL, real models, a plain explorer."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from toy_job import CPU, HERE, TASK, PlainExplorer, job, toy
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer
from verl.utils.config import omega_conf_to_dataclass

from trinity_compat.buffer import open_buffer
from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.explorer.engine.arguments import CPU_ENV
from trinity_compat.explorer.engine.vllm import GenerationRequest
from trinity_compat.explorer.rollout.worker import make_engine
from trinity_compat.synchronizer import weight_sync_check
from trinity_compat.synchronizer.adapters import taken_apart
from trinity_compat.synchronizer.transports.files import WeightFile
from trinity_compat.synchronizer.versions import read_version

PARITY = HERE.parents[1] / "benchmarks" / "parity"
sys.path.append(str(PARITY))
from recorded_batches import RECORDING, recorded  # noqa: E402

pytestmark = pytest.mark.runtime

NAMES_OF_V1 = HERE.parent / "parity" / "metric_names_v1.txt"
TWO_PROCESSES = (HERE / "two_processes.overrides").read_text().split()
# A step's seconds, and what follows from them or from the machine.
MEASURED = ("timing_s/", "timing_per_token_ms/", "perf/", "actor/perf/", "critic/perf/")


@pytest.fixture(scope="module")
def toy_dir(tmp_path_factory):
    return toy(tmp_path_factory.mktemp("toy"))


def environment(tmp_path):
    return os.environ | {
        "RAY_TMPDIR": "/tmp",
        "TENSORBOARD_DIR": str(tmp_path / "tb"),
        "OMP_NUM_THREADS": "1",
    }


def start(job_dir):
    log = (job_dir / "trainer.log").open("a")
    command = [sys.executable, "-m", "trinity_compat.trainer", str(job_dir)]
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        env=environment(job_dir),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def train(job_dir, *, code=0):
    """Run to the end; returns the metrics by step."""
    process = start(job_dir)
    ended = process.wait(timeout=900)
    assert ended == code, (job_dir / "trainer.log").read_text()[-4000:]
    buffer = open_buffer(f"sqlite:///{job_dir}/experiences.db")
    metrics = dict(buffer.read_metrics("trainer"))
    buffer.close()
    return metrics


def learnt(metrics):
    """What the step computed, without what it measured."""
    gone = (*MEASURED, "buffer/")
    return {k: v for k, v in metrics.items() if not k.startswith(gone)}


@pytest.mark.parametrize("trainer", ["v0", pytest.param("v1", marks=pytest.mark.whole)])
def test_killed_explorer_is_noticed_and_a_rerun_repeats_the_lost_step_exactly(toy_dir, tmp_path, trainer):
    options = ["trainer.total_training_steps=4", "trainer.save_freq=2", "trainer.test_freq=4"]
    options += ["trainer.val_before_train=True", "actor_rollout_ref.actor.shuffle=True"]
    spec = job(toy_dir, tmp_path, *options, trainer=trainer)
    PlainExplorer(spec, die_after=3).start()
    before = train(tmp_path, code=3)
    assert "was last heard of" in (tmp_path / "trainer.log").read_text()
    assert sorted(before) == [0, 1, 2, 3]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "2"

    explorer = PlainExplorer(spec)
    explorer.start()
    after = train(tmp_path)
    explorer.stop.set()
    assert learnt(after[3]) == learnt(before[3])
    assert sorted(step for step in after if step > 0) == [1, 2, 3, 4]
    assert any(name.startswith("val-core/") for name in after[4])
    assert after[3]["training/rollout_probs_diff_max"] < 1e-4
    if trainer == "v1":
        assert set(NAMES_OF_V1.read_text().split()) <= set(after[4]), "a metric of stock's v1 is missing"
    buffer = explorer.buffer
    assert buffer.get_state("finished") is True
    assert buffer.depth()["trained"] == 4 * 8
    assert ledger(tmp_path) == dict.fromkeys((1, 2, 3, 4), 8 * 4)


def ledger(job_dir):
    """Experiences by step, as anyone reads them with SQL."""
    rows = sqlite3.connect(job_dir / "experiences.db").execute(
        "select trainer_step, count(*), count(distinct experience_id) from ledger group by 1"
    )
    out = {}
    for step, count, different in rows:
        assert count == different
        out[step] = count
    return out


@pytest.mark.whole
@pytest.mark.parametrize("trainer", ["v0", pytest.param("v1", marks=pytest.mark.nightly)])
def test_critic_reference_and_adaptive_kl_on_two_processes(toy_dir, tmp_path, trainer):
    options = [
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl.type=adaptive",
    ]
    options += [
        "actor_rollout_ref.actor.use_kl_loss=True",
        "trainer.save_freq=2",
        "trainer.total_training_steps=2",
    ]
    options += ["actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"]
    spec = job(toy_dir, tmp_path, *options, *TWO_PROCESSES, trainer=trainer)
    explorer = PlainExplorer(spec)
    explorer.start()
    metrics = train(tmp_path)[2]
    explorer.stop.set()
    for name in ("critic/vf_loss", "critic/grad_norm", "actor/kl_loss", "actor/reward_kl_penalty"):
        assert np.isfinite(metrics[name])
    assert metrics["training/rollout_probs_diff_max"] < 1e-4
    written = tmp_path / "global_step_2"
    assert len(list((written / "actor").glob("model_world_size_2_rank_*.pt"))) == 2
    assert len(list((written / "critic").glob("model_world_size_2_rank_*.pt"))) == 2
    exported = AutoModelForCausalLM.from_pretrained(written / "actor" / "huggingface", dtype=torch.float32)
    version = dict(read_version(explorer.buffer.get_version(2)))
    assert {n: p for n, p in exported.state_dict().items() if not torch.equal(p, version[n])} == {}


def valued(toy_dir, folder):
    """A folder with the toy as a critic, whose head would else begin at random in each run."""
    torch.manual_seed(5)
    critic = AutoModelForTokenClassification.from_pretrained(
        toy_dir / "model", num_labels=1, dtype=torch.float32
    )
    critic.save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy_dir / "model").save_pretrained(folder)
    return folder


@pytest.mark.whole
def test_two_processes_that_do_not_divide_an_update_train_what_one_does(toy_dir, tmp_path):
    """Nine answers of an update, with a critic and a reference: five on each process, with a filler."""
    options = ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=True"]
    options += ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.entropy_coeff=0.01"]
    options += ["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "data.train_batch_size=3"]
    options += ["actor_rollout_ref.actor.ppo_mini_batch_size=3", "critic.ppo_mini_batch_size=3"]
    options += ["actor_rollout_ref.rollout.n=3", "trainer.total_training_steps=2"]
    options += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2"]
    options += ["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2"]
    options += [
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "critic.ppo_max_token_len_per_gpu=56",
    ]
    options.append(f"critic.model.path={valued(toy_dir, tmp_path / 'critic')}")
    found = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        if processes == 1:  # of sizes that divide its nine rows
            sizes = [f"{option.partition('=')[0]}=3" for option in options if "log_prob_micro" in option]
        else:
            sizes = ["trainer.n_gpus_per_node=2"]
        explorer = PlainExplorer(job(toy_dir, folder, *options, *sizes))
        explorer.start()
        metrics = train(folder)
        explorer.stop.set()
        assert ledger(folder) == {1: 9, 2: 9}
        assert explorer.buffer.depth()["trained"] == 2 * 3
        found.append(metrics)
    alone, spread = (learnt(metrics[1]) for metrics in found)
    of_ranks = {name for name in alone if name.startswith("global_seqlen/")}
    names = sorted(alone.keys() - of_ranks)
    unlike = {
        name: (alone[name], spread.get(name))
        for name in names
        if spread.get(name) != pytest.approx(alone[name], rel=1e-3, abs=1e-5)
    }
    assert not unlike
    for name in ("actor/grad_norm", "critic/grad_norm", "actor/pg_loss", "actor/kl_loss", "actor/entropy"):
        assert found[1][2][name] == pytest.approx(found[0][2][name], rel=0.05, abs=1e-3), name


@pytest.mark.whole
@pytest.mark.parametrize("trainer", ["v0", pytest.param("v1", marks=pytest.mark.nightly)])
def test_sigterm_ends_it_and_gives_the_claim_back(toy_dir, tmp_path, trainer):
    spec = job(toy_dir, tmp_path, "trainer.total_training_steps=30", trainer=trainer)
    explorer = PlainExplorer(spec)
    explorer.start()
    process = start(tmp_path)
    until = time.monotonic() + 600
    while not explorer.buffer.read_metrics("trainer"):
        assert process.poll() is None and time.monotonic() < until, (tmp_path / "trainer.log").read_text()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    explorer.stop.set()
    assert explorer.buffer.depth()["claimed"] == 0


@pytest.mark.whole
def test_a_lora_version_gives_the_trainer_s_answers_in_vllm(toy_dir, tmp_path):
    begun = adapter_of(toy_dir, tmp_path / "adapter")
    lora = ["actor_rollout_ref.model.lora_rank=4", f"actor_rollout_ref.model.lora_adapter_path={begun}"]
    spec = job(toy_dir, tmp_path, *lora, "trainer.total_training_steps=1")
    explorer = PlainExplorer(spec)
    explorer.start()
    metrics = train(tmp_path)
    explorer.stop.set()
    version = explorer.buffer.get_version(1)
    tensors, _ = taken_apart(read_version(version))
    before = load_file(begun / "adapter_model.safetensors")
    assert tensors.keys() == {name for name in before if not torch.equal(before[name], tensors.get(name))}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    assert (
        nbytes < version.nbytes < min(nbytes * 1.2, sum(each.nbytes for each in explorer.base.values()) / 4)
    )
    assert metrics[1]["training/rollout_probs_diff_max"] < 1e-4  # of a merged version, bfloat16, up to 1e-3

    left = weight_sync_check.SCORED_ANSWER.get(explorer.buffer)
    without, answered = asyncio.run(thoughts_of_vllm(spec, left, version))
    assert left.difference(answered) < 1e-3
    assert left.difference(without) > 0.1, "the adapter must be visible"


def adapter_of(toy_dir, folder):
    """A folder of PEFT's with an adapter that changes what the model says."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(toy_dir / "model", dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(folder)
    return folder


async def thoughts_of_vllm(spec, left, version):
    """Log-probabilities of the self-test's answer, before the version is loaded and with it."""
    config = OmegaConf.create(dict(spec.verl))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CPU_ENV.items():
            patch.setenv(name, value)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        engine = make_engine(config, model, "cpu", 0)
        # The trainer counts the embedding's unused rows too, which an engine masks.
        engine._config = replace(engine._config, vocabulary=model.hf_config.vocab_size)
        await engine.start()
    found = []
    for number in range(2):
        ids = [*left.prompt_ids, *left.response_ids]
        asked = GenerationRequest(
            str(number), ids, {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0}
        )
        answer = (await (await engine.submit([asked]))[0])[0]
        found.append(answer.prompt_logprobs[-len(left.response_ids) :])
        await engine.load(WeightFile(version.path, version.digest, version.nbytes))
    return found


@pytest.mark.nightly
def test_with_lora_merge_a_version_is_a_whole_model(toy_dir, tmp_path):
    lora = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora.merge=True"]
    spec = job(toy_dir, tmp_path, *lora, "trainer.total_training_steps=2")
    explorer = PlainExplorer(spec)
    explorer.start()
    metrics = train(tmp_path)
    explorer.stop.set()
    version = dict(read_version(explorer.buffer.get_version(2)))
    base = AutoModelForCausalLM.from_pretrained(toy_dir / "model", dtype=torch.float32).state_dict()
    assert set(base) <= set(version)
    # verl's _merged_lora_per_tensor_param sends bfloat16: what no adapter touches is the base, rounded
    moved = {n for n in base if not torch.equal(version[n], base[n].bfloat16().float())}
    assert moved == {n for n in base if n.endswith("proj.weight")}
    assert metrics[2]["training/rollout_probs_diff_max"] < 1e-3
    assert metrics[1]["actor/grad_norm"] > 0


def test_our_trainer_equals_stock_verl_on_the_same_rollouts(toy_dir, tmp_path):
    steps = ["trainer.total_training_steps=2", "actor_rollout_ref.actor.use_kl_loss=True"]
    every_figure_is_stock_s(*replayed(toy_dir, tmp_path, *steps))


def replayed(toy_dir, tmp_path, *options, trainer="v0", stock_only=(), ours_only=()):
    """Metrics by step of two steps: stock veRL's with vLLM, and our trainer's on the same answers."""
    stock = run_stock(toy_dir, tmp_path, *options, *stock_only, trainer=trainer)
    buffer = open_buffer(job(toy_dir, tmp_path, *options, *ours_only, trainer=trainer).database_url)
    for step in (1, 2):
        buffer.put_groups(recorded(tmp_path / f"{step}.pt", step, runs=4))
    buffer.beat("explorer", "recorded", state="done")
    return stock, train(tmp_path)


def every_figure_is_stock_s(stock, ours, **within):
    """``within``: ``rel`` and ``abs`` of ``pytest.approx``."""
    within = within or {"rel": 1e-5, "abs": 1e-7}
    for step in (1, 2):
        assert set(stock[step]) <= set(ours[step]), "a metric of stock veRL is missing"
        assert stock[step]["critic/score/max"] > stock[step]["critic/score/min"], "no advantage to compute"
        for name, value in learnt(stock[step]).items():
            assert ours[step][name] == pytest.approx(value, **within), f"{name} at step {step}"


def run_stock(toy_dir, tmp_path, *options, trainer="v0"):
    """Metrics by step of ``verl.trainer.main_ppo``, from veRL's own file logger; its rows are kept."""
    stock_only = (HERE / "stock.overrides").read_text().split()
    paths = [
        f"data.train_files={toy_dir}/data/train.parquet",
        f"data.val_files={toy_dir}/data/val.parquet",
        f"actor_rollout_ref.model.path={toy_dir}/model",
        f"reward.custom_reward_function.path={HERE}/graded_reward.py",
        f"trainer.default_local_dir={tmp_path}/stock",
    ]
    extra = {"RECORD_DIR": str(tmp_path), "VERL_FILE_LOGGER_PATH": str(tmp_path / "stock.jsonl")}
    extra |= {"PYTHONPATH": str(PARITY), "TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path / "stock.log").open("w") as log:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "verl.trainer.main_ppo",
                *CPU,
                *TASK,
                *stock_only,
                *RECORDING[trainer],
                *paths,
                *options,
            ],
            env=environment(tmp_path) | extra,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            timeout=1500,
        )
    assert done.returncode == 0, (tmp_path / "stock.log").read_text()[-4000:]
    lines = map(json.loads, (tmp_path / "stock.jsonl").read_text().splitlines())
    return {line["step"]: line["data"] for line in lines}
