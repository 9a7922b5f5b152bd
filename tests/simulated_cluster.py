"""Ray's simulated cluster: several machines that are processes of this one."""

from typing import Any

import pytest


def simulated_cluster(**head: Any) -> Any:
    """Start one with a head of these arguments; the caller adds machines, and shuts it down.

    Ray notes its address where the `ray.init` of any test beside it would find it: here it does not.
    """
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray._private.utils, "write_ray_address", lambda *_: None)
        made = Cluster()
        try:
            made.add_node(**head)
        except Exception:  # Ray gives a head 30 s to start: a busy machine needs a second try
            made.shutdown()
            made = Cluster(initialize_head=True, head_node_args=head)
    return made
