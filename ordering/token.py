"""Passing the token, and resting with it (RMP §4.2).

The block that passes the token is given again to its receiver until the receiver shows up. A token
site with nothing to order rests: it says so once, then probes everyone ever more rarely, so that a
quiet ring still notices a dead member, and recovers its last message as fast as a busy one (R16).
"""

from collections.abc import Callable

from ordering.config import MS
from ordering.detection import Detection
from ordering.packets import Confirm, Order, Probe
from ordering.retransmission import block_packet
from ordering.rtt import RoundTrip
from ordering.site import Site, Timer


class Token:
    """Our dealings with the token. ``suspect`` is called when someone's time may be up."""

    def __init__(self, site: Site, detection: Detection, rtt: RoundTrip, suspect: Callable[[], None]) -> None:
        self.site = site
        self.detection = detection
        self.rtt = rtt
        self.passing: Order | None = None  # our block whose receiver has not shown up yet
        self._suspect = suspect
        self._pass_tries = 0
        self._passed_at = 0
        self._probe_gap = 0
        self._probed_at = 0  # the last probe of this rest
        self._resting_at = -1  # frontier at which this site holds the token with nothing to do

    def forget(self) -> None:
        """An epoch is over, and its token with it."""
        self.passing = None
        self._resting_at = -1

    # -- passing ---------------------------------------------------------------------------------

    def hand_over(self, order: Order) -> None:
        """Our block was sent: see to it that the site it names takes the token."""
        site = self.site
        self._resting_at = -1
        if order.next_site == site.me:
            self.passing = None
            return
        self.passing = order
        self._pass_tries = 0
        self._passed_at = site.now
        self.detection.duties.clear()
        self.detection.owe(order.next_site)
        site.arm(Timer.PASS, self.rtt.rto)

    def fire_pass(self) -> None:
        """The receiver of the token has not shown up: give it our block again."""
        site = self.site
        if self.passing is None or site.fenced:
            return
        self._pass_tries += 1
        site.unicast(self.passing.next_site, block_packet(site, self.passing))
        # Often enough that a suspicion is not late by more than a quarter of its time.
        patience = min(site.config.rto_max_ms, site.config.suspect_ms // 4) * MS
        site.arm(Timer.PASS, min(self.rtt.rto << min(self._pass_tries, 6), patience))
        self._suspect()

    # -- resting ---------------------------------------------------------------------------------

    def rest(self) -> None:
        """Nothing to order and all is held: say so once (RMP's Confirm), then probe ever more rarely. While
        the round is only put off, who passed us the token is told that we have it; of three, nobody else
        needs that to deliver."""
        site = self.site
        if self._resting_at == site.queue.frontier:
            return
        self._resting_at = site.queue.frontier
        self.detection.duties.clear()
        if len(site.view.members) > 1:
            tail = site.queue.tail
            put_off = site.stability.stable < site.queue.last_real_ts
            if put_off and tail is not None and len(site.view.members) == 3:
                site.confirm_to(tail.orderer)
            else:
                site.confirm()
            self._probe_gap = self.rtt.rto
            self._probed_at = 0
            site.arm(Timer.PROBE, self._probe_gap)

    def fire_probe(self) -> None:
        site = self.site
        if self._resting_at < 0 or site.fenced:
            return
        self.detection.progress()
        owing = tuple(
            member.site
            for member in site.view.members
            if member.site != site.me and self.detection.last_heard.get(member.site, 0) < self._probed_at
        )
        self._probed_at = site.now
        for debtor in site.view.ring:
            self.detection.owe(debtor)
        site.multicast(Probe(site.head(), owing))
        received, last = site.stability.received, site.queue.last_real_ts
        waiting = any(s in owing or received.get(s, 0) < last for s in site.view.ring if s != site.me)
        self._probe_gap = min(self._probe_gap * 2, site.config.probe_ms * MS)
        site.arm(Timer.PROBE, self.rtt.rto * 2 if waiting else self._probe_gap)
        self._suspect()

    def on_probe(self, probe: Probe) -> None:
        """The resting token site asks: answer to all, so that everyone hears everyone."""
        if self.site.me not in probe.owing:
            self.detection.probed_by(probe.head.sender)
        if not self.site.fenced:
            self.site.confirm()

    def fire_confirm(self) -> None:
        """Nothing else has told everybody meanwhile how far we are."""
        if not self.site.fenced:
            self.site.confirm()

    def on_confirm(self, confirm: Confirm) -> None:
        tail = self.site.queue.tail
        if tail is not None and confirm.head.sender == tail.next_site:
            self.detection.progress()

    # -- watching --------------------------------------------------------------------------------

    def keep_watch(self) -> None:
        """Who has shown up owes nothing more; who does not rest does not probe."""
        site = self.site
        passing = self.passing
        if passing is not None:
            shown = site.stability.received.get(passing.next_site, 0) >= passing.last_ts
            if shown or site.queue.frontier > passing.last_ts:
                if not self._pass_tries:
                    self.rtt.sample(site.now - self._passed_at)
                else:
                    self.rtt.late()
                self.passing = None
                self.detection.settle(passing.next_site)
                site.disarm(Timer.PASS)
        if not site.holds_token():
            self._resting_at = -1
            site.disarm(Timer.PROBE)
        elif self._resting_at >= 0:
            for debtor, duty in list(self.detection.duties.items()):
                answered = self.detection.last_heard.get(debtor, 0) > duty.since
                if answered and site.stability.received.get(debtor, 0) >= site.queue.last_real_ts:
                    self.detection.settle(debtor)
