"""`python -m trinity_compat` is the same as `trinity-compat`."""

from trinity_compat.cli import main

main()
