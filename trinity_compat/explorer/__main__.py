"""``python -m trinity_compat.explorer JOB_DIR [--index I]``."""

import sys

from trinity_compat.collector import resting

with resting():
    from trinity_compat.explorer.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
