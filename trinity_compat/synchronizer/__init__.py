"""Versions of the weights from trainer to explorer: when, and by which transport."""
