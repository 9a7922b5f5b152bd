"""Small commands in place of the real ones, for tests of the page Start that look at the page alone."""

import sys
from pathlib import Path

import psutil

HERE = Path(__file__).parent
PLANNED = """
import json, sys
launch = {"yaml": "project: toy", "notes": ["a note"], "plan": ["job " + sys.argv[1]], "blockers": []}
print(json.dumps({"version": 1, "launches": [launch]}))
"""
JOB = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from studio_jobs import make_job
print("makes the job", flush=True)
make_job(Path(sys.argv[1]), state="running")
time.sleep(600)
"""
DOCTOR = """
import json
memory = {"name": "memory", "state": "ok", "found": "9.0 GiB free", "fix": ""}
print(json.dumps({"version": 1, "checks": [memory]}))
"""
FULL_DISK = DOCTOR.replace(
    "[memory]",
    '[memory, {"name": "disk", "state": "problem", "found": "1.0 GiB free", "fix": "free some space"}]',
)
LACK = '{"message": "run.sh:2: /d.parquet does not exist", "fix": "make it"}'
NO_DATA = PLANNED.replace('"blockers": []', f'"blockers": [{LACK}]')


def python(code, *words):
    return [sys.executable, "-c", code, *map(str, words)]


class Commands:
    """The commands that drafts run, and what was asked of them. ``dry_run`` and ``run`` are Python code."""

    PLANNED = PLANNED

    def __init__(self, patch):
        self.dry_run, self.run, self.asked = PLANNED, JOB, []
        self.doctor = DOCTOR
        patch.setattr("trinity_compat.studio.start_plan.command_of", self._command)
        patch.setattr("trinity_compat.studio.start_drafts.of_module", lambda *_: python(self.doctor))

    def started(self):
        """The runs that are still there."""
        roots = {record["options"]["job"] for record in self.asked}
        for process in psutil.process_iter(["cmdline"]):
            if roots.intersection(process.info["cmdline"] or ()):
                yield process.pid

    def _command(self, record, root):
        self.asked.append(record)
        code = self.dry_run if record["options"].get("dry_run") else self.run
        return python(code, root, HERE)
