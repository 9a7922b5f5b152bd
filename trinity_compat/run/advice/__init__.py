"""Prediction of a launch's modes, each planned as `run` plans it, and of a run against stock veRL's turns."""
