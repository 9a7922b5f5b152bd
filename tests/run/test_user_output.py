"""Text that users' code prints reaches the output of `run`, and nothing else of the logs does."""

import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trinity_compat.buffer import open_buffer
from trinity_compat.common.output_text import console
from trinity_compat.common.python_command import USER_FOLDER
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir import progress as displays
from trinity_compat.run.job_dir.progress import Progress
from trinity_compat.run.supervise.user_output import UserOutput

ROOT = Path(__file__).parents[2]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "explorer.log"
    path.write_text("(RewardFunction pid=1) of an earlier start\n")
    return path


def append(log, text):
    with log.open("a") as file:
        file.write(text)


def test_marked_lines_are_printed_and_others_are_not(log):
    said = []
    prints = UserOutput([log], said.append)
    append(
        log,
        "INFO 11-24 engine.py: loaded\n"
        "(RewardFunction pid=7) hello\n"
        "\x1b[36m(RolloutWorker pid=3)\x1b[0m (AgentLoop pid=8) a turn\n"
        "\x1b[36m(RolloutWorker pid=3)\x1b[0m INFO noise of an engine\n"
        "(EngineCore pid=9) more of it\n",
    )
    prints.update()
    assert said == ["(RewardFunction pid=7) hello", "(AgentLoop pid=8) a turn"]


def test_a_line_is_printed_once_and_when_it_is_whole(log):
    said = []
    prints = UserOutput([log], said.append)
    append(log, "(RewardFunction pid=7) hel")
    prints.update()
    assert said == []
    append(log, "lo\n")
    prints.update()
    prints.update()
    assert said == ["(RewardFunction pid=7) hello"]


def test_secrets_are_masked(log):
    said = []
    prints = UserOutput([log], said.append)
    append(log, "(RewardFunction pid=7) asks with API_KEY=abc https://me:secret@judge/v1\n")
    prints.update()
    assert said == ["(RewardFunction pid=7) asks with API_KEY=*** https://me:***@judge/v1"]


def test_a_minute_has_room_for_so_many_lines_and_the_rest_is_counted_with_its_log(log, tmp_path):
    said, clock = [], Clock()
    other = tmp_path / "trainer.log"
    prints = UserOutput([log, other], said.append, per_minute=2, clock=clock)
    append(log, "".join(f"(RewardFunction pid=7) {number}\n" for number in range(5)))
    append(other, "(Trainer pid=8) mine\n")
    prints.update()
    assert said == ["(RewardFunction pid=7) 0", "(RewardFunction pid=7) 1"]
    clock.now = 61.0
    append(log, "(RewardFunction pid=7) later\n")
    prints.update()
    assert said[2:] == [
        f"lines left out: 3 (users' code printed more than 2 in a minute); all of them are in {log}",
        f"lines left out: 1 (users' code printed more than 2 in a minute); all of them are in {other}",
        "(RewardFunction pid=7) later",
    ]
    prints.close()
    assert len(said) == 5


@pytest.fixture
def spec(tmp_path):
    url = f"sqlite:///{tmp_path}/experiences.db"
    open_buffer(url).close()
    return RunSpec(str(tmp_path), url, {}, updates_per_step=1, total_steps=3, sync=SyncSpec())


def test_without_a_terminal_it_is_a_plain_line(spec):
    out = io.StringIO()
    with Progress(spec, lambda: open_buffer(spec.database_url), out=out) as progress:
        progress.aside("(RewardFunction pid=7) [bold]as it is[/bold]")
    assert "(RewardFunction pid=7) [bold]as it is[/bold]\n" in out.getvalue()


def test_on_a_terminal_it_stands_above_the_panel_which_is_drawn_again(spec, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(
        displays, "console", lambda file: console(file=file, force_terminal=True, width=60, color_system=None)
    )
    with Progress(spec, lambda: open_buffer(spec.database_url), out=out) as progress:
        progress.update()
        drawn = len(out.getvalue())
        progress.aside("(RewardFunction pid=7) [bold]as it is[/bold] " + "x" * 80)
        fresh = out.getvalue()[drawn:]
    line = "(RewardFunction pid=7) [bold]as it is[/bold] " + "x" * 80
    assert line in fresh
    assert "veRL step 0/3" in fresh[fresh.index(line) :]


def test_a_side_marks_what_users_code_lets_it_print_and_nothing_else(tmp_path):
    """As the explorer does for a user's dataset, which it loads itself."""
    verls = tmp_path / "site-packages" / "verl" / "base.py"
    verls.parent.mkdir(parents=True)
    verls.write_text("def made():\n    print('dataset len: 8')\n")
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""\
            import base, pprint
            print("loaded", end="")
            print(" whole")
            def row():
                pprint.pprint({"a": 1})
                base.made()
            """)
    )
    program = textwrap.dedent(f"""\
        import os, sys
        sys.path[:0] = [{str(tmp_path)!r}, {str(verls.parent)!r}]
        from trinity_compat.common.user_output import EXPLORER, mark_users
        mark_users(EXPLORER)
        from trinity_compat.run.job_dir.progress import say
        import mine
        say("of ours")
        mine.row()
        """)
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = re.sub(r"pid=\d+", "pid=N", made.stdout).splitlines()
    assert lines == [
        "(Explorer pid=N) loaded whole",
        "of ours",
        "(Explorer pid=N) {'a': 1}",
        "dataset len: 8",
    ]


@pytest.mark.verl
def test_a_loss_prints_in_a_worker_of_the_run_s_ray(tmp_path):
    """verl imports our plugin wherever it is imported; Ray starts each worker by this file."""
    (tmp_path / "mine.py").write_text("print('the loss is loaded')\n")
    program = f"""import sys
sys.argv[0] = "/ray/_private/workers/default_worker.py"
sys.path.insert(0, {str(tmp_path)!r})
import verl, mine
"""
    env = {**os.environ, USER_FOLDER: str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, env=env
    )
    (line,) = [line for line in made.stdout.splitlines() if "the loss is loaded" in line]
    assert re.fullmatch(r"\(Worker pid=\d+\) the loss is loaded", line)
