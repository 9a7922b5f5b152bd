"""What some tests need and a machine may lack."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]


def lacking(reason: str) -> NoReturn:
    """Skip the test; where CI is set it fails, as nobody reads there what was skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (a failure, as CI is set)", pytrace=False)
    pytest.skip(reason)


def program(name: str, package: str) -> str:
    """The path of a Debian package's program."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    return found or lacking(f"no {name}: make install-system (Debian's {package})")


def made(folder: str, packages: str) -> Path:
    """A folder of the checkout that `make install-tests` made from the list ``packages`` as it is now."""
    path, wanted = ROOT / folder, ROOT / "requirements" / packages
    stamp = path / "requirements.txt"
    if not stamp.exists() or stamp.read_bytes() != wanted.read_bytes():
        lacking(f"{folder} is not there, or not made from requirements/{packages}: make install-tests")
    return path


def upstream(version: str) -> Path:
    """The interpreter that has the real trinity-rft of this release."""
    return made(f".venv-upstream-{version}", f"hashes/upstream-{version}.txt") / "bin" / "python"
