"""Check of veRL's loggers: their packages, and the key of wandb."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.translate.verl_names import LOGGERS

_OFFLINE = ("offline", "disabled", "dryrun", "shared")


def check(verl: Tree) -> None:
    """Check the loggers of ``trainer.logger``, with which the run would end minutes later.

    Raises UserError for one that neither veRL nor a plugin has, that is not installed, or has no API key.
    """
    configured = value_at(verl, "trainer.logger") or []
    for name in [configured] if isinstance(configured, str) else configured:
        if plugin_packages.find("logger", str(name), built_in=name in LOGGERS):
            continue
        if name not in LOGGERS:
            raise UserError(
                f"trainer.logger={name}: veRL has no such logger, and no plugin",
                hint=f"use one of {', '.join(LOGGERS)}",
            )
        package = LOGGERS[name]
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"trainer.logger names {name}, but {package} is not installed",
                hint=f"pip install {package}, or leave {name} out of trainer.logger",
            )
        # wandb asks for the key at its first use, minutes after the start.
        if package == "wandb" and not wandb_may_start():
            raise UserError(
                "trainer.logger names wandb, but no API key is set; wandb would end the run with: api_key not"
                " configured (no-tty)",
                hint="export WANDB_API_KEY=…, or WANDB_MODE=offline, or leave wandb out of trainer.logger",
            )


def wandb_may_start() -> bool:
    """Return whether wandb has a key, in the environment or in ~/.netrc, or was told to stay offline."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") in _OFFLINE:
        return True
    # `wandb offline` and `wandb disabled` write the mode there.
    for path in (Path("wandb/settings"), Path("~/.config/wandb/settings").expanduser()):
        words = path.read_text(errors="replace").replace("=", " ").split() if path.is_file() else []
        if "mode" in words and any(mode in words for mode in _OFFLINE):
            return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    netrc = from_home(os.environ.get("NETRC", "~/.netrc"))
    return netrc.is_file() and host.split(":")[0] in netrc.read_text(errors="replace")
