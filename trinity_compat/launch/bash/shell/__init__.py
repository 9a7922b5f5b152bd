"""What bash does itself: statements, builtins, conditions, redirections, code made of text."""
