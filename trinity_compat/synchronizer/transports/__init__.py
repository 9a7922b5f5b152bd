"""Ways in which weights travel from trainer to explorer: files, and NCCL."""
