"""What can happen to a site. Past tense: it has happened, the engine reacts.

Events and effects are frozen msgspec structs: they are built millions of times a second, and a
frozen dataclass costs several times as much to build (``docs/decisions/001``).
"""

from typing import TypeAlias

import msgspec

from ordering.packets import ChangeKind, Packet
from ordering.qos import MAJORITY, Qos
from ordering.views import NO_SITE, SiteId


class Started(msgspec.Struct, frozen=True):
    """The host is ready. A founder takes part in the birth of the group; anyone else joins it."""

    founder: bool


class PacketsReceived(msgspec.Struct, frozen=True):
    """Everything one drain of the socket brought, in order of arrival."""

    packets: tuple[Packet, ...]


class TimerFired(msgspec.Struct, frozen=True):
    """The time of the last ``SetTimer`` has come."""


class SubmitRequested(msgspec.Struct, frozen=True):
    """The application multicasts messages of one quality; they keep their order."""

    messages: tuple[bytes, ...]
    qos: Qos = MAJORITY


class BacklogReported(msgspec.Struct, frozen=True):
    """The application is behind: so many bytes were delivered that it has not taken yet (R16).

    Optional. A host whose application is fast never says so; one that said so says it again when the
    number has changed much, and when it is 0.
    """

    bytes: int


class ChangeRequested(msgspec.Struct, frozen=True):
    """An operator's membership change: LEAVE (this site) or REMOVE (``site``)."""

    kind: ChangeKind
    site: SiteId = NO_SITE


class ForkRequested(msgspec.Struct, frozen=True):
    """An operator's word that the majority is gone for good: go on without it, in a new chain (R9).

    Whoever else has lost the majority takes part. What only the lost sites held is lost.
    """


class StateTransferred(msgspec.Struct, frozen=True):
    """The application now has the state at ``ts`` that ``RequestState`` asked for, and verified it (R7)."""

    ts: int


Event: TypeAlias = (
    Started
    | PacketsReceived
    | TimerFired
    | SubmitRequested
    | BacklogReported
    | ChangeRequested
    | ForkRequested
    | StateTransferred
)
