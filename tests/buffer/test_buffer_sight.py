"""Silence counts while the database is in sight."""

from buffer_samples import Clock

from trinity_compat.buffer.sight import Sight


def test_sight_grows_look_by_look_and_begins_anew_after_an_outage():
    clock = Clock()
    sight = Sight(gap_s=3, clock=clock)
    seen = []
    for passed in (1, 3, 2, 3.5, 1, 60, 2):
        clock.seconds += passed
        seen.append(sight.look())
    assert seen == [1, 4, 6, 0, 1, 0, 2]
