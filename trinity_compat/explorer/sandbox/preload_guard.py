"""What the fork server imports first: it ends with the process that started it, and its collector rests, as
common/gc_pause.py says, until a process that was forked from it begins. For nobody else to import.

By itself it looks for that only between two forks: one whose explorer is killed meanwhile would first import
all of veRL, for minutes on a busy machine.
"""

import gc

from trinity_compat.common.parent_watch import end_when_orphaned

gc.disable()
end_when_orphaned()
