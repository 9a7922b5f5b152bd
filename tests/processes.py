"""What several tests ask about processes."""

import psutil


def lives(pid):
    """Whether it runs: a zombie, which nobody has waited for yet, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
