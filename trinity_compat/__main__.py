"""`python -m trinity_compat` is the same as `trinity-compat`."""

from trinity_compat.common.python_command import leave_working_directory

leave_working_directory()

from trinity_compat.cli import program  # noqa: E402

program()
