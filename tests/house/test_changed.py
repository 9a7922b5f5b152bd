"""Parts of CI that a change runs: `scripts/ci/changed.py`."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "ci"))
import changed  # noqa: E402

LIGHT_SIDE = ("launch", "verl_config", "translate", "trinity/config", "audit", "compare")


@pytest.mark.parametrize("package", LIGHT_SIDE)
def test_a_change_of_the_light_side_runs_no_job_and_no_engine(package):
    for file in (ROOT / "trinity_compat" / package).rglob("*.py"):
        assert not changed.parts_of(str(file.relative_to(ROOT))) & {"whole", "proof", "postgres"}, file


@pytest.mark.parametrize("process", ["explorer", "trainer", "buffer", "synchronizer", "run"])
def test_a_change_of_a_job_s_processes_runs_jobs(process):
    for file in (ROOT / "trinity_compat" / process).rglob("*.py"):
        assert changed.parts_of(str(file.relative_to(ROOT))) >= {"runtime", "whole"}, file


@pytest.mark.parametrize("module", ["common/errors", "job/run_spec", "common/nested", "common/atomic_write"])
def test_a_change_of_what_everything_uses_runs_all(module):
    assert changed.parts_of(f"trinity_compat/{module}.py") >= changed.ALL - {"upstream", "postgres"}


def test_every_module_of_a_job_s_process_and_all_that_it_imports_runs_jobs():
    """By the import graph, so that a new import cannot slip past the choice."""
    import grimp

    graph = grimp.build_graph("trinity_compat")
    used = {
        module
        for process in changed.PROCESSES
        for own in {f"trinity_compat.{process}"} | graph.find_descendants(f"trinity_compat.{process}")
        for module in {own} | graph.find_upstream_modules(own)
    }
    assert len(used) > 200
    for module in used:
        path = module.replace(".", "/")
        file = f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"
        assert "whole" in changed.parts_of(file), module


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("docs/running.md", set()),
        ("README.md", set()),
        (".github/workflows/ci.yml", set()),
        (".pre-commit-hooks.yaml", set()),
        ("docs/howto.md", {"runtime", "whole", "proof"}),
        ("trinity_compat/studio/templates/run.html", {"browser", "postgres"}),
        ("tests/audit/test_cli.py", set()),
        ("tests/studio/test_browser.py", {"browser", "postgres"}),
        ("tests/conftest.py", changed.ALL),
        ("pyproject.toml", changed.ALL),
        ("requirements/cpu.txt", changed.ALL),
        (".ci/landed", set()),
        (".ci/run", changed.ALL),
        ("Makefile", changed.ALL),
        ("overrides/cpu.yaml", changed.ALL),
        ("a_new_folder/file", changed.ALL),
        ("trinity_compat/no_such_module.py", changed.ALL),
    ],
)
def test_other_files_run_what_reads_them(path, parts):
    assert changed.parts_of(path) == parts


@pytest.mark.parametrize("text", [None, "", "main", "0" * 40])
def test_without_a_landed_commit_all_parts_run(tmp_path, monkeypatch, capsys, text):
    if text is not None:
        (tmp_path / "landed").write_text(text)
    monkeypatch.setattr(changed, "LANDED", tmp_path / "landed")
    monkeypatch.setattr(sys, "argv", ["changed.py"])
    changed.main()
    told = capsys.readouterr()
    assert told.out.split() == ["light", *changed.ABOUT]
    assert "all parts run" in told.err


def test_what_is_left_out_is_said_with_the_file_that_runs_the_rest(monkeypatch, capsys):
    monkeypatch.setattr(changed, "changed_files", lambda since: ["trinity_compat/studio/app.py"])
    monkeypatch.setattr(sys, "argv", ["changed.py", "--since", "1" * 40])
    changed.main()
    told = capsys.readouterr()
    assert told.out.split() == ["light", "postgres", "browser"]
    assert "browser: runs (trinity_compat/studio/app.py)" in told.err
    assert "whole: left out" in told.err
