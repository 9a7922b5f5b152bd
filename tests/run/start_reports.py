"""Reports for many runs from one process: ``python start_reports.py REQUESTS``, a JSON list, prints a list.

Each is examined in a fork of a process that has imported verl and vllm, as scripts/judge/start_corpus.py
does.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.checks.verl_objects import examine

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "judge"))

from forked_checks import forked, warm


def report_of(asked, folder):
    spec = RunSpec.of_json(asked["spec"])
    return examine(spec, cwd=folder, folder=folder / "models", execute=False, native=asked["native"]).dumps()


def main(path):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder / "models")
        asked = json.loads(Path(path).read_text())
        reports = [json.loads(forked(partial(report_of, each, folder))) for each in asked]
    print(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1])
