"""The garbage collector rests while a run's processes import, and works again afterwards."""

import gc
import json
import subprocess
import sys

import pytest

from trinity_compat.common.gc_pause import gc_paused

# Whether it collects when the module that imports all the others is asked for.
WATCH = """
import gc, runpy, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == WANTED:
            print("collects" if gc.isenabled() else "rests")
            raise SystemExit

package, WANTED, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Watch())
runpy.run_module(package, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("package", "imports"),
    [
        ("trinity_compat.trainer", "trinity_compat.trainer.main"),
        ("trinity_compat.explorer", "trinity_compat.explorer.main"),
        ("trinity_compat.run.checks", "trinity_compat.run.checks.verl_objects"),
    ],
)
def test_it_rests_while_a_process_of_a_run_imports(tmp_path, package, imports):
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"device": "cpu", "native": True}))
    words = [str(asked), *(["report"] if "checks" in package else [])]
    command = [sys.executable, "-c", WATCH, package, imports, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "rests\n", done.stderr


@pytest.mark.parametrize("collecting", [True, False])
def test_what_a_block_left_is_frozen_and_the_collector_as_before(collecting):
    (gc.enable if collecting else gc.disable)()
    try:
        before = gc.get_freeze_count()
        with pytest.raises(ImportError), gc_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == collecting
        assert gc.get_freeze_count() > before
    finally:
        gc.enable()
