"""What every room works with: values with their origin, a shell's state, the syntax tree, files, limits."""
