"""Who must have everything when a run is over."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ordering.simulator.cluster import Cluster
    from ordering.simulator.process import Process


def unbroken(cluster: "Cluster") -> "list[Process]":
    """Live processes at hosts that are whole again; a run may leave some hosts broken on purpose."""
    left_broken: set[str] = getattr(cluster, "left_broken", set())
    return [p for p in cluster.live() if not p.paused and p.address not in left_broken]


def survivors(cluster: "Cluster") -> "list[Process]":
    """Those of them that are members."""
    return [process for process in unbroken(cluster) if process.is_member()]
