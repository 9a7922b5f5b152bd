"""From a Trinity configuration and a command's options to a run that could start, or to why it cannot."""
