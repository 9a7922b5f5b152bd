"""Runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Mapping

# Last parts of keys that name a run, its place or where it reports; "seed" is a part of seeds' names.
_OF_THE_RUN = frozenset(
    (
        "experiment_name",
        "project_name",
        "run_name",
        "default_local_dir",
        "default_hdfs_dir",
        "rollout_data_dir",
        "validation_data_dir",
        "resume_from_path",
        "resume_mode",
        "logger",
    )
)


def configuration_but_seeds(configuration: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the settings that decide what a run trains: equal for runs that differ only in their seed."""
    return tuple(
        sorted((key, repr(value)) for key, value in configuration.items() if not _is_of_the_run(key))
    )


def _is_of_the_run(key: str) -> bool:
    last = key.rpartition(".")[2]
    return "seed" in last or last in _OF_THE_RUN
