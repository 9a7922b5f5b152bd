"""Reports for many runs from one process: ``python start_reports.py REQUESTS``, a JSON list, prints a list.

Each is examined in a fork of a process that has imported verl and vllm, as scripts/start_corpus.py does.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path


def report_of(asked, folder):
    from trinity_compat.runtime.checks.objects import examine
    from trinity_compat.spec import RunSpec

    spec = RunSpec.of_json(asked["spec"])
    return examine(spec, cwd=folder, folder=folder / "models", execute=False, native=asked["native"])


def forked(asked, folder):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "w") as out, contextlib.redirect_stdout(io.StringIO()):
            out.write(report_of(asked, folder).dumps())
            out.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main(path):
    from trinity_compat.runtime.checks.objects import warm

    with tempfile.TemporaryDirectory() as name:
        warm(Path(name) / "models")
        reports = [forked(asked, Path(name)) for asked in json.loads(Path(path).read_text())]
    print(json.dumps(reports))


if __name__ == "__main__":
    main(sys.argv[1])
