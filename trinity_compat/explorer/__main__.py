"""``python -m trinity_compat.explorer JOB_DIR [--index I]``."""

import sys

from trinity_compat.collector import resting
from trinity_compat.own_python import add_user_folder

with resting():
    from trinity_compat.explorer.main import main

if __name__ == "__main__":
    add_user_folder()
    sys.exit(main(sys.argv[1:]))
