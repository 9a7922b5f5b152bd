"""For ``trinity run --plugin-dir``: upstream loads each file here that does not begin with ``__``.

Upstream copies a plugin into its own package and imports it there, so each file stands alone and knows
only trinity-rft and verl.
"""
