"""What all tests share: `make test` draws the same examples always; HYPOTHESIS_PROFILE=explore new ones."""

import os
import signal

from hypothesis import settings

settings.register_profile("gate", derandomize=True, database=None)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's & makes its commands ignore Ctrl-C; what the tests start would ignore it as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
