"""The environment of a run's start, in ``config/environment.json``: what the script and its libraries read.

Of a secret only the name is recorded. The variables of everything else on the machine (a session's, a
terminal's) are not a run's concern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trinity_compat.common.redaction import is_secret, shown

FILE = "environment.json"
# Read by veRL, its engines, Ray, torch and Python, whether or not the script names them.
_FAMILIES = re.compile(
    r"(ACCELERATE|AWS|ASCEND|CLEARML|CONDA|CUBLAS|CUDA|CUDNN|DS|FLASHINFER|GLOO|HCCL|HF|HIP|HSA|HUGGINGFACE|HYDRA"
    r"|KMP|LD|MALLOC|MASTER|MKL|MLFLOW|NCCL|NUMEXPR|NVIDIA|NVTE|OMP|OPENAI|OPENBLAS|PIP|PYTHON|PYTORCH|RAY|ROCR"
    r"|SGLANG|SWANLAB|TENSORBOARD|TOKENIZERS|TORCH|TORCHINDUCTOR|TRANSFORMERS|TRITON|UCX|UV|VERL|VIRTUAL|VLLM"
    r"|WANDB|XDG|XLA)_?[A-Z0-9_]*|PATH|TMPDIR|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy",
)
# What `ray job submit` tells the job that it starts, with the values of its runtime environment's variables.
_OF_ONE_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_NAMED = re.compile(r"\$\{oc\.env:(\w+)|\$(?:\{[!#]?)?([A-Za-z_]\w*)")
_SHELL_S = frozenset(
    [
        "BASHPID",
        "BASH_SOURCE",
        "LINENO",
        "OLDPWD",
        "PPID",
        "PWD",
        "RANDOM",
        "SECONDS",
        "SHLVL",
        "UID",
        "EUID",
        "_",
    ]
)


@dataclass(frozen=True, slots=True)
class RecordedEnvironment:
    """Variables of a start: those with their value, secrets by name, and names that were not set."""

    values: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    unset: frozenset[str] = frozenset()

    @classmethod
    def of(cls, environ: Mapping[str, str], script_text: str) -> RecordedEnvironment:
        """Return what a start with ``environ`` reads; ``script_text``: the script or YAML."""
        named = named_in(script_text)
        values, secrets = {}, set()
        for name in sorted(environ):
            if not (name in named or is_a_library_s(name)):
                continue
            if shown(f"{name}={environ[name]}") != f"{name}={environ[name]}" or is_secret(name):
                secrets.add(name)
            else:
                values[name] = environ[name]
        return cls(values, frozenset(secrets), frozenset(named - environ.keys()))

    @classmethod
    def of_text(cls, text: str) -> RecordedEnvironment:
        """Read ``as_text``. Raises ValueError for anything else."""
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("not a section")
        values, secrets, unset = found.get("values"), found.get("secrets"), found.get("unset")
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("values are not texts")
        if any(not name or "=" in name or "\0" in name + value for name, value in values.items()):
            raise ValueError("no process can have such a variable")
        return cls(values, _names(secrets), _names(unset))

    def as_text(self) -> str:
        """Return the content of the file."""
        record = {"values": dict(self.values), "secrets": sorted(self.secrets), "unset": sorted(self.unset)}
        return json.dumps(record, indent=1) + "\n"

    def applied(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of another start as this one: ``environ`` with what was recorded.

        What a library or the script reads and this start did not have is left out. Secrets are those of
        ``environ``, which alone has their values.
        """
        kept = {
            name: value
            for name, value in environ.items()
            if name in self.secrets or is_secret(name) or not (name in self.unset or is_a_library_s(name))
        }
        return {**kept, **self.values}


def named_in(text: str) -> frozenset[str]:
    """Return the variables that a script or YAML names, less those that bash itself sets."""
    return frozenset(a or b for a, b in _NAMED.findall(text)) - _SHELL_S


def is_a_library_s(name: str) -> bool:
    """Return whether a library of a run may read the variable of that name."""
    return _FAMILIES.fullmatch(name) is not None and name != _OF_ONE_JOB


def _names(value: object) -> frozenset[str]:
    if (
        not isinstance(value, Iterable)
        or isinstance(value, str)
        or not all(isinstance(n, str) for n in value)
    ):
        raise ValueError("names are not texts")
    return frozenset(value)
