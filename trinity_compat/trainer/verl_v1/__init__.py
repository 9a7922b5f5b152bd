"""Adapter of veRL's v1 trainer, which takes its rows from TransferQueue."""
