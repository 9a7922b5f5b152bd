"""Programs whose output or effect a script may depend on: one row each in `table`, all others stay open."""
