"""The run: a script or a YAML becomes a plan, a job, and processes that are supervised."""
