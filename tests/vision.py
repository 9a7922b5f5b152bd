"""What tests with images run in: torchvision and qwen-vl-utils, which no other test's process must see."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """PYTHONPATH with them, installed where they are not yet."""
    script = [str(ROOT / "scripts" / "unpack_vision.sh")]
    told = subprocess.run(script, check=True, capture_output=True, text=True, timeout=600)
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(ROOT / "tests" / "vision_site"), told.stdout.strip(), given]))
