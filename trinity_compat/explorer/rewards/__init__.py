"""Scores of answers: reward functions, reward managers, reward models."""
