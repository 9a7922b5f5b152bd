"""The releases of veRL, trinity-rft and vLLM that trinity-compat knows: the one place that numbers them.

``pyproject.toml`` and ``requirements/`` pin the same (tests/house/test_releases.py). A comment that names a
file of veRL's, Trinity's or vLLM's as its source means the release that is run or written for by default.
"""

from __future__ import annotations

# veRL: the releases whose launches are read, oldest first, each with its data in
# translators/generated/verl/releases.
VERL_RELEASES = ("0.2.0", "0.3.0", "0.4.1", "0.5.0", "0.6.1", "0.7.0", "0.8.0", "0.9.0", "0.9.1")
VERL = "0.9.1"  # the pinned release; launches of every other one are carried to its keys
VERL_RUNNABLE = ("0.9.0", VERL)  # the releases that a run takes (pyproject.toml, docs/versions.md)

# trinity-rft: whom the YAML is for. The published guide to veRL users was written for the old one.
TRINITY, TRINITY_OLD = "0.6.0", "0.4.1"
TARGETS = (TRINITY, TRINITY_OLD)

# vLLM: the explorer's, per device.
VLLM_ON_GPU, VLLM_ON_CPU = "0.24.0", "0.28.0"
