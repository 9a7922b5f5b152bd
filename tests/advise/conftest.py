import sys
from pathlib import Path

import pytest
from advise_launch import LAUNCH

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # advise_accuracy


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a script with changed keys; returns its name in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(**changed):
        values = LAUNCH | {key.replace("__", "."): value for key, value in changed.items()}
        words = " ".join(f"{key}={value}" for key, value in values.items())
        (tmp_path / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo {words}\n")
        return "run.sh"

    return write
