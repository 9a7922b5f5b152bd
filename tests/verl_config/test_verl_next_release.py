"""A release of veRL that is added for reading doesn't move the one that runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from verl_samples import make_launch

from trinity_compat.common.releases import VERL, VERL_RELEASES
from trinity_compat.common.resources import data_path
from trinity_compat.verl_config import effective_config, upgrade

NEXT, NEW_KEY = "0.10.0", "trainer.only_in_the_next"
READ = """
import json, sys
from pathlib import Path
from trinity_compat.common import releases, resources

releases.VERL_RELEASES = (*releases.VERL_RELEASES, sys.argv[2])
resources.data_path = lambda name: Path(sys.argv[1]) / name
from trinity_compat.launch import read_text
from trinity_compat.verl_config import PINNED, effective_config, upgrade

text = " ".join(["python3 -m verl.trainer.main_ppo", *sys.argv[3:]])
config = effective_config(read_text(text, name="run.sh").launches[0])
done = upgrade(config).config
print(json.dumps({"read_as": config.version.value, "pinned": PINNED, "carried_to": done.version.value,
                  "unknown": done.unknown, "values": {k: v.value for k, v in done.settings.items()}}))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of translators/ with one release more: the newest with a key that no other has."""
    root = tmp_path_factory.mktemp("data")
    shutil.copytree(data_path("translators"), root / "translators")
    verl = root / "translators" / "generated" / "verl"
    newest, bit = VERL_RELEASES[-1], 1 << len(VERL_RELEASES)

    tree = json.loads((verl / "releases" / f"{newest}.json").read_text())
    tree["files"]["ppo_trainer"]["config"]["trainer"][NEW_KEY.rpartition(".")[2]] = 1
    (verl / "releases" / f"{NEXT}.json").write_text(json.dumps(tree))
    shutil.copy(verl / "releases" / f"{newest}.recipes.json", verl / "releases" / f"{NEXT}.recipes.json")

    keys = json.loads((verl / "releases" / "keys.json").read_text())
    for name in ("ppo_trainer", "ppo_megatron_trainer"):
        keys[name] = {
            key: [mask | bit if mask & bit >> 1 else mask for mask in masks]
            for key, masks in keys[name].items()
        }
    keys["groups"] = {key: mask | bit if mask & bit >> 1 else mask for key, mask in keys["groups"].items()}
    keys["ppo_trainer"][NEW_KEY] = [bit, bit]
    (verl / "releases" / "keys.json").write_text(json.dumps(keys))

    changed = json.loads((verl / "changed_defaults.json").read_text())
    longer = {name: {key: [*row, row[-1]] for key, row in rows.items()} for name, rows in changed.items()}
    (verl / "changed_defaults.json").write_text(json.dumps(longer))
    return root


def read(data: Path, *arguments: str) -> dict:
    words = [sys.executable, "-c", READ, str(data), NEXT, *arguments]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_launch_of_the_next_release_is_read_as_one_and_carried_to_the_pinned(data: Path) -> None:
    found = read(data, f"{NEW_KEY}=2")
    assert (found["read_as"], found["pinned"], found["carried_to"]) == (NEXT, VERL, VERL)
    assert found["unknown"] == [NEW_KEY]


def test_a_launch_that_both_take_has_the_values_that_it_had(data: Path) -> None:
    found = read(data, "trainer.total_epochs=3", "algorithm.adv_estimator=grpo")
    launch = make_launch("trainer.total_epochs=3", "algorithm.adv_estimator=grpo")
    settings = upgrade(effective_config(launch)).config.settings
    before = json.loads(json.dumps({key: setting.value for key, setting in settings.items()}))
    assert found["carried_to"] == VERL
    assert {key: value for key, value in found["values"].items() if key != NEW_KEY} == before
