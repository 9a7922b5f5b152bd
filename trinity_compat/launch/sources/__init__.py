"""Files that start a training main and are not shell scripts: Python, notebooks, job specifications.

Each is read as text (``ast``, JSON, YAML), nothing of it is executed. What it starts is a list of `Command`s.
"""

from trinity_compat.launch.sources.hydra_main import hydra_config, package_folder
from trinity_compat.launch.sources.model import Command, Contents
from trinity_compat.launch.sources.pick import contents_of, is_configuration, is_job

__all__ = [
    "Command",
    "Contents",
    "contents_of",
    "hydra_config",
    "is_configuration",
    "is_job",
    "package_folder",
]
