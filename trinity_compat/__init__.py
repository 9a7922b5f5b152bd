"""trinity-compat: veRL launch scripts on a decoupled explorer, buffer and trainer."""

__version__ = "0.1.0"
