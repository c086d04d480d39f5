"""What a voter has said is on its disk."""

from typing import TYPE_CHECKING

from ordering.effects import Effect, InstallView, Multicast, Unicast
from ordering.packets import NO_BALLOT, Ballot, RecoveryAckNewList, RecoveryVote
from ordering.simulator.checkers.base import Checker
from ordering.views import SiteId

if TYPE_CHECKING:
    from ordering.simulator.process import Process


class Promises(Checker):
    """A voter that comes back remembers what it has told, or does not come back as that voter (R8).

    1. The disk it starts from has the ballot it last promised, and the one it last accepted, in the epoch
       it is in.
    2. A boot that starts from a disk which went back in time is never named by a view. The simulator lets
       that happen only where all others remember more.
    """

    name = "promises"

    def __init__(self) -> None:
        super().__init__()
        self._promised: dict[tuple[SiteId, int, int], Ballot] = {}  # by site, chain and epoch
        self._accepted: dict[tuple[SiteId, int, int], Ballot] = {}
        self._rolled_back: set[int] = set()

    def on_start(self, process: "Process", now: int) -> None:
        ledger = process.disk.ledger
        if process.disk.before:
            self._rolled_back.add(process.member.boot)
            return
        if ledger.began is None:
            return
        commitment = ledger.commitment
        if commitment is not None and commitment.epoch == ledger.epoch:
            chain, promised = commitment.chain, commitment.instance.promised
            accepted = commitment.instance.accepted_ballot
        else:
            chain, promised, accepted = ledger.chain, NO_BALLOT, NO_BALLOT
        key = (process.member.site, chain, ledger.epoch)
        for what, told, kept in (
            ("promised", self._promised.get(key, NO_BALLOT), promised),
            ("accepted", self._accepted.get(key, NO_BALLOT), accepted),
        ):
            if told > kept:
                self.fail(now, f"site {key[0]} has {what} {told} in epoch {key[2]}, its disk has {kept}")

    def on_effect(self, process: "Process", effect: Effect, now: int) -> None:
        if type(effect) is Multicast or type(effect) is Unicast:
            packet = effect.packet
            key = (packet.head.sender, packet.head.chain, packet.head.epoch)
            if type(packet) is RecoveryVote:
                self._promised[key] = max(packet.ballot, self._promised.get(key, NO_BALLOT))
            elif type(packet) is RecoveryAckNewList:
                self._accepted[key] = max(packet.ballot, self._accepted.get(key, NO_BALLOT))
        elif type(effect) is InstallView and self._rolled_back:
            for member in effect.view.members:
                if member.boot in self._rolled_back:
                    self.fail(now, f"view {effect.view.id} names site {member.site}, whose disk went back")
