"""What can go wrong at the local door of the engine.

    OrderingError
    ├── ConfigurationError      a setting is missing, out of range or contradicts another
    │   └── KeyringError        keys that cannot seal, or an exchange of keys that cannot be
    ├── SubmitError             a message was refused; nothing of it entered the ring
    │   ├── UnknownQos          no such quality of service
    │   ├── KTooLarge           K is negative, or not below the number of voters
    │   ├── MessageTooLarge     over ``message_bytes_max``; UNRELIABLE: over one packet
    │   ├── NotMember           this site has not joined, has left or was removed
    │   ├── NoPrimary           this site cannot reach a majority
    │   └── Overloaded          the send window is full
    ├── MembershipError         a membership change that cannot be asked for
    ├── LockError               a lock that cannot be asked for
    ├── GroupError              a group that cannot be opened here, or is not open
    ├── PacketTooLarge          a packet that does not fit into one datagram
    ├── CounterExhausted        all nonces of this boot are used up: restart the process
    ├── BulkError               a bulk channel ended before its streams did
    │   ├── BulkRefused         the peer is not one of ours: protocol, mode or key
    │   ├── BulkCorrupt         a frame was altered, repeated, left out or out of place
    │   ├── BulkLost            the connection broke, or was never made
    │   ├── BulkTimeout         the peer neither sends nor reads
    │   └── BulkMisuse          a call that this end's stream does not allow any more
    ├── DriverClosed            a closed driver was used
    ├── DecodeError             a datagram that is not one of ours (drivers count it and drop it)
    └── InvariantViolation      the engine found itself in an impossible state: stop the replica

A packet that comes at the wrong moment raises nothing: it is counted and dropped (R18).
"""


class OrderingError(Exception):
    """Root of everything the engine raises."""


class ConfigurationError(OrderingError):
    """A setting is wrong; the message names the field and the way out."""


class KeyringError(ConfigurationError):
    """Keys that cannot be used. The message tells which and why, and never shows a key."""


class SubmitError(OrderingError):
    """A message was refused at submission; it was not sent and will not be."""


class UnknownQos(SubmitError):
    """No such quality of service."""


class KTooLarge(SubmitError):
    """K-resilience asked for more failures than there are other voters."""


class MessageTooLarge(SubmitError):
    """The message exceeds ``message_bytes_max``, or is UNRELIABLE and does not fit a packet."""


class NotMember(SubmitError):
    """This site is not, or no longer, a member of the group."""


class NoPrimary(SubmitError):
    """This site is cut off from a majority of the electorate; it must not accept work."""


class Overloaded(SubmitError):
    """The send window is full; wait for ``WindowOpened`` and submit again."""


class MembershipError(OrderingError):
    """A membership change that makes no sense at this site."""


class LockError(OrderingError):
    """A lock that cannot be asked for here, or now; the message names the way out."""


class GroupError(OrderingError):
    """A group cannot be opened beside the others, or is not open; the message names the way out."""


class PacketTooLarge(OrderingError):
    """A packet that does not fit into one datagram; nothing was sent."""


class CounterExhausted(OrderingError):
    """Another datagram would repeat a nonce; the process must start anew, with a new boot."""


class BulkError(OrderingError):
    """A bulk channel ended before its streams did. What came until then is genuine, and not all."""


class BulkRefused(BulkError):
    """The other end speaks another protocol or mode, or has no key of ours."""


class BulkCorrupt(BulkError):
    """What came is not what the other end sent, in its order."""


class BulkLost(BulkError):
    """The connection broke before the end of the stream, or could not be made."""


class BulkTimeout(BulkError):
    """The other end was silent, or read nothing, for too long."""


class BulkMisuse(BulkError):
    """The stream at this end is finished or gone."""


class DriverClosed(OrderingError):
    """The driver was closed; its groups have stopped."""


class DecodeError(OrderingError):
    """A datagram that cannot be one of ours. ``reason`` is a short word to count by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvariantViolation(OrderingError):
    """Broken invariant: the site must stop rather than go on with a state it cannot trust."""


class ListenerHalts(Exception):
    """What a listener raises that must not go on, and says itself why. Its group is stopped, as after any
    other exception; but this one is no defect, and nobody needs its traceback."""
