"""Rewriting of a veRL script in a newer release's spelling, by edits at the words' own places."""
