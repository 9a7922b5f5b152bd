"""``python -m trinity_compat.explorer JOB_DIR [--index I]``."""

import sys

from trinity_compat.collector import resting
from trinity_compat.own_python import add_user_folder
from trinity_compat.printed import EXPLORER, mark_users

with resting():
    from trinity_compat.explorer.main import main

if __name__ == "__main__":
    add_user_folder()
    mark_users(EXPLORER)
    sys.exit(main(sys.argv[1:]))
