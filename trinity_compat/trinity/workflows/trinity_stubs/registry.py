"""Names and the classes that are registered under them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


class Registry:
    """``trinity.utils.registry.Registry``, its decorator and its lookup."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.modules: dict[str, Any] = {}

    def register_module(
        self, module_name: str, module_cls: Any = None, force: bool = False, lazy: bool = False
    ) -> Any:
        """Register a class, or return a decorator. Raises KeyError for a known name, unless ``force``."""

        def register(found: C) -> C:
            if module_name in self.modules and not force:
                raise KeyError(f"{module_name} is already registered in {self.name}")
            self.modules[module_name] = found
            return found

        decorator: Callable[[C], C] = register
        return decorator if module_cls is None else decorator(module_cls)

    def get(self, module_key: str | None) -> Any:
        """The class; None for no name; a dotted path is imported, as upstream does.

        Raises ValueError for a name that is not registered, and what an import raises.
        """
        if module_key is None:
            return None
        if module_key not in self.modules and "." in module_key:
            module, _, name = module_key.rpartition(".")
            self.modules[module_key] = getattr(importlib.import_module(module), name)
        if module_key not in self.modules:
            known = ", ".join(sorted(self.modules))
            raise ValueError(f"no {module_key!r} is registered in {self.name}; there are {known}")
        return self.modules[module_key]
