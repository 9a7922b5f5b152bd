"""The task stream: veRL's dataset or Trinity's tasksets, by number."""
