"""From a Launch to the effective veRL configuration: Hydra's rules, veRL's releases."""

from trinity_compat.common.releases import VERL as PINNED
from trinity_compat.common.releases import VERL_RELEASES as VERSIONS
from trinity_compat.verl_config.arguments import HydraFlags, hydra_flags
from trinity_compat.verl_config.effective import (
    as_tree,
    effective_config,
    infer_version,
    recompose,
    settled,
    version_sensitive,
)
from trinity_compat.verl_config.from_yaml import config_from_yaml
from trinity_compat.verl_config.pinned import compose_pinned
from trinity_compat.verl_config.releases import FLAVOURS
from trinity_compat.verl_config.upgrade import DropKey, KeyMove, UpgradeResult, upgrade

__all__ = [
    "FLAVOURS",
    "PINNED",
    "VERSIONS",
    "DropKey",
    "HydraFlags",
    "KeyMove",
    "UpgradeResult",
    "as_tree",
    "compose_pinned",
    "config_from_yaml",
    "effective_config",
    "hydra_flags",
    "infer_version",
    "recompose",
    "settled",
    "upgrade",
    "version_sensitive",
]
