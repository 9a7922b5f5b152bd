"""Agent loops in killable processes.

A loop that computes without awaiting, or crashes, costs its group at most, and never the engine's process.
docs/decisions/killable-processes.md
"""
