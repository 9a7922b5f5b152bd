"""Databases that an attacker made: `status` and `buffer` end within their limits, say what is wrong, and
change nothing."""

import pytest
from buffer_samples import groups
from hostile_databases import SPOILED

from trinity_compat.buffer import open_buffer, reading
from trinity_compat.cli import main
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir.job_dir import JobDir


@pytest.fixture
def job(tmp_path, request):
    made = JobDir(tmp_path / "job")
    made.create()
    url = made.default_database_url
    RunSpec(str(made.root), url, {}, updates_per_step=1, total_steps=2, sync=SyncSpec()).save(made.spec_path)
    buffer = open_buffer(url)
    buffer.put_groups(groups(8))
    for step in (1, 2):
        buffer.log_metrics("trainer", step, {"critic/score/mean": 0.5})
    buffer.beat("trainer", "trainer", state="done", detail={})
    buffer.close()
    request.param(made.root / "buffer" / "experiences.db")
    return made.root


COMMANDS = [
    ("status", "--once"),
    ("buffer", "stats"),
    ("buffer", "show"),
    ("buffer", "export"),
]


@pytest.mark.parametrize("job", SPOILED, indirect=True, ids=lambda one: one.__name__)
def test_each_command_ends_and_says_what_is_wrong(job, monkeypatch, capsys):
    monkeypatch.setattr(reading, "_CPU_S", 1.0)
    file = job / "buffer" / "experiences.db"
    before = file.read_bytes()
    codes = []
    for command in COMMANDS:
        try:
            main([*command, str(job)])
        except SystemExit as end:
            codes.append(end.code)
        else:
            codes.append(0)
        said = capsys.readouterr().err
        assert codes[-1] in (0, 1, 2) and "Traceback" not in said, (command, said)
        assert codes[-1] == 0 or f"{file}" in said, (command, said)
    assert any(codes), "no command saw anything wrong"
    assert file.read_bytes() == before
