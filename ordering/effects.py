"""What a site asks of its host, in the order in which it must be done. Imperative."""

from enum import IntEnum
from typing import TypeAlias

import msgspec

from ordering.packets import Packet
from ordering.qos import Level, Qos
from ordering.views import SiteId, View, ViewId


class Multicast(msgspec.Struct, frozen=True):
    """Send to every address; a host with IP multicast sends once."""

    to: tuple[str, ...]
    packet: Packet


class Unicast(msgspec.Struct, frozen=True):
    to: str
    packet: Packet


class SetTimer(msgspec.Struct, frozen=True):
    """Fire ``TimerFired`` at ``at`` (nanoseconds of the host's clock); replaces the last one."""

    at: int


class Delivery(msgspec.Struct, frozen=True):
    """Consecutive messages of one source. ``first_ts`` is 0 where the level has no timestamp.

    ``reached`` is the level the delivery stands on: a K that dead sites made unreachable is
    delivered at what the ring can give, and says so (R10).
    """

    first_ts: int
    source: SiteId
    first_seq: int
    qos: Qos
    reached: Level
    messages: tuple[bytes, ...]


class Deliver(msgspec.Struct, frozen=True):
    """Hand messages to the application. Everything from SOURCE_ORDERED up comes exactly once,
    except what a ``Retract`` takes back."""

    view: ViewId
    deliveries: tuple[Delivery, ...]


class Retract(msgspec.Struct, frozen=True):
    """Deliveries below MAJORITY with timestamps above ``after`` were erased by a view change.

    Their messages come again under new timestamps if their source, or a holder of the data, lives. An
    application that only acts on what ``LevelReached`` covers never sees a difference.
    """

    after: int


class LevelReached(msgspec.Struct, frozen=True):
    """What was delivered up to ``majority`` is held by a majority, up to ``stable`` by the whole ring.

    Replicas apply up to ``majority`` (R10): nothing of that is ever retracted.
    """

    majority: int
    stable: int


class InstallView(msgspec.Struct, frozen=True):
    """The view at slot ``ts`` is in force, in order with the messages around it."""

    ts: int
    chain: int
    view: View


class Accepted(msgspec.Struct, frozen=True):
    """A submission got sequence numbers ``first_seq …`` of its lane; it will not be dropped silently."""

    first_seq: int
    count: int
    qos: Qos


class Abandoned(msgspec.Struct, frozen=True):
    """Accepted messages this site can no longer vouch for; their outcome is unknown (R15)."""

    first_seq: int
    count: int
    ordered: bool  # which lane's sequence numbers these are


class WindowOpened(msgspec.Struct, frozen=True):
    """A submission was refused as ``Overloaded``; one of its size fits now. Comes once after a refusal."""


class RequestState(msgspec.Struct, frozen=True):
    """This site needs the application state at or after ``ts`` from one of ``donors`` (R7): it is a
    learner, or it was away for longer than the logs of the others reach. Answer: ``StateTransferred``.
    A later request replaces an earlier one. A host never replaces its state by an older one: by the time
    a state comes the order may have been faster."""

    ts: int
    chain: int  # donors that have forked off it have another history
    donors: tuple[SiteId, ...]


class Ending(IntEnum):
    """Why a site's membership is over. Each but LEFT is a program-controlled crash (R17).

    UNBORN: the birth it took part in cannot come about, or came about without this boot. SUPERSEDED: the
    group lives in another chain (R9).
    """

    LEFT = 1
    REMOVED = 2
    UNBORN = 3
    SUPERSEDED = 4


class EndMembership(msgspec.Struct, frozen=True):
    """Stop serving at once. To come back, start a new engine with a new boot and join."""

    ending: Ending


Effect: TypeAlias = (
    Multicast
    | Unicast
    | SetTimer
    | Deliver
    | Retract
    | LevelReached
    | InstallView
    | Accepted
    | Abandoned
    | WindowOpened
    | RequestState
    | EndMembership
)
