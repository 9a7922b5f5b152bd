"""trinity-rft's package beside us, as requirements/workflows.txt installs it: without what it depends on."""

from pathlib import Path

import needs

ROOT = Path(__file__).parents[3]


def modules(folder):
    """A folder for PYTHONPATH that has the package and its metadata, and nothing else."""
    (found,) = (needs.upstream("0.6.0").parents[1] / "lib").glob("python*/site-packages")
    folder.mkdir()
    for module in (found / "trinity", *found.glob("trinity_rft-*.dist-info")):
        (folder / module.name).symlink_to(module)
    return folder
