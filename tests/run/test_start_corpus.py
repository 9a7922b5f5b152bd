"""scripts/judge/start_corpus.py: what stock veRL does not start either."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from loaded_scripts import SCRIPTS, loaded

from trinity_compat.launch import read_script
from trinity_compat.launch.model import Launch
from trinity_compat.verl_config.pinned import pinned_tree


@pytest.fixture
def start_corpus(monkeypatch):
    return loaded("start_corpus", monkeypatch)


@pytest.mark.parametrize(
    ("main", "gone"),
    [
        ("verl.trainer.main_ppo", False),
        ("verl.trainer.main_ppo_sync", True),
        ("verl.experimental.fully_async_policy.fully_async_main", False),
        ("recipe.mine.main_mine", False),
    ],
)
def test_a_main_of_verls_own_that_0_9_1_lacks(start_corpus, main, gone):
    assert start_corpus._is_gone(main) is gone


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (': "${SCRATCH:?say where}"', "$SCRATCH must be set; without it bash ends the script here"),
        ('S="${SCRATCH:-/tmp}"', ""),
        ("cp -r out ${SCRATCH:?say where}", ""),
    ],
)
def test_a_variable_without_which_bash_ends_the_script(start_corpus, tmp_path, line, told):
    launch = "python3 -m verl.trainer.main_ppo \\\n  a=1"
    parts = [launch, line] if line.startswith("cp") else [line, launch]
    (tmp_path / "run.sh").write_text("\n".join(parts))
    assert start_corpus._wanting([str(tmp_path), "run.sh"]) == told
    assert start_corpus._wanting(["python3", "-m", "verl.trainer.main_ppo"]) == ""


def test_what_a_launch_exports_is_applied(start_corpus, tmp_path, monkeypatch):
    text = "export VLLM_USE_V1=0 HF_HUB_OFFLINE=0\nexport NOT_KNOWN=$(hostname)\n"
    (tmp_path / "run.sh").write_text(f"{text}python3 -m verl.trainer.main_ppo a=1\n")
    environ: dict[str, str] = {}
    seen = []
    monkeypatch.setattr(start_corpus.os, "environ", environ)
    monkeypatch.setattr(start_corpus, "_refused_here", lambda *_: seen.append(dict(environ)) or "")
    monkeypatch.setattr(start_corpus, "_own_to_fork", lambda *_: [])
    assert start_corpus.judged("x", [str(tmp_path), "run.sh"], "cuda", tmp_path).state == start_corpus.STARTS
    assert seen == [{"VLLM_USE_V1": "0", **start_corpus.QUIET}]


def in_a_fork(folder: Path, *words: str, **defaults: object) -> Launch:
    """A launch in a copy of veRL 0.9.1 with these defaults of ``algorithm``."""
    tree = pinned_tree("ppo_trainer")
    tree["algorithm"] |= defaults
    config = folder / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(yaml.safe_dump(tree))
    sizes = ("actor.ppo", "rollout.log_prob", "ref.log_prob")
    given = [f"actor_rollout_ref.{size}_micro_batch_size_per_gpu=1" for size in sizes]
    given += ["data.train_files=a.parquet", "data.val_files=b.parquet", "actor_rollout_ref.model.path=org/m"]
    given += ["critic.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.name=vllm", *words]
    (folder / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo {' '.join(given)}\n")
    return read_script(folder / "run.sh", cwd=folder).launches[0]


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore:Disabled critic", "ignore:Warning. Class .verl")
def test_a_fork_s_default_that_breaks_veRL_is_counted_apart(start_corpus, tmp_path):
    by_default, by_launch = tmp_path / "default", tmp_path / "launch"
    launch = in_a_fork(by_default, adv_estimator="mine")
    assert "mine" in start_corpus._refused_by_verl(launch, by_default, tmp_path)
    assert start_corpus._breaks_by_default(launch, by_default, tmp_path)
    launch = in_a_fork(by_launch, "algorithm.adv_estimator=mine", adv_estimator="mine")
    assert "mine" in start_corpus._refused_by_verl(launch, by_launch, tmp_path)
    assert not start_corpus._breaks_by_default(launch, by_launch, tmp_path)


OURS = "cannot be run decoupled"


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("words", "state"),
    [
        ((), "OURS_ALONE"),
        (("actor_rollout_ref.rollout.agent.default_agent_loop=mine",), "NOT_UNDER_VERL"),
        (("actor_rollout_ref.rollout.agent.agent_loop_manager_class=verl.mine.M",), "NOT_UNDER_VERL"),
        (("distillation.enabled=True",), "NOT_UNDER_VERL"),
    ],
)
def test_our_reason_to_refuse_a_fork_s_launch_is_judged_without_its_fork(
    start_corpus, tmp_path, monkeypatch, words, state
):
    in_a_fork(tmp_path, "algorithm.mine=2", "algorithm.adv_estimator=grpo", *words, mine=1)
    monkeypatch.setattr(start_corpus, "_refused_here", lambda *_: OURS)
    outcome = start_corpus.judged("x", [str(tmp_path), "run.sh"], "cuda", tmp_path)
    assert outcome.state == getattr(start_corpus, state)
    assert (outcome.why if state == "OURS_ALONE" else outcome.ours) == OURS


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore")
def test_our_reason_may_be_the_fork_s_key_itself(start_corpus, tmp_path, monkeypatch):
    in_a_fork(tmp_path, "algorithm.mine=2", "algorithm.adv_estimator=grpo", mine=1)
    monkeypatch.setattr(start_corpus, "_refused_here", lambda *_: "Hydra would refuse algorithm.mine: …")
    outcome = start_corpus.judged("x", [str(tmp_path), "run.sh"], "cuda", tmp_path)
    assert outcome.state == start_corpus.NOT_UNDER_VERL


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore")
def test_a_user_s_main_does_not_hide_our_reason(start_corpus, tmp_path, monkeypatch):
    words = (*STOCK, "data.gen_batch_size=64", "trainer.use_v1=True")
    (tmp_path / "run.sh").write_text(f"python3 -m my_entry {' '.join(words)}\n")
    monkeypatch.setattr(start_corpus, "_refused_here", lambda *_: OURS)
    outcome = start_corpus.judged("x", [str(tmp_path), "run.sh"], "cuda", tmp_path)
    assert (outcome.state, outcome.why) == (start_corpus.OURS_ALONE, OURS)


@pytest.mark.parametrize(
    ("own", "moved"),
    [
        (["distillation.teacher_model.nnodes"], True),
        (["distillation.teacher_model.nodes"], False),
        (["trainer.mine.nnodes"], False),
        (["distillation.nnodes"], False),
    ],
)
def test_a_reason_that_may_follow_from_a_dropped_key_is_no_proof(start_corpus, own, moved):
    why = "config.distillation.nnodes must be greater than 0"
    assert start_corpus._names_a_key_that_moved(why, own) is moved


@pytest.mark.verl
def test_a_fork_s_launch_that_no_hydra_composes_does_not_start_under_veRL_either(start_corpus, tmp_path):
    launch = in_a_fork(tmp_path, "--config-name=mine")
    assert "Cannot find the config 'mine'" in start_corpus._refused_by_verl(launch, tmp_path, tmp_path)
    assert not start_corpus._breaks_by_default(launch, tmp_path, tmp_path)


def test_a_line_of_a_list_may_have_variables_and_arguments(start_corpus, tmp_path):
    (tmp_path / "run.sh").write_text('python3 -m verl.trainer.main_ppo a="$ROOT" b=$1\n')
    (tmp_path / "list.txt").write_text(f"{tmp_path} run.sh ROOT='/a b' 8\n\n{tmp_path} other.sh\n")
    (name, given), other = start_corpus.scripts(tmp_path / "list.txt")
    assert name == f"{tmp_path.name}:run.sh" and other[1] == [str(tmp_path), "other.sh"]
    launch, root = start_corpus._launch(given)
    assert ([word.text for word in launch.arguments], root) == (["a=/a b", "b=8"], tmp_path)


def test_a_recorded_commit_counts_the_first_launch_of_each_script(start_corpus):
    launches = [{"module": "m", "args": ["a=1"], "wrapper": ["torchrun", "--nnodes=1"]}, {}]
    scripts = [{"path": "x.sh", "launches": launches}, {"path": "y.sh", "launches": []}]
    assert start_corpus.recorded({"scripts": scripts}) == [
        ("x.sh", ["torchrun", "--nnodes=1", "-m", "m", "a=1"]),
        ("y.sh", []),
    ]
    outcome = start_corpus.judged("y.sh", [], "cuda", Path(), stock=True)
    assert (outcome.state, outcome.why) == (start_corpus.NOT_READ, "bash makes no launch of it")


@pytest.mark.parametrize(
    ("ours", "stock", "idle", "own", "state", "why"),
    [
        ("", "", ("", ""), [], "STARTS", ""),
        ("no", "", ("", ""), [], "REFUSED", "no"),
        ("no", "neither", ("", ""), [], "NOT_UNDER_VERL", "neither"),
        ("", "dies", ("", ""), [], "FALSE_START", "dies"),
        ("no", "", ("stock trains no step", "0"), [], "stock trains no step", "0"),
        ("", "", ("stock trains no step", "0"), [], "FALSE_START", "0"),
        ("", "", ("", ""), ["k"], "REFUSED", "it needs --allow-fork-keys for k"),
    ],
)
def test_stock_is_asked_about_every_launch(start_corpus, monkeypatch, ours, stock, idle, own, state, why):
    monkeypatch.setattr(start_corpus, "_refused_here", lambda *_: ours)
    monkeypatch.setattr(start_corpus, "_own_to_fork", lambda *_: own)
    monkeypatch.setattr(start_corpus.stock_verl, "says", lambda *_: (stock, {}))
    monkeypatch.setattr(start_corpus.stock_verl, "trains_nothing", lambda *_: idle)
    given = ["python3", "-m", "verl.trainer.main_ppo", "a=1"]
    outcome = start_corpus.judged("x", given, "cuda", Path(), stock=True)
    assert (outcome.state, outcome.why) == (getattr(start_corpus, state, state), why)


def test_what_veRL_itself_does_not_train_is_counted_apart(start_corpus):
    found = [
        start_corpus.Outcome(name, state)
        for name, state in (
            ("a", start_corpus.STARTS),
            ("b", start_corpus.REFUSED),
            ("c", start_corpus.stock_verl.NO_STEP),
            ("d", start_corpus.stock_verl.ENDS_AT_UPDATE),
            ("e", start_corpus.FALSE_START),
        )
    ]
    lines = list(start_corpus.table(found))
    assert lines[0] == "5 launches; 2 can start under veRL; of these 1 start here (50%)"
    assert {f"{outcome.state}: 1" for outcome in found[1:]} < set(lines)


def test_a_launch_that_started_before_and_no_longer_does_is_named(start_corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(start_corpus, "FLOORS", tmp_path / "floors.json")
    before = [start_corpus.Outcome(name, start_corpus.STARTS) for name in "cab"]
    start_corpus.write_floor("row", [*before, start_corpus.Outcome("d", start_corpus.REFUSED)])
    assert yaml.safe_load((tmp_path / "floors.json").read_text()) == {
        "row": {"stock": 4, "ours": 3, "starts": ["a", "b", "c"]}
    }
    floor = start_corpus.floor_of("row")
    assert start_corpus.fallen(before, floor) == []
    now = [before[0], start_corpus.Outcome("a", start_corpus.REFUSED, "no")]
    assert [(outcome.name, outcome.why) for outcome in start_corpus.fallen(now, floor)] == [
        ("a", "no"),
        ("b", "no such script"),
    ]


def fully_async(samples: int, **actor: object) -> dict:
    """Stock's configuration of 12 trainer GPUs, with the keys of its steps and mini-batches alone."""
    given = {"strategy": "fsdp2", "ppo_mini_batch_size": 32, "ulysses_sequence_parallel_size": 1, **actor}
    return {
        "actor_rollout_ref": {"actor": given, "rollout": {"n": 16}},
        "trainer": {"nnodes": 2, "n_gpus_per_node": 6},
        "rollout": {"total_rollout_steps": samples},
        "async_training": {"require_batches": 4, "trigger_parameter_sync_step": 3},
    }


FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
MEGATRON = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 2}


@pytest.mark.parametrize(
    ("tree", "module", "state", "numbers"),
    [
        (fully_async(383), FULLY_ASYNC, "stock trains no step", "int(383 / (128 * 3)) = 0"),
        (fully_async(384), FULLY_ASYNC, "stock ends at its first update", "=512 and self.engine"),
        (fully_async(396, ppo_mini_batch_size=33), FULLY_ASYNC, "", ""),
        (fully_async(384, ulysses_sequence_parallel_size=4), FULLY_ASYNC, "stock ends at its first", "()=3"),
        (fully_async(384, strategy="megatron", megatron=MEGATRON), FULLY_ASYNC, "stock ends", "()=3"),
        (fully_async(384, strategy="veomni"), FULLY_ASYNC, "", ""),
        (fully_async(9, strategy="veomni"), "verl.trainer.main_ppo", "", ""),
        ({}, FULLY_ASYNC, "", ""),
    ],
)
def test_a_launch_with_which_veRL_trains_nothing(start_corpus, tree, module, state, numbers):
    found = start_corpus.stock_verl.trains_nothing(tree, module)
    assert found[0].startswith(state) and numbers in found[1] and bool(found[0]) == bool(state)


STOCK = [
    "data.train_files=a.parquet",
    "data.val_files=b.parquet",
    "actor_rollout_ref.model.path=org/m",
    "actor_rollout_ref.rollout.name=vllm",
    "algorithm.adv_estimator=grpo",
    *(
        f"actor_rollout_ref.{size}_micro_batch_size_per_gpu=1"
        for size in ("actor.ppo", "rollout.log_prob", "ref.log_prob")
    ),
]


@pytest.mark.verl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        ("verl.trainer.main_ppo", STOCK, ""),
        ("verl.trainer.main_ppo", [*STOCK, "actor_rollout_ref.actor.mine=1"], "Hydra: Could not override"),
        ("verl.trainer.main_ppo", [*STOCK, "--config-name=mine"], "Hydra: Cannot find primary config 'mine'"),
        (
            "verl.trainer.main_ppo",
            [*STOCK, "+actor_rollout_ref.actor.policy_loss.tau_pos=1"],
            "unexpected keyword argument 'tau_pos'",
        ),
        ("verl.trainer.main_ppo", STOCK[:5], "micro_batch_size"),
        ("verl.trainer.main_ppo", [*STOCK, "actor_rollout_ref.model.path=/path/to/model"], "to be filled in"),
        (
            "verl.trainer.main_ppo",
            [*STOCK, "reward.reward_manager.name=mine"],
            "no reward manager is named mine",
        ),
        ("verl.trainer.main_ppo", [*STOCK, "algorithm.adv_estimator=mine"], "mine"),
        ("verl.trainer.main_ppo_sync", STOCK, "a main that 0.9.1 does not have"),
        ("verl.trainer.sft_trainer", ["data.train_files=a.parquet", "model.path=org/m"], ""),
        ("verl.trainer.sft_trainer", ["optim.mine=1"], "Hydra: Could not override"),
        ("verl.trainer.sft_trainer", ["+optim.mine=1"], "unexpected keyword argument 'mine'"),
    ],
)
def test_stock_s_own_hydra_and_objects_say_whether_it_starts(
    start_corpus, tmp_path, monkeypatch, module, words, told
):
    monkeypatch.chdir(tmp_path)
    says, tree = start_corpus.stock_verl.says(module, words, tmp_path, tmp_path)
    assert told in says and bool(says) == bool(told), says
    assert says or module != "verl.trainer.main_ppo" or tree["trainer"]["nnodes"] == 1


def nightly(folder: Path, *, fails: str = "nothing", **variables: str) -> tuple[int, list[str]]:
    """(exit code, the counts asked for) of scripts/judge/main_starts.sh, whose programs write them down."""
    for name, text in {
        ".venv/bin/python": f'shift; echo "$@" >> asked; [[ $* != *{fails}* ]]',
        "scripts/ci/unpack_vllm.sh": "echo /vllm",
        "scripts/ci/unpack_vision.sh": "echo /vision",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "scripts" / "judge").mkdir(exist_ok=True)
    shutil.copy(SCRIPTS / "judge" / "main_starts.sh", folder / "scripts" / "judge")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TC_VERL")}
    done = subprocess.run(
        [folder / "scripts" / "judge" / "main_starts.sh"], env=environment | variables, check=False
    )
    return done.returncode, (folder / "asked").read_text().splitlines()


RECORDED = "tests/facts/main.json.xz --floor main-2026-08-22 --device cuda --vllm /vllm"


def test_the_recorded_commit_is_counted_every_night(tmp_path):
    assert nightly(tmp_path) == (0, [RECORDED])


def test_a_launch_that_fell_fails_the_night(tmp_path):
    assert nightly(tmp_path, fails="--floor")[0] == 1


def test_the_newest_commit_of_a_clone_is_counted_before_it(tmp_path):
    clone, git = tmp_path / "clone", ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C"]
    subprocess.run(["git", "init", "-q", clone], check=True)
    for _ in range(2):
        subprocess.run([*git, clone, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    shown = subprocess.run([*git, clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    subprocess.run([*git, clone, "update-ref", "refs/remotes/origin/HEAD", "HEAD"], check=True)
    subprocess.run([*git, clone, "reset", "-q", "--hard", "HEAD~"], check=True)
    clone_of = f"--clone {clone} --commit {{}} --device cuda --vllm /vllm"
    newest = [clone_of.format(shown.stdout.strip()), RECORDED]
    assert nightly(tmp_path, TC_VERL_GIT=str(clone)) == (0, newest)
    (tmp_path / "asked").unlink()
    given = nightly(tmp_path, TC_VERL_GIT=str(clone), TC_VERL_COMMIT="v1")
    assert given == (0, [clone_of.format("v1"), RECORDED])
