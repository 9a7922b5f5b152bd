"""Write down which keys of the configuration stock veRL reads in a run: tests/facts/verl_reads.txt.

    VERL_USE_EXTERNAL_MODULES=trace_verl_reads PYTHONPATH=scripts/generate READS=DIR \\
        python -m verl.trainer.main_ppo …
    cat DIR/* | python scripts/generate/trace_verl_reads.py > tests/facts/verl_reads.txt  # a place each

Each process of the run appends to a file of its own in READS, a line for each key and place. Counted is an
access that stands in veRL's own code: to the composed configuration, or to a dataclass that was made of one
of its sections. What veRL prints or copies as a whole is not, nor what it reads from a plain dictionary.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_ROOT = f"{os.sep}verl{os.sep}"
_COPIES = "base_config.py"  # it goes through all fields
_KEY = "_read_as"
_seen: set[str] = set()


def _note(key: str, depth: int = 2) -> None:
    """Note ``key`` if the caller's caller is veRL's code."""
    frame = sys._getframe(depth)
    file = frame.f_code.co_filename
    if _ROOT in file and not file.endswith(_COPIES):
        line = f"{key} verl/{file.rpartition(_ROOT)[2]}:{frame.f_lineno}\n"
        if line not in _seen:
            _seen.add(line)
            with Path(os.environ["READS"], str(os.getpid())).open("a", encoding="utf-8") as out:
                out.write(line)


def _watch_compositions() -> None:
    """Note the accesses to the composed configuration."""
    from omegaconf import DictConfig

    def watched(name: str) -> Any:
        original = getattr(DictConfig, name)

        def access(self: Any, key: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(key, str) and not key.startswith("_"):
                _note(self._get_full_key(key))
            return original(self, key, *rest, **named)

        return access

    for name in ("__getattr__", "__getitem__", "get", "pop"):
        setattr(DictConfig, name, watched(name))


def _watch_dataclasses() -> None:
    """Note the accesses to a dataclass of a section: it remembers the section's key."""
    import verl.utils.config as conversion
    from verl.base_config import BaseConfig

    original = conversion.omega_conf_to_dataclass

    def converted(config: Any, *rest: Any, **named: Any) -> Any:
        made = original(config, *rest, **named)
        if hasattr(config, "_get_full_key"):
            _mark(made, config._get_full_key(None))
        return made

    def _mark(made: Any, key: str) -> None:
        if isinstance(made, BaseConfig):
            made.__dict__[_KEY] = key
            for name, value in list(made.__dict__.items()):
                _mark(value, f"{key}.{name}")

    def access(self: Any, name: str) -> Any:
        if not name.startswith("_"):
            own = object.__getattribute__(self, "__dict__")
            if _KEY in own and name in own:
                _note(f"{own[_KEY]}.{name}")
        return object.__getattribute__(self, name)

    conversion.omega_conf_to_dataclass = converted
    BaseConfig.__getattribute__ = access


if __name__ == "__main__":
    found: dict[str, str] = {}
    for row in sorted(sys.stdin):
        found.setdefault(*row.split())
    sections = {key.rpartition(".")[0] for key in found}
    sys.stdout.writelines(f"{key} {place}\n" for key, place in found.items() if key not in sections)
elif "READS" in os.environ:
    _watch_compositions()
    _watch_dataclasses()
