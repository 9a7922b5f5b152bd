"""A user's shell script as it is: bash runs it, and the training mains in it become runs of ours."""
