"""The pass of scripts/generate/make_verl_reads.py over a small source tree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "generate"))
from make_verl_reads import MAIN, Pass, Sources

MAIN_PPO = """\
import ray
from omegaconf import OmegaConf
from verl.worker import Registry, Worker, engine_of, stray
import verl.foreign as foreign

@hydra.main()
def main(config):
    validate_config(config)
    print(config.data.printed)
    ray.remote(Worker).options(num_cpus=1).remote(config=config.actor, data=config.data).run.remote()
    engine = engine_of("a")(engine_config=config.engine, role="r")
    engine.step(OmegaConf.to_container(config.loop))
    outside.call(**config.handed)
    stray()

def validate_config(config):
    if config.data.checked > 3:
        raise ValueError
    assert config.data.asserted

def old_migration(config):
    return config.data.migrated
"""
WORKER = """\
from verl.base import Section

ENGINES = {}

def register(name):
    def decorator(cls):
        ENGINES[name] = cls
        return cls
    return decorator

def engine_of(name):
    return ENGINES[name]

class Worker:
    def __init__(self, config, data):
        self.config = config
        self.stored = data.get("stored", 1)
        self.used = data["used"]

    def run(self):
        return self.used + self.config.size + self.config.optim.lr

@register("a")
class Engine:
    def __init__(self, engine_config, role):
        self.engine_config = engine_config

    def step(self, loop):
        for key, value in loop.items():
            pass
        return getattr(self.engine_config, "width", None)

def stray(anything=None):
    return anything.config.data.stray_key
"""
BASE = """\
class Section:
    size: int = 0
    checked_here: int = 0

    def __post_init__(self):
        if self.checked_here < 0:
            raise ValueError
        self.optim.lr = self.rate
"""
TREE = {
    "data": {
        "printed": 1,
        "checked": 1,
        "asserted": 1,
        "migrated": 1,
        "stored": 1,
        "used": 1,
        "stray_key": 1,
        "nowhere": 1,
    },
    "actor": {
        "_target_": "verl.base.Section",
        "size": "${data.nowhere_but_here}",
        "checked_here": 1,
        "rate": 1,
        "optim": {"lr": 1, "unused": 1},
    },
    "engine": {"width": 1, "height": 1},
    "loop": {"a": 1},
    "handed": {"b": 1},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    root = tmp_path_factory.mktemp("tree")
    files = {
        "trainer/main_ppo.py": MAIN_PPO.replace("import ray\n", "import ray\nimport outside\n"),
        "worker.py": WORKER,
        "base.py": BASE,
        "foreign.py": "",
    }
    for name, text in files.items():
        path = root / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = {**TREE, "data": {**TREE["data"], "nowhere_but_here": 1}}
    found = Pass(Sources(root, MAIN), tree)
    found.run()
    return found.answers()


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("data.printed", "NOT READ"),
        ("data.nowhere", "NOT READ"),
        ("data.migrated", "NOT READ"),
        ("data.checked", "CHECKED ONLY"),
        ("data.asserted", "CHECKED ONLY"),
        ("data.stored", "STORED ONLY"),
        ("data.used", "READ"),
        ("data.stray_key", "AMBIGUOUS"),
        ("data.nowhere_but_here", "READ VIA"),
        ("actor.size", "READ"),
        ("actor.rate", "READ"),
        ("actor.checked_here", "CHECKED ONLY"),
        ("actor.optim.lr", "READ"),
        ("actor.optim.unused", "NOT READ"),
        ("engine.width", "READ"),
        ("engine.height", "NOT READ"),
        ("loop.a", "PASSED ON"),
        ("handed.b", "PASSED ON"),
    ],
)
def test_the_label_of_a_key(answers: dict[str, list], key: str, label: str) -> None:
    assert answers[key][0] == label


def test_a_place_is_a_file_below_verl_and_a_line(answers: dict[str, list]) -> None:
    assert answers["data.stored"] == ["STORED ONLY", ["worker.py:17"]]
    assert answers["data.nowhere_but_here"][2] == "actor.size"
