"""What `trinity-compat run` does: a script or a YAML becomes a plan, a job, and processes that it watches."""
