"""Rollout workers: an engine each, which turns tasks into trajectories."""
