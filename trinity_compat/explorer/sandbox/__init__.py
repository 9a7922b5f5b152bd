"""Processes for users' code that may hang, crash or print for ever: forked from a server that has imported
veRL, killed with all that they started. docs/decisions/scoring-processes.md"""
