"""Equal digests."""

from typing import TYPE_CHECKING

from ordering.simulator.checkers.base import Checker
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class Digest(Checker):
    """Replicas that have applied up to the same timestamp have the same state.

    The replica's digest covers all messages it applied, in order, and a learner takes it over with
    the state; so this also watches the state transfer.
    """

    name = "digest"

    def __init__(self) -> None:
        super().__init__()
        self._digests: dict[int, dict[int, tuple[bytes, SiteId]]] = {}

    def on_applied(self, process: "Process", ts: int, digest: bytes, now: int) -> None:
        chain = process.engine.site.chain
        digests = self._digests.get(chain)
        if digests is None:
            digests = self._digests[chain] = {}
        known = digests.get(ts)
        if known is None:
            digests[ts] = (digest, process.member.site)
        elif known[0] != digest:
            self.fail(
                now,
                f"at slot {ts} site {process.member.site} has digest {digest.hex()},"
                f" site {known[1]} has {known[0].hex()}",
            )
