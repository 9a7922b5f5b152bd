"""First import of the fork server: it ends the server with its starter, and pauses garbage collection.

Collection is paused, as in common/gc_pause.py, until a process that was forked from the server begins. The
server itself checks for its starter only between two forks: with a starter killed meanwhile it would first
import all of veRL, for minutes on a busy machine. Only the fork server may import this module.
"""

import gc

from trinity_compat.common.parent_watch import end_when_orphaned

gc.disable()
end_when_orphaned()
