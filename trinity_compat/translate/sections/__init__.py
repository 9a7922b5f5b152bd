"""The derived part of the mapping: one module per section of the Trinity configuration, both directions.

Every module of this folder is imported here and registers its functions: a new section is a new file.
"""

import importlib
import pkgutil

from trinity_compat.translate.registry import DERIVATIONS, WAYS_BACK

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DERIVATIONS", "WAYS_BACK"]
