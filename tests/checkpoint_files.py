"""Checkpoints as veRL's FSDP engines leave them, with small files of each kind."""

import json
import zipfile

from trinity_compat.job.checkpoints import MARKER

KINDS = ("model", "optim", "extra_state")


def shard(path):
    """A file as torch.save writes it: a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
        archive.writestr("archive/data/0", bytes(400))


def saved(job, *steps, roles=("actor",), ranks=1, marker=True):
    """Write whole checkpoints; the marker names the last."""
    for step in steps:
        folder = job / f"global_step_{step}"
        for role in roles:
            (folder / role / "huggingface").mkdir(parents=True)
            for kind in KINDS:
                for rank in range(ranks):
                    shard(folder / role / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
            (folder / role / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
        position = {"below": 4 * step, "beyond": [], "buffer": "b", "history": 1, "stream": None}
        (folder / "trinity.json").write_text(
            json.dumps({"step": step, "kl_coef": None, "position": position})
        )
        shard(folder / "data.pt")
    if marker:
        (job / MARKER).write_text(str(steps[-1]))
