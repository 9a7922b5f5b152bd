"""Training on rows of files: the same trainer of veRL's, on rows in place of stored rollouts."""
