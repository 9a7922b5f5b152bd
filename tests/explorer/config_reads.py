"""Which keys of a configuration are read by name in our explorer: by veRL's code, by ours, by the user's."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import verl
from omegaconf import DictConfig
from verl.workers import config as dataclasses_of_verl

import trinity_compat.explorer

ROLLOUT = "actor_rollout_ref.rollout"
VERL = str(Path(verl.__file__).parent)
EXPLORER = str(Path(trinity_compat.explorer.__file__).parent)
# Dataclasses that sections become, with the section. Their making reads every field, which says nothing.
SECTIONS = {
    "RolloutConfig": ROLLOUT,
    "MultiTurnConfig": f"{ROLLOUT}.multi_turn",
    "AgentLoopConfig": f"{ROLLOUT}.agent",
    "SamplingConfig": f"{ROLLOUT}.val_kwargs",
}
CONVERSION = ("verl/workers/config/", "verl/utils/config.py")
PASSED_THROUGH = ("omegaconf/", "hydra/", "verl/base_config.py", "dataclasses.py", "config_reads.py")


@contextmanager
def recorded(user: Path) -> Iterator[set[str]]:
    """Dotted keys that are asked for by name meanwhile, out of OmegaConf or veRL's dataclasses. ``user``: the
    folder of code that stands for the user's."""
    folders = (VERL, EXPLORER, str(user))
    keys: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DictConfig, "_get_impl", tree_reader(DictConfig._get_impl, folders, keys))
        for name, section in SECTIONS.items():
            reader = field_reader(section, folders, keys)
            patch.setattr(getattr(dataclasses_of_verl, name), "__getattribute__", reader, raising=False)
        yield keys


def tree_reader(original, folders, keys):
    def read(self, key, default_value, validate_key=True):
        if asked_by(folders):
            keys.add(str(self._get_full_key(key)))
        return original(self, key, default_value, validate_key)

    return read


def field_reader(section, folders, keys):
    def read(self, name):
        if not name.startswith("_") and asked_by(folders):
            keys.add(f"{section}.{name}")
        return object.__getattribute__(self, name)

    return read


def asked_by(folders):
    """Whether code in one of ``folders`` asks, and not to make one form of the configuration of another."""
    frame = sys._getframe(2)
    while frame is not None and any(part in frame.f_code.co_filename for part in PASSED_THROUGH):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return file.startswith(folders) and not any(part in file for part in CONVERSION)
