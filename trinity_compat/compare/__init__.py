"""Comparison of training runs: their curves, rewards and settings, with a verdict for each metric."""
