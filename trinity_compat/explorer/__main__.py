"""``python -m trinity_compat.explorer JOB_DIR [--index I]``."""

import sys

from trinity_compat.common import process_log
from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.common.python_command import add_user_folder
from trinity_compat.common.user_output import EXPLORER, mark_users

with gc_paused():
    from trinity_compat.explorer.main import main

if __name__ == "__main__":
    process_log.configure()
    add_user_folder()
    mark_users(EXPLORER)
    sys.exit(main(sys.argv[1:]))
