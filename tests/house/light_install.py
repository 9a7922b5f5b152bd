"""Runs commands where nothing but what `pip install .` brings can be imported.

    python tests/house/light_install.py < commands.json > outcomes.json

``commands``: lists of words. Each outcome: exit code, what was said, and the traceback where one was shown.
Whatever is installed beside that looks as if it were not: to imports, find_spec and importlib.metadata.
"""

import contextlib
import importlib.metadata
import io
import json
import re
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path

OURS = "trinity-compat"
ROOT = Path(__file__).parents[2]


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def light_distributions():
    """What the package needs without an extra, and what that needs in turn."""
    found, waiting = set(), [OURS]
    while waiting:
        name = canonical(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for requirement in importlib.metadata.requires(name) or ():
            if "extra ==" not in requirement:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another platform
                    importlib.metadata.distribution(needed := re.match(r"[\w.-]+", requirement)[0])
                    waiting.append(needed)
    return found


class Light:
    """The finder of files, without what a light install lacks."""

    def __init__(self, kept):
        owners = importlib.metadata.packages_distributions()
        self._kept = kept
        self._hidden = {
            module for module, by in owners.items() if not kept & {canonical(each) for each in by}
        }

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self._hidden:
            return None
        return PathFinder.find_spec(name, path, target)

    def find_distributions(self, context):
        for found in PathFinder.find_distributions(context):
            if canonical(found.name) in self._kept:
                yield found

    def invalidate_caches(self):
        PathFinder.invalidate_caches()


def outcome(main, words):
    said, code, trace = io.TextIOWrapper(io.BytesIO(), "utf-8"), 0, ""
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            trace = traceback.format_exc()
    said.flush()
    told = said.buffer.getvalue().decode()
    return {"words": words, "code": code, "said": told, "trace": trace}


if __name__ == "__main__":
    before = set(sys.modules)  # what a .pth file of the environment imports
    sys.path[:] = [str(ROOT), *(entry for entry in sys.path[1:] if entry)]
    light = Light(light_distributions())
    sys.meta_path[sys.meta_path.index(PathFinder)] = light
    from trinity_compat.cli import main

    outcomes = [outcome(main, words) for words in json.load(sys.stdin)]
    assert not light._hidden & (sys.modules.keys() - before)
    json.dump(outcomes, sys.stdout)
