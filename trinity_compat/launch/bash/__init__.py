"""Bash, evaluated without running a program: values with their origin, a shell's state, limits."""
