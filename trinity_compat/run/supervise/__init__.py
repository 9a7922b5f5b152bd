"""The processes of a run: its Ray, its two sides, and the supervisor that starts, watches and ends them."""
