"""``python -m trinity_compat.run.checks REQUEST REPORT``: judge the run in REQUEST (JSON)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from trinity_compat.common.gc_pause import gc_paused


def main(request: Path, report: Path) -> int:
    """Write the report; returns 0 for any result. A traceback is a fault of the check itself."""
    arguments = json.loads(request.read_text(encoding="utf-8"))
    # Before verl is imported. Nothing is downloaded: missing models have stand-ins.
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not arguments["native"]:  # veRL then looks for its engines of that device
        os.environ["VERL_ENGINE_DEVICE"] = arguments["device"]
        os.environ["VERL_ENGINE_VENDOR"] = "nvidia"
    # All of the check, which imports in many places.
    with gc_paused(), tempfile.TemporaryDirectory(prefix="trinity-compat-models-") as folder:
        from trinity_compat.job.run_spec import RunSpec
        from trinity_compat.run.checks.verl_objects import examine

        found = examine(
            RunSpec.of_json(arguments["spec"]),
            cwd=Path(arguments["cwd"]),
            folder=Path(folder),
            execute=arguments["execute"],
            native=arguments["native"],
        )
    report.write_text(found.dumps(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
