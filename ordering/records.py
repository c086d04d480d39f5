"""What a durable site writes down, and what its disk then holds (R8, ``docs/durability.md``).

The records of one ``Persist`` are one transaction, applied in their order. ``Ledger`` says what that means; a
storage may lay it out as it likes as long as it gives back the same ``Ledger``.
"""

from typing import TypeAlias

import msgspec

from ordering.errors import InvariantViolation
from ordering.packets import NO_BALLOT, Ballot, Batch, Descent, Order, Position
from ordering.views import NO_SITE, SiteId, View

Departed: TypeAlias = tuple[tuple[SiteId, int], ...]
Chains: TypeAlias = tuple[tuple[int, int], ...]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One block of the order with its data."""

    order: Order
    batches: tuple[Batch, ...]


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """What a voter must never forget of a view change that is not over (R3)."""

    promised: Ballot = NO_BALLOT
    accepted_ballot: Ballot = NO_BALLOT
    accepted: Order | None = None
    decision: Order | None = None
    fenced: bool = False


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """What a site goes back to if the fork it has entered cannot come about (R9)."""

    chain: int
    descent: Descent
    fork: View | None
    instance: Instance


class Began(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Who we are. ``founders`` is the view of epoch 0 for a founder, None for a learner, whose log begins
    with the block at ``started_at`` + 1 or with the position that ``Leapt`` names."""

    site: SiteId
    chain: int
    descent: Descent
    founders: View | None
    started_at: int
    seat_ts: int
    departed: Departed


class Entries(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Blocks that follow the log's end, in order."""

    entries: tuple[Entry, ...]


class Installed(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """R3: erase every block from ``order.ts`` on, append the install, and end the instance, in one step."""

    order: Order
    chain: int
    descent: Descent
    chains: Chains


class Commitment(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The instance under way; replaces the one before. ``parents`` are the chains that a fork has left."""

    chain: int
    descent: Descent
    epoch: int
    instance: Instance
    fork: View | None
    parents: tuple[Parent, ...]


class Leapt(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The log is void; it goes on behind ``position``, whose state the application has."""

    position: Position
    chains: Chains
    departed: Departed


class Trimmed(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """Blocks up to ``position`` may be deleted: the application comes back without them."""

    position: Position
    departed: Departed


class Transferred(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """A learner's application has the state."""

    ts: int


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The most that one boot of a member was heard to hold."""

    boot: int
    epoch: int
    held: int


class Heard(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """What others have claimed; replaces the earlier claims of the same sites."""

    claims: tuple[tuple[SiteId, Claim], ...]


Record: TypeAlias = Began | Entries | Installed | Commitment | Leapt | Trimmed | Transferred | Heard


class Ledger:
    """What a disk holds after the records it was given: the reference for every storage."""

    def __init__(self) -> None:
        self.began: Began | None = None
        self.chain = 0
        self.descent = Descent(0, 0)
        self.chains: Chains = ()
        self.base: Position | None = None
        self.departed: Departed = ()
        self.entries: dict[int, Entry] = {}  # by first slot, in order
        self.end = 0  # last slot of the last entry, or of the base
        self.commitment: Commitment | None = None
        self.transferred = 0  # the slot of the last state that was taken over
        self.claims: dict[SiteId, Claim] = {}

    @property
    def site(self) -> SiteId:
        return self.began.site if self.began is not None else NO_SITE

    @property
    def epoch(self) -> int:
        """The epoch of the log's end."""
        epoch = self.base.epoch if self.base is not None else 0
        return max([epoch, *(e.order.epoch for e in list(self.entries.values())[-1:])])

    def copy(self) -> "Ledger":
        """As of now: what a backup would give back."""
        other = Ledger()
        vars(other).update(vars(self))
        other.entries = dict(self.entries)
        other.claims = dict(self.claims)
        return other

    def apply(self, records: tuple[Record, ...]) -> None:
        for record in records:
            self._apply(record)

    def _apply(self, record: Record) -> None:
        match record:
            case Began():
                self.began = record
                self.chain, self.descent = record.chain, record.descent
                self.departed = record.departed
                self.end = record.started_at
            case Entries(entries):
                for entry in entries:
                    self._append(entry)
            case Installed(order, chain, descent, chains):
                self.cut_from(order.ts)
                self._append(Entry(order, ()))
                self.chain, self.descent = chain, descent
                self._add_chains(chains)
                self.commitment = None
            case Commitment():
                self.commitment = record
            case Leapt(position, chains, departed):
                self.entries.clear()
                self.base, self.departed = position, departed
                self._add_chains(chains)
                self.end = position.ts
                if self.commitment is not None and self.commitment.epoch < position.epoch:
                    self.commitment = None
            case Trimmed(position, departed):
                self.base, self.departed = position, departed
                for ts in [ts for ts, e in self.entries.items() if e.order.last_ts <= position.ts]:
                    del self.entries[ts]
            case Transferred(ts):
                self.transferred = max(self.transferred, ts)
            case Heard(claims):
                self.claims.update(claims)

    def _add_chains(self, chains: Chains) -> None:
        """A site forgets a chain once it is past it; its log may begin before that."""
        known = {chain for _, chain in chains}
        self.chains = (*(item for item in self.chains if item[1] not in known), *chains)

    def _append(self, entry: Entry) -> None:
        if entry.order.ts != self.end + 1:
            raise InvariantViolation(f"the log ends at {self.end}, the next entry begins at {entry.order.ts}")
        self.entries[entry.order.ts] = entry
        self.end = entry.order.last_ts

    def cut_from(self, ts: int) -> None:
        """Delete every entry from slot ``ts`` on."""
        for start in [start for start in self.entries if start >= ts]:
            del self.entries[start]
            self.end = min(self.end, start - 1)
