"""Python code of a launcher, gone through without running it: what its names hold, what it starts."""
