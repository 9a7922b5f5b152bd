"""What needs a clone of veRL's repository is not collected without one."""

import os

collect_ignore = [] if os.environ.get("TC_VERL_GIT") else ["test_verls_own_scripts.py"]
