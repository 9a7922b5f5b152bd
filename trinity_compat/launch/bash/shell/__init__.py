"""Bash's own part: statements, builtins, conditions, redirections, code made of text."""
