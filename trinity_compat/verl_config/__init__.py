"""From a Launch to the effective veRL configuration: Hydra's rules, veRL's releases."""

from trinity_compat.verl_config.arguments import Flags, hydra_flags
from trinity_compat.verl_config.effective import as_tree, effective_config, infer_version, version_sensitive
from trinity_compat.verl_config.releases import FLAVOURS, PINNED, VERSIONS

__all__ = [
    "FLAVOURS",
    "PINNED",
    "VERSIONS",
    "Flags",
    "as_tree",
    "effective_config",
    "hydra_flags",
    "infer_version",
    "version_sensitive",
]
