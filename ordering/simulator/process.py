"""One process: an engine, its host loop, and a small replica that applies at majority."""

from hashlib import blake2b
from random import Random

import msgspec

from ordering.config import Config
from ordering.effects import Delivery, EndMembership
from ordering.engine import Engine
from ordering.events import Event, TimerFired
from ordering.simulator.disk import Disk
from ordering.views import Member, View


class Applied(msgspec.Struct, frozen=True):
    """One message as the replica applied it."""

    ts: int
    message: bytes


class Replica:
    """A state machine whose state is the hash of everything applied, in order."""

    def __init__(self) -> None:
        self.ts = 0
        self.digest = b"\0" * 16
        self._waiting: list[Applied] = []

    def deliver(self, delivery: Delivery) -> None:
        if delivery.first_ts:
            for offset, message in enumerate(delivery.messages):
                self._waiting.append(Applied(delivery.first_ts + offset, message))

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
            done.append((item.ts, self.digest))
        del self._waiting[:taken]
        return done

    def restore(self, ts: int, digest: bytes) -> None:
        self.ts = ts
        self.digest = digest


class Process:
    """A running (or paused, or dead) site."""

    def __init__(self, config: Config, member: Member, rng: Random, key: int, disk: Disk) -> None:
        self.member = member
        self.key = key  # names this process among all: a voter may come back, a process does not
        self.disk = disk
        self.address = member.address
        self.engine = Engine(config, member, rng)
        self.replica = Replica()
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
