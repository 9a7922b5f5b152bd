"""Hydra's own flags on a launch: what of them makes sense here."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_argv
from trinity_compat.verl_config.effective import as_tree, effective_config


def handle(module: str, arguments: Sequence[str]) -> int | None:
    """Answer ``--cfg``; refuse ``--multirun``; None for a launch that shall run."""
    if any(word in ("--multirun", "-m") for word in arguments):
        raise UserError(
            "--multirun starts one job per combination in one process; a decoupled run is several processes"
            " with one job directory",
            hint="call the script once per combination: trinity-compat run SCRIPT -- key=value",
        )
    shown = next((word for word in arguments if word in ("--cfg", "-c") or word.startswith("--cfg=")), None)
    if shown is None:
        return None
    _print_config(module, [word for word in arguments if not _is_flag(word)])
    return 0


def _is_flag(word: str) -> bool:
    return word in ("--cfg", "-c", "job", "all", "hydra", "--resolve") or word.startswith("--cfg=")


def _print_config(module: str, arguments: Sequence[str]) -> None:
    # Composed by our own reading: Hydra would import the training main, and with it torch.
    launch = read_argv(["python3", "-m", module, *arguments]).launches[0]
    print(yaml.safe_dump(as_tree(effective_config(launch)), sort_keys=False, allow_unicode=True), end="")
