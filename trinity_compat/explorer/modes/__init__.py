"""Modes of an explorer without a trainer: bench, serve, debug."""
