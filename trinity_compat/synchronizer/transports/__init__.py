"""Transports of weights from trainer to explorer: files, and NCCL."""
