"""The trainer's process: veRL's trainer on groups of the buffer; publishes versions of the weights."""
