"""What does the ledger remember of an action, of what is voted on, and of a site?"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sortedcontainers import SortedDict

from apps.actions.types import Action, EarlyVote, Finish, Operation, SiteState, State, Vote
from ordering.views import SiteId
from rsm.state_machine import GroupView

MS: Final = 1_000_000
MIB: Final = 1 << 20
OPERATION_BYTES: Final = 100  # of an operation beside its texts, and of an action
CHANGES_SHIFT: Final = 20  # a change's number: its slot, and so many bits for those of one slot
EARLY: Final = "early-"  # in a unit's name, and not its slot, if it is prepared before it has one
FORGOTTEN: Final = "forgotten"
KEY_BYTES: Final = 100  # of a key beside its text: each has a line of those that wait for it


class Limits(msgspec.Struct, frozen=True):
    """What is above them is refused. ``full``: the ledger is; ``behind``: a site is."""

    undecided_max: int = 100_000  # open ones too
    bytes_max: int = 256 * MIB  # of all actions that are not over
    parked_max: int = 1_000
    retained_max: int = 10_000  # of those that are over
    retained_bytes_max: int = 64 * MIB
    sites_max: int = 256
    site_actions_max: int = 100_000  # undecided or unfinished at one site
    site_bytes_max: int = 128 * MIB
    aborts_kept_max: int = 1_000  # that a site can still be told of, one by one
    operations_max: int = 1_000  # of an action
    action_bytes_max: int = MIB
    depends_max: int = 64
    keys_max: int = 1_000  # of an operation
    text_max: int = 256  # characters of a name, an id, a key
    asked_max: int = 64  # bytes
    reason_max: int = 1_000  # characters; what is longer is cut
    timeout_ms_max: int = 24 * 3600 * 1000
    reports_max: int = 1_000
    duties_max: int = 1_000  # in a page, unless those of one slot are more
    asked_keys_max: int = 1_000  # of a site, for which it is known when they were asked for last
    step_max: int = 1_000  # actions that are decided or begun in one slot, beside the one it is about


class Entry(msgspec.Struct):
    """An action. ``changed``: its number among all changes."""

    id: str
    operations: tuple[Operation, ...]
    depends: tuple[str, ...]
    timeout_ms: int
    initiator: str
    state: State
    deadline_ns: int
    size: int
    unit: str = ""
    opened: int = 0
    requested: int = 0
    decided: int = 0
    reason: str = ""
    changed: int = 0
    asked: bytes = b""

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(operation.site for operation in self.operations))

    @property
    def asked_ns(self) -> int:
        """When its commit was asked for, in the group's time."""
        return self.deadline_ns - self.timeout_ms * MS

    def size_at(self, site: str) -> int:
        own = sum(size_of(operation) for operation in self.operations if operation.site == site)
        return OPERATION_BYTES + own


class Part(msgspec.Struct):
    """Of a unit, at one site. ``duty``: where it stands among the site's duties, 0 if nowhere."""

    incarnation: int
    keys: tuple[str, ...] | None
    size: int
    vote: Vote | None = None
    finish: Finish | None = None
    is_done: bool = False
    duty: int = 0


class Unit(msgspec.Struct):
    """What is voted on: an action, or several that depend on each other. It waits until ``awaits`` units it
    depends on have committed, and until it is first at all its sites."""

    name: str
    place: int
    members: tuple[str, ...]
    parts: dict[str, Part]
    awaits: tuple[str, ...]
    state: State = State.WAITING
    dependents: deque[str] = msgspec.field(default_factory=deque)
    missing: int = 0  # votes
    undone: int = 0  # parts
    chain: int = 0  # in which it took its place


class Asked(msgspec.Struct):
    """Slots in which a site was asked to prepare something, by what that touches. An early vote of before
    does not count: to prepare what it was asked for, the site has let go of what it had offered."""

    keys: dict[str, int] = msgspec.field(default_factory=dict)  # the latest last
    whole: int = 0
    last: int = 0
    forgotten: int = 0  # up to here some keys are missing

    def note(self, keys: tuple[str, ...] | None, slot: int, keys_max: int) -> None:
        self.last = slot
        if keys is None:
            self.whole = slot
            return
        for key in keys:
            self.keys.pop(key, None)
            self.keys[key] = slot
        while len(self.keys) > keys_max:
            self.forgotten = self.keys.pop(next(iter(self.keys)))

    def latest(self, keys: tuple[str, ...] | None) -> int:
        """The slot of the last that competes with these, or a later one."""
        if keys is None:
            return self.last
        return max(self.whole, self.forgotten, *(self.keys.get(key, 0) for key in keys), 0)


class Seat(msgspec.Struct):
    """A site's name and who has it. ``since``: the slot in which that changed last.

    ``duties`` has the units by the number of the change that made them one. ``involved`` are actions that
    need a vote of the site. What is aborted stays for a while; up to slot ``forgotten`` some are gone.
    """

    name: str
    site: int = 0
    boot: str = ""
    incarnation: int = 0
    is_here: bool = False
    since: int = 0
    forgotten: int = 0
    unfinished: int = 0
    count: int = 0
    bytes: int = 0
    involved: dict[str, None] = msgspec.field(default_factory=dict)
    duties: Any = msgspec.field(default_factory=SortedDict)
    aborts: deque[int] = msgspec.field(default_factory=deque)
    asked: Asked = msgspec.field(default_factory=Asked)
    withdrawn: int = 0  # the slot before which its early votes do not count

    def has_cast(self, vote: EarlyVote, chain: int) -> bool:
        """Whether a vote is of this registration, and not withdrawn."""
        return (
            self.is_here
            and (vote.chain, vote.incarnation) == (chain, self.incarnation)
            and vote.heard >= self.withdrawn
        )

    def shown(self, view: GroupView | None) -> SiteState:
        address = "" if view is None else view.addresses.get(SiteId(self.site), "")
        return SiteState(
            self.name, self.site, self.boot, self.incarnation, self.is_here, self.unfinished, address
        )


def shown(entry: Entry, unit: Unit | None, waits_for: Iterable[str]) -> Action:
    """An action, as everybody may see it."""
    parts = () if unit is None else unit.parts.values()
    return Action(
        entry.id,
        entry.state,
        entry.operations,
        entry.depends,
        entry.unit,
        entry.initiator,
        entry.opened,
        entry.requested,
        entry.decided,
        entry.deadline_ns,
        entry.reason,
        tuple(dict.fromkeys(waits_for)),
        tuple(part.vote for part in parts if part.vote is not None),
        tuple(part.finish for part in parts if part.finish is not None),
        entry.asked,
    )


def size_of(operation: Operation) -> int:
    """In bytes, or nearly: characters of texts."""
    keys = operation.keys or ()
    texts = (operation.site, operation.name, *keys)
    own = OPERATION_BYTES + KEY_BYTES * len(keys)
    return own + sum(map(len, texts)) + len(operation.arguments) + len(operation.seen)


def keys_of(operations: tuple[Operation, ...]) -> tuple[str, ...] | None:
    """What operations of one site touch together; None for everything."""
    found: dict[str, None] = {}
    for operation in operations:
        if operation.keys is None:
            return None
        found.update(dict.fromkeys(operation.keys))
    return tuple(found)
