"""The report of a run, from its job directory and its database: proof of what was trained."""
