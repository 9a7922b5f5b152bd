"""Plugins of trinity-compat, one of each kind."""
