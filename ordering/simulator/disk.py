"""A directory that loses what was not synced, fails, goes back in time, and rots."""

from random import Random

import msgspec

from ordering.effects import Persist
from ordering.records import Ledger

BACKUPS_MAX = 4


class Snapshot(msgspec.Struct, frozen=True):
    """The application's state: the timestamp, the digest, and the replies it keeps (R12)."""

    ts: int = 0
    digest: bytes = bytes(16)
    sessions: dict[tuple[int, int, int], tuple[int, bytes]] = {}


class Disk:
    """What one site's directory holds: the log, and beside it the claim and the application's snapshot."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.claimed = (0, 0)  # epoch and slot up to which the log must be whole
        self.snapshot = Snapshot()
        self.before: list[Ledger] = []  # what it had before it lost something; for who judges the group
        self.writing: Persist | None = None
        self._backups: list[Disk] = []

    @property
    def has_member(self) -> bool:
        return self.ledger.began is not None

    def finish(self, persist: Persist) -> None:
        """The sync has come to an end."""
        self.writing = None
        self.ledger.apply(persist.records)
        self.claimed = (self.ledger.epoch, self.ledger.end)

    def crash(self, rng: Random) -> None:
        """What was being written is there or not."""
        persist, self.writing = self.writing, None
        if persist is not None and rng.random() < 0.5:
            self.ledger.apply(persist.records)

    # -- copies ----------------------------------------------------------------------------------

    def back_up(self) -> None:
        copy = Disk()
        copy.ledger = self.ledger.copy()
        copy.claimed, copy.snapshot = self.claimed, self.snapshot
        self._backups.append(copy)
        if len(self._backups) > BACKUPS_MAX:
            del self._backups[0]

    @property
    def oldest_claim(self) -> tuple[int, int] | None:
        """What a rollback would leave of the claim."""
        for copy in self._backups:
            if copy.ledger.site == self.ledger.site and copy.has_member:
                return copy.claimed
        return None

    def roll_back(self) -> None:
        """Somebody restores the oldest copy of the whole directory."""
        copy = next(c for c in self._backups if c.ledger.site == self.ledger.site and c.has_member)
        self.before.append(self.ledger)
        self.ledger = copy.ledger.copy()
        self.claimed, self.snapshot = copy.claimed, copy.snapshot
        self._backups.clear()

    # -- rot -------------------------------------------------------------------------------------

    def rot(self, rng: Random) -> bool:
        """A bit flips in some row. The host finds it by its checksum when it reads the log, and cuts the log
        there if it may (R8). Returns whether the site can still come back from it."""
        rows = [entry.order for entry in self.ledger.entries.values()]
        if not rows:
            return False
        bad = rng.choice(rows[-3:]) if rng.random() < 0.5 else rng.choice(rows)
        if (bad.epoch, bad.ts) <= self.claimed:
            return False
        self.ledger.cut_from(bad.ts)
        return True
