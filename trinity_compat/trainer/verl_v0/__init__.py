"""veRL's v0 trainer, RayPPOTrainer, on the buffer."""
