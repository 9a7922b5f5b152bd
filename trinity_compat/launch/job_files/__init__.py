"""Files that start a training main and are not shell scripts: Python, notebooks, job specifications.

Each is read as text (``ast``, JSON, YAML), nothing of it is executed. What it starts is a list of `Command`s.
"""

from trinity_compat.launch.job_files.pick import (
    contents_of,
    is_configuration,
    is_configuration_of_a_run,
    is_hydras_record,
    is_job,
    printed_in,
)
from trinity_compat.launch.source_contents import Contents, SourceCommand

__all__ = [
    "Contents",
    "SourceCommand",
    "contents_of",
    "is_configuration",
    "is_configuration_of_a_run",
    "is_hydras_record",
    "is_job",
    "printed_in",
]
