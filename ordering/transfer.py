"""A state transfer into a living member: its gap is collected, so it goes on behind the gap (R7, R16).

Logs are bounded. A member that was away for longer than they reach is refused the slots it misses,
and each refusal tells where the refuser's log begins: the slot, the epoch, the view in force and the
vector there (``Position``). When nobody helps for a while the member asks its host for the
application's state at that slot or later, and goes on from the position as if it had received
everything before it.

Why its promises and statements stay true. What is collected was delivered at MAJORITY, so it is
part of every later epoch, whoever holds it. A statement "I hold all up to t" promises that t will
be found in a view change: the state contains it, and the frontier says so. Within its epoch the
site keeps its promise and its acceptance; an epoch it jumps over is decided. What it cannot do any
more is retransmit the slots before the position; it refuses them, like all others, with a position
of its own, and can be the donor of the state.
"""

from ordering.config import MS
from ordering.effects import RequestState
from ordering.errors import MembershipError
from ordering.packets import Collected, Position
from ordering.site import Site
from ordering.views import SiteId


class Transfer:
    """The position a state is wanted for, if one is."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.wanted: Position | None = None
        self._refused: tuple[tuple[int, int], int] = ((-1, 0), 0)  # where we were refused, and since when

    def on_collected(self, refusal: Collected) -> None:
        """One refusal proves little, for others may still have the slots: wait whether somebody helps."""
        site = self.site
        position = refusal.position
        if not self._is_ahead(position) or refusal.head.epoch < site.epoch:
            return
        here = (site.epoch, site.queue.frontier)
        if self._refused[0] != here:
            self._refused = (here, site.now)
        patience = site.config.suspect_ms * MS
        if self.wanted is not None or site.now - self._refused[1] < patience:
            return
        self.wanted = position
        site.queue.departed.update(refusal.departed)
        donors = tuple(s for s in position.view.electorate if s != site.me)
        site.out.append(RequestState(position.ts, site.chain, donors))

    def refuse(self, asker: SiteId) -> None:
        """What the asker needs is collected, or was before our time: tell it where our log begins."""
        site = self.site
        position = self.position()
        if position is not None:
            site.count("collected refusals")
            site.unicast(asker, Collected(site.head(), position, site.descent, site.queue.latest_departed()))

    def forget(self) -> None:
        """We have entered another chain: a position of the old one means nothing here."""
        self.wanted = None
        self._refused = ((-1, 0), 0)

    def take(self, ts: int) -> Position | None:
        """The state at ``ts`` is here. Returns the position to go on from, if there is a gap to leap."""
        position = self.wanted
        if position is not None and ts < position.ts:
            raise MembershipError(
                f"ts: the state at {ts} is older than slot {position.ts}, where the log of the others"
                " begins; transfer it again from a donor that has delivered that slot"
            )
        self.site.state_ts = max(self.site.state_ts, ts)
        if position is None:
            return None
        self.wanted = None
        return position if self._is_ahead(position) else None

    def _is_ahead(self, position: Position) -> bool:
        """In a later epoch a lower slot is ahead of us, too: what we have above it was erased."""
        return (position.epoch, position.ts) > (self.site.epoch, self.site.queue.frontier)

    def position(self) -> Position | None:
        """Where our own log begins; None if that is not known to be held by a majority.

        A member that came later begins with the view that seated it, one slot behind its base.
        """
        queue = self.site.queue
        view_ts, view = queue.views[0]
        ts = max(queue.base, view_ts)
        if ts > self.site.stability.majority:
            return None
        vector = tuple((m.site, _collected(self.site, m.site)) for m in view.members)
        block = queue.blocks.get(ts)
        time = queue.base_time if block is None else block.time
        return Position(view.id.epoch, ts, view_ts, view, vector, time)


def _collected(site: Site, member: SiteId) -> int:
    source = site.queue.sources.get(member)
    return source.collected if source is not None else 0
