"""What all tests share: `make test` draws the same examples always; HYPOTHESIS_PROFILE=explore new ones."""

import os

from hypothesis import settings

settings.register_profile("gate", derandomize=True, database=None)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
