"""The wheel alone in a fresh venv (`pip install .`): what works, and what says which extra it needs."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import needs
import pytest
from command_paths import commands
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from trinity_compat.common import optional_packages
from trinity_compat.verl_config import PINNED

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
NEEDS_RUN = (2, "hint: pip install 'trinity-compat[run]'")

# Command → its words, the exit code, and what it says.
CASES = {
    ("advise",): ("run.sh --gpus 2", 0, "split, offset 1"),
    ("audit",): ("run.sh", 0, "verl.trainer.main_ppo"),
    ("buffer", "export"): (".", *NEEDS_RUN),
    ("buffer", "prune"): (". --keep-steps 1", *NEEDS_RUN),
    ("buffer", "show"): (".", *NEEDS_RUN),
    ("buffer", "stats"): (".", *NEEDS_RUN),
    ("checkpoint", "to-hf"): ("job", *NEEDS_RUN),
    ("compare",): ("a.jsonl b.jsonl", 0, "critic/score/mean"),
    ("completion",): ("bash", 0, "_TRINITY_COMPAT_COMPLETE=bash_complete"),
    ("debug",): ("run.sh -m workflow", *NEEDS_RUN),
    ("diff",): ("run.sh x.yaml --env TOY_DIR=/toy", 0, "no difference in effect"),
    ("doctor",): ("", 1, "not installed: "),
    ("explain",): ("data.train_batch_size TC020", 0, "Batch sizes"),
    ("export",): ("run.sh --to slurm", 0, "#SBATCH --nodes=1"),
    ("ignored",): ("run.sh", 0, "no setting without effect is known"),
    ("parse",): ("run.sh", 0, "verl.trainer.main_ppo"),
    ("plugin-dir",): ("", 0, "upstream"),
    ("profile",): ("cpu", 0, "attn_implementation"),
    ("report",): ("job", *NEEDS_RUN),
    ("rules", "families"): ("", 0, "verl-agent"),
    ("rules", "init"): ("run.sh", 0, "has its place already"),
    ("run",): ("run.sh", *NEEDS_RUN),
    ("schema",): ("dry-run", 0, "run --dry-run --format json"),
    ("sizes",): ("run.sh", 0, "answers of a step"),
    ("status",): ("job", *NEEDS_RUN),
    ("studio",): (".", 2, "hint: pip install 'trinity-compat[studio]'"),
    ("to-verl",): ("x.yaml", 0, "python3 -m verl.trainer.main_ppo"),
    ("toy",): ("toy", *NEEDS_RUN),
    ("trial",): ("run.sh", *NEEDS_RUN),
    ("translate",): ("run.sh", 0, "checkpoint_root_dir:"),
    ("upgrade",): ("run.sh", 0, "verl.trainer.main_ppo"),
}
MORE = [
    (("run",), "run.sh --dry-run", 0, "steps     60 veRL steps"),
    (("run",), "x.yaml --dry-run", 0, "steps     60 veRL steps"),
    (("debug",), "job -m workflow", *NEEDS_RUN),
    (("compare",), "--configs run.sh x.yaml", 0, "B = x.yaml (a Trinity configuration"),
    (("translate",), "x.yaml", 2, "this is a Trinity configuration already"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the sdist and of the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def light(built):
    """The command in a venv that holds the wheel and what it depends on."""
    venv = built.parent / "light"
    call(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "--no-index")
    call(*pip, "--find-links", needs.made(".wheels", "hashes/light.txt"), *built.glob("*.whl"))
    return venv / "bin" / "trinity-compat"


@pytest.fixture(scope="module")
def folder(light, tmp_path_factory):
    """What the commands are given: a script, its translation, a job, two curves."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "run.sh").write_text(SCRIPT.read_text())
    for name in ("a.jsonl", "b.jsonl"):
        rows = (f'{{"step": {step}, "data": {{"critic/score/mean": 0.5}}}}\n' for step in range(1, 9))
        (folder / name).write_text("".join(rows))
    call(light, "translate", "run.sh", "-o", "x.yaml", "--env", "TOY_DIR=/toy", cwd=folder)
    (folder / "job" / "config").mkdir(parents=True)
    (folder / "job" / "config" / "run.json").write_text(
        f'{{"job_dir": "{folder}/job", "database_url": "sqlite:///{folder}/job/experiences.db", "sync": {{}},'
        ' "verl": {"actor_rollout_ref": {"actor": {"strategy": "fsdp"}}}, "updates_per_step": 1,'
        ' "total_steps": 1}'
    )
    (folder / "job" / "global_step_1" / "actor").mkdir(parents=True)
    (folder / "job" / "latest_checkpointed_iteration.txt").write_text("1")
    return folder


def call(*words, code=0, **options):
    """stdout and stderr of a program that sees nothing of this environment's packages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, words)), env=env | {"TOY_DIR": "/toy"}, capture_output=True, text=True, **options
    )
    told = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in told) == (code, False), told
    return told


def test_the_lines_for_a_machine_without_a_network_install_it(built, tmp_path):
    section = (ROOT / "docker" / "README.md").read_text().partition("## Without a network")[2]
    lines = section.partition("There:")[2].splitlines()
    (tmp_path / "wheels").mkdir()
    for wheel in (*needs.made(".wheels", "hashes/light.txt").glob("*.whl"), *built.glob("*.whl")):
        (tmp_path / "wheels" / wheel.name).symlink_to(wheel)
    call("bash", "-ec", "\n".join(line for line in lines if line.startswith("    ")), cwd=tmp_path)
    assert "Usage" in call(tmp_path / ".venv" / "bin" / "trinity-compat", "audit", "--help")


def test_the_licence_and_the_type_marker_are_shipped(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    text = (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in text and b"END OF TERMS AND CONDITIONS" in text
    with zipfile.ZipFile(wheel) as packed:
        names = {name.partition("/")[2]: name for name in packed.namelist()}
        assert packed.read(names["licenses/LICENSE"]) == text
        assert "License-Expression: Apache-2.0" in packed.read(names["METADATA"]).decode()
        assert "trinity_compat/py.typed" in packed.namelist()
    with tarfile.open(sdist) as packed:
        base = sdist.name.removesuffix(".tar.gz")
        assert packed.extractfile(f"{base}/LICENSE").read() == text
        assert f"{base}/trinity_compat/py.typed" in packed.getnames()


def test_every_command_is_here():
    assert set(commands()) == CASES.keys()


@pytest.mark.parametrize(
    ("path", "words", "code", "said"), [*((path, *case) for path, case in CASES.items()), *MORE]
)
def test_a_command_of_the_wheel_alone(light, folder, path, words, code, said):
    assert said in call(light, *path, *words.split(), code=code, cwd=folder)


@pytest.mark.parametrize("path", [(), *sorted({path[:n] for path in commands() for n in (1, 2)})])
def test_help_needs_no_extra(light, folder, path):
    assert "Usage: " in call(light, *path, "--help", cwd=folder)


def test_doctor_names_all_that_a_run_lacks(light, folder):
    told = call(light, "doctor", code=1, cwd=folder)
    assert all(package in told for package in optional_packages.releases("run"))


def test_what_a_run_needs_is_in_its_extra():
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["run"]
    needed = {each.name.lower(): each.specifier for each in map(Requirement, text)}
    installed = {name: SpecifierSet(releases) for name, releases in optional_packages.releases("run").items()}
    assert installed == needed, "the environment was made from an older pyproject.toml: `make install`"
    assert {package.lower() for package in optional_packages.EVERY_RUN} <= needed.keys()
    assert PINNED in needed["verl"] and not needed["torch"]


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("sqlalchemy", "run"),
        ("transfer_queue", "run"),
        ("pyarrow", "data"),
        ("psycopg", "postgres"),
        ("vllm", "gpu"),
    ],
)
def test_a_missing_module_is_told_with_the_smallest_extra_that_has_it(module, extra):
    told = optional_packages.explained(ModuleNotFoundError(name=module))
    assert told.hint.startswith(optional_packages.install_command(extra))


@pytest.mark.parametrize("module", ["trinity_compat.nothing", "verl.nothing", "nothing", None])
def test_what_no_extra_would_bring_keeps_its_traceback(module):
    assert optional_packages.explained(ModuleNotFoundError(name=module)) is None
