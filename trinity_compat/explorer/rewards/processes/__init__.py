"""Scoring in killable processes.

A reward function may hang, crash or print without end, and costs the answer that it scores at most.
docs/rewards.md
"""
