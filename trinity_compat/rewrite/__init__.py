"""Rewriting of veRL scripts and YAML in a newer release's spelling, by edits at the words' own places."""
