"""From the words of a command to its fields: quotes, ``${…}``, arithmetic, splitting, patterns."""
