"""Prediction of a launch's speed, staleness and memory in each mode, by a simulation of both sides."""
