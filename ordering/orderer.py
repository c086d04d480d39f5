"""What the token site orders next: a change of the view, data, the time, nothing; or it rests (RMP §4.2)."""

from ordering.config import MS
from ordering.disciplines import Discipline
from ordering.lock_requests import LockRequests
from ordering.membership import Membership
from ordering.packets import Order
from ordering.site import Site, Timer
from ordering.views import SiteId, View


class Orderer:
    """Makes the next block of the order, when this site has the token."""

    def __init__(
        self, site: Site, discipline: Discipline, membership: Membership, locks: LockRequests
    ) -> None:
        self.site = site
        self.discipline = discipline
        self.membership = membership
        self.locks = locks

    def next_block(self) -> Order | None:
        """The block to order now, stamped with the slot time (R14); None if there is nothing to do."""
        site = self.site
        queue = site.queue
        before = site.view
        ts = queue.frontier + 1
        time = site.clock.stamp(queue.time, site.now)
        next_site = self.discipline.next_site
        view = self.membership.next_view(ts, time)
        runs = () if view is not None else queue.orderable(before, site.config.block_messages)
        short = bool(runs) and site.is_short_of_buffers()
        if view is None:
            yields = bool(runs) and queue.tail is not None and queue.tail.view is not None
            view = self.locks.next_view(ts, time, yields=yields)
        if view is not None:
            vector = self._vector(view)
            return Order(site.epoch, ts, site.me, next_site(view), view=view, vector=vector, time=time)
        if short:
            return None  # RMP §4.6: the ACK waits, and with it the senders
        if runs:
            return Order(site.epoch, ts, site.me, next_site(before), runs, time=time)
        tick = self._tick_at()
        if tick and time >= tick:
            return Order(site.epoch, ts, site.me, next_site(before), time=time, tick=True)
        if self.discipline.wants_null():
            return Order(site.epoch, ts, site.me, next_site(before), time=time)
        self._wait_for_time(tick)
        return None

    def _vector(self, view: View) -> tuple[tuple[SiteId, int], ...]:
        ordered = dict(self.site.queue.vector())
        return tuple((member.site, ordered.get(member.site, 0)) for member in view.members)

    def _tick_at(self) -> int:
        """When the application, told of no time since the last block with content, is due a Tick."""
        tick = self.site.config.tick_ms
        return self.site.queue.real_time + tick * MS if tick else 0

    def _wait_for_time(self, tick: int) -> None:
        """A resting token site wakes when a lease ends, or for a Tick: nobody else would notice."""
        site = self.site
        expiry = self.locks.expiry(site.view.locks)
        due = min([at for at in (expiry, tick) if at], default=0)
        wait = site.clock.wait(due, site.queue.time, site.now) if due else None
        if wait is None:
            site.disarm(Timer.TICK)
        else:
            site.arm(Timer.TICK, wait)
