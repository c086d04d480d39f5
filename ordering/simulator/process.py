"""One process: an engine, its host loop, and a small replica that applies at majority."""

from hashlib import blake2b
from random import Random

import msgspec

from ordering.config import Config
from ordering.effects import CallRepeated, Deliver, Delivery, Effect, EndMembership, Retract
from ordering.engine import Engine
from ordering.events import Event, Reply, TimerFired
from ordering.packets import Call, CallFlag
from ordering.qos import Level
from ordering.simulator.disk import Disk, Snapshot
from ordering.views import Member, View

FREE = Level.SOURCE_ORDERED  # up to here a request has no place in the order


class Applied(msgspec.Struct, frozen=True):
    """One message as the replica applied it."""

    ts: int
    message: bytes
    call: Call | None = None
    owed: bool = False


class Replica:
    """A state machine whose state is the hash of everything applied, in order.

    It keeps sessions (R12): the first reply to each request is part of the state and answers every
    repetition. Requests without a place in the order get a reply that depends on nothing.
    """

    def __init__(self) -> None:
        self.sessions: dict[tuple[int, int, int], tuple[int, bytes]] = {}
        self.answers: list[Reply] = []  # for the engine
        self.ts = 0
        self.digest = b"\0" * 16
        self._waiting: list[Applied] = []

    def hear(self, effect: Effect) -> None:
        """Whatever a site tells its application. This one's state depends on messages alone."""
        match effect:
            case Deliver(_, deliveries):
                for delivery in deliveries:
                    self.deliver(delivery)
            case Retract(after):
                self.retract(after)
            case CallRepeated(call, message):
                self.repeat(call, message)

    def deliver(self, delivery: Delivery) -> None:
        if delivery.calls:
            self._deliver_calls(delivery)
        elif delivery.first_ts:
            for offset, message in enumerate(delivery.messages):
                self._waiting.append(Applied(delivery.first_ts + offset, message))

    def _deliver_calls(self, delivery: Delivery) -> None:
        for offset, (call, message) in enumerate(zip(delivery.calls, delivery.messages, strict=True)):
            owed = offset in delivery.owed
            if delivery.first_ts:
                request = None if call.flags & CallFlag.IS_REPLY else call
                self._waiting.append(Applied(delivery.first_ts + offset, message, request, owed))
            elif owed:
                self.answers.append(Reply(call, 0, _value(0, message)))

    def repeat(self, call: Call, message: bytes) -> None:
        """A request wants its reply again, or for the first time from this replica."""
        known = self.sessions.get((call.caller, call.boot, call.number))
        if known is not None:
            self.answers.append(Reply(call, *known))
        elif message.startswith(b"~"):
            self.answers.append(Reply(call, 0, _value(0, message)))

    def _execute(self, item: Applied, call: Call) -> None:
        key = (call.caller, call.boot, call.number)
        if key not in self.sessions:
            self.sessions[key] = (item.ts, _value(item.ts, item.message))
        if item.owed:
            self.answers.append(Reply(call, *self.sessions[key]))

    def retract(self, after: int) -> None:
        self._waiting = [item for item in self._waiting if item.ts <= after]

    def apply(self, majority: int) -> list[tuple[int, bytes]]:
        """Apply what a majority holds; returns (timestamp, digest after it) for each message."""
        done: list[tuple[int, bytes]] = []
        taken = 0
        for item in self._waiting:
            if item.ts > majority:
                break
            taken += 1
            if item.ts <= self.ts:
                continue  # part of the state transferred
            self.digest = blake2b(
                self.digest + item.ts.to_bytes(8, "big") + item.message, digest_size=16
            ).digest()
            self.ts = item.ts
            if item.call is not None:
                self._execute(item, item.call)
            done.append((item.ts, self.digest))
        del self._waiting[:taken]
        return done

    @property
    def waiting(self) -> int:
        """Messages that are delivered and not applied."""
        return len(self._waiting)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.ts, self.digest, dict(self.sessions))

    def restore(self, snapshot: Snapshot) -> None:
        self.ts = snapshot.ts
        self.digest = snapshot.digest
        self.sessions = dict(snapshot.sessions)


def _value(ts: int, message: bytes) -> bytes:
    return blake2b(ts.to_bytes(8, "big") + message, digest_size=4).hexdigest().encode()


class Process:
    """A running (or paused, or dead) site."""

    def __init__(
        self,
        config: Config,
        member: Member,
        rng: Random,
        key: int,
        disk: Disk,
        replica: Replica | None = None,
    ) -> None:
        self.member = member
        self.key = key  # names this process among all: a voter may come back, a process does not
        self.disk = disk
        self.address = member.address
        self.engine = Engine(config, member, rng)
        self.replica = Replica() if replica is None else replica
        self.alive = True
        self.paused = False
        self.backlog: list[Event] = []
        self.timer_at = 0
        self.view: View | None = None
        self.view_ts = 0
        self.majority = 0
        self.ended: EndMembership | None = None
        self.has_state = False
        self.applied_since_snapshot = 0
        self.wanted_state = 0
        self.datagrams_in = 0
        self.bytes_in = 0
        # The process' own clock: it runs at per_mille / 1000 of real speed since real_epoch.
        self.real_epoch = 0
        self.local_epoch = 0
        self.per_mille = 1000

    def local_time(self, real: int) -> int:
        return self.local_epoch + (real - self.real_epoch) * self.per_mille // 1000

    def real_time(self, local: int) -> int:
        return self.real_epoch + -((self.local_epoch - local) * 1000 // self.per_mille)

    def is_member(self) -> bool:
        return self.alive and self.view is not None and self.ended is None


TIMER = TimerFired()
