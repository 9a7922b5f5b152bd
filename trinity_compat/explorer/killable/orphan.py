"""What the fork server imports first: it ends with the process that started it. For nobody else to import.

By itself it looks for that only between two forks: one whose explorer is killed meanwhile would first import
all of veRL, for minutes on a busy machine.
"""

from trinity_compat.parent_watch import end_when_orphaned

end_when_orphaned()
