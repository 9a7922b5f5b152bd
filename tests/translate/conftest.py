"""The command line, called in a test's folder."""

import sys

import pytest

from trinity_compat.cli import main


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return (exit code, stdout, stderr) of the words of a command line."""

    def call(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["trinity-compat", *words])
        with pytest.raises(SystemExit) as done:
            main()
        told = capsys.readouterr()
        return done.value.code, told.out, told.err

    return call
