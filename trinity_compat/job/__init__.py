"""The facts on which all processes of a job agree: RunSpec, GPUs, placement, checkpoints, fingerprint."""
