"""Killable processes for users' code that may hang, crash or print without end.

They are forked from a server that has imported veRL, and killed with all that they started.
docs/decisions/killable-processes.md
"""
