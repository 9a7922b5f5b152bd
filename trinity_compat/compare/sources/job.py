"""Our job directory: the trainer's and the explorer's TensorBoard merged, the configuration beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity_compat.common.nested import read_section
from trinity_compat.compare.model import RunMetrics
from trinity_compat.compare.sources import tensorboard


def is_job(directory: Path) -> bool:
    """Return whether this is a job directory of ours (or of upstream Trinity-RFT, which has monitor/ too)."""
    return (directory / "monitor" / "tensorboard").is_dir()


def read(directory: Path) -> RunMetrics:
    """One run: trainer metrics under their names; an explorer metric that collides gets ``explorer/``."""
    root = directory / "monitor" / "tensorboard"
    trainer = tensorboard.read(_role(root, "trainer"))
    explorer = tensorboard.read(_role(root, "explorer"))
    series = dict(trainer.series)
    for name, values in explorer.series.items():
        series[f"explorer/{name}" if name in series else name] = values
    # the configuration; a damaged file has none
    spec = read_section(directory / "config" / "run.json")
    known = ("updates_per_step", "total_steps", "sync", "device", "mode", "explorers")
    meta: dict[str, Any] = {key: spec[key] for key in known if key in spec}
    if verl := spec.get("verl"):
        meta["verl"] = verl
    if audit := read_section(directory / "config" / "audit.json"):
        meta["audit"] = audit
    return RunMetrics(
        directory.name,
        str(directory),
        "job",
        series,
        updates_per_step=meta.get("updates_per_step"),
        meta=meta,
        notes=trainer.notes + explorer.notes,
    )


def _role(root: Path, role: str) -> Path:
    """``trainer`` itself, or the newest directory below it that holds event files."""
    place = root / role
    nested = sorted({p.parent for p in place.rglob("events.out.tfevents*")}) if place.is_dir() else []
    return nested[-1] if nested else place
