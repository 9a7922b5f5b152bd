"""Mode serve before anything starts: where it listens, whom it lets in, and what it needs of a file."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from toy_plan import source

from trinity_compat.buffer import open_buffer
from trinity_compat.cli.run import command
from trinity_compat.common.errors import UserError
from trinity_compat.job.gpus import engine_count
from trinity_compat.job.run_spec import SERVE_KEY, RunSpec, ServeSpec
from trinity_compat.run.checks import preflight
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise.sides import standalone_commands
from trinity_compat.run.supervise.standalone import ServeWatch

# No taskset, no algorithm: upstream needs none to serve.
LEAST = {
    "mode": "serve",
    "project": "p",
    "name": "n",
    "model": {"model_path": "/m", "max_prompt_tokens": 64, "max_response_tokens": 16},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "explorer": {"rollout_model": {"engine_num": 3, "tensor_parallel_size": 2}},
}


def plan_of(explorer=None, device="cpu", **options):
    config = {**LEAST, "explorer": {**LEAST["explorer"], **(explorer or {})}}
    return make_plan(config, RunOptions(**options), cwd=Path("/work"), device=device)


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch):
    monkeypatch.delenv(SERVE_KEY, raising=False)


def test_a_file_that_says_nothing_is_served_on_this_machine_alone():
    made = plan_of()
    assert made.spec.serve == ServeSpec("127.0.0.1", 8010, 60.0)
    assert "endpoint  127.0.0.1:8010, newer weights within 60 s" in describe(made)


def test_an_address_that_others_reach_needs_a_key(monkeypatch):
    for host in ("0.0.0.0", "10.0.0.1", "gpu-node"):
        with pytest.raises(UserError, match=rf"listen_address={host}: other machines reach") as told:
            plan_of({"listen_address": host})
        assert SERVE_KEY in told.value.hint
    monkeypatch.setenv(SERVE_KEY, "secret")
    made = plan_of({"listen_address": "0.0.0.0"})
    assert made.spec.serve.host == "0.0.0.0"
    assert "secret" not in str(made.spec) + str(made.notes)
    assert plan_of({"listen_address": "localhost"}).spec.serve.host == "127.0.0.1"
    assert plan_of().spec.serve.host == "127.0.0.1"  # a key alone opens nothing


@pytest.mark.parametrize(
    "explorer", [{"proxy_port": 70000}, {"proxy_port": True}, {"service_status_check_interval": 0}]
)
def test_numbers_out_of_range_are_refused(explorer):
    with pytest.raises(UserError, match=next(iter(explorer))):
        plan_of(explorer)


def test_the_engines_are_all_that_the_file_asks_for():
    rollout = plan_of(device="cuda").spec.verl["actor_rollout_ref"]["rollout"]
    assert (engine_count(rollout, "cuda"), rollout["tensor_model_parallel_size"]) == (3, 2)
    assert engine_count(plan_of().spec.verl["actor_rollout_ref"]["rollout"], "cpu") == 1
    two = plan_of(sets=("explorer.rollout_model.engine_num=2",)).spec.verl["actor_rollout_ref"]["rollout"]
    assert engine_count(two, "cpu") == 2


def test_a_script_s_job_is_served_too(tmp_path):
    made = make_plan(source()[0].config, RunOptions(mode="serve", job=str(tmp_path)), cwd=Path("/work"))
    assert made.spec.serve.port == 8010
    training = make_plan(source()[0].config, RunOptions(job=str(tmp_path)), cwd=Path("/work"))
    assert made.spec.sync.directory != training.spec.sync.directory
    assert made.spec.database_url == training.spec.database_url
    path = tmp_path / "serve.json"
    made.spec.save(path)
    assert RunSpec.load(path).serve == made.spec.serve
    (started,) = standalone_commands(made, "ray:1")
    assert (started.role, started.argv[-1]) == ("serve", "--serve")


def test_a_port_that_is_taken_is_said_before_anything_starts():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"proxy_port={port}: nothing can listen on 127\.0\.0\.1:{port}"):
            preflight.check_port("127.0.0.1", port)
    preflight.check_port("127.0.0.1", 0)


def test_a_dry_run_needs_no_data(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(LEAST))
    done = CliRunner().invoke(command, [str(file), "--dry-run", "--device", "cuda", "--gpus", "6"])
    assert done.exit_code == 0, done.output
    assert "mode serve: 3 engine(s)" in done.output and "data." not in done.output
    assert "saves" not in done.output  # it trains nothing
    (line,) = [at for at, text in enumerate(file.read_text().splitlines(), 1) if "model_path" in text]
    assert [line for line in done.output.splitlines() if "note:" in line] == [
        f"note: {file}:{line}: model.model_path=/m: no such folder"
    ]


def test_a_served_model_s_address_and_steps_are_printed(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/buffer.db"
    buffer = open_buffer(url)
    buffer.beat("serve", "serve", state="running", detail={"address": "http://gone", "step": 1})
    watch = ServeWatch(url)
    watch.begin()
    watch._before = frozenset({0})  # as if another process had said that
    for detail in (
        {"address": "http://x/v1", "step": 0},
        {"address": "http://x/v1", "step": 4},
        {"address": "http://x/v1", "step": 4, "note": "could not be read"},
    ):
        buffer.beat("serve", "serve", state="running", detail=detail)
        watch.update()
        watch.update()
    assert capsys.readouterr().out.splitlines() == [
        "serves the model as it was before training at http://x/v1; Ctrl-C ends it",
        "serves the weights of step 4 at http://x/v1; Ctrl-C ends it",
        "note: could not be read",
    ]
