"""What travels on the ring, and what is answered.

A message is one of these, as a tagged MessagePack array. ``Execute`` is by far the most frequent; each
machine has its own struct for it, whose ``command`` is the union of the machine's commands, so that one call
in C reads all of it (``Language``). A message that cannot be read so is looked at again as ``Unread``.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from rsm.errors import CallError, CommandFailed, Refusal, Refused, Rejected
from rsm.methods import OK_TAG, SIGNATURE_BYTES, Catalogue, Method
from rsm.nesting import NESTING_MAX, is_too_deep
from rsm.sessions import SessionLimits

Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Signature: TypeAlias = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

EXECUTE_TAG: Final = 1
ASK_TAG: Final = 7


class Unread(msgspec.Struct, frozen=True, array_like=True, tag=EXECUTE_TAG):
    """An ``Execute`` whose command this machine does not know, or not so."""

    session: Count
    number: Count
    acknowledged: Count
    command: msgspec.Raw


class Open(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A client wants a session. Its id is the timestamp of this message."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=3):
    session: Count


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A boot of a replica says which machine it has, and the signature of each version that it can run. In
    the first of a chain ``version`` is what the group runs, under ``limits``."""

    boot: Annotated[bytes, Meta(min_length=16, max_length=16)]
    machine: str
    signatures: dict[Count, Signature]
    version: Count
    limits: SessionLimits


class Activate(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """From here on the group runs this version of its machine."""

    version: Count


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Does nothing. Who has applied it has applied everything that was ordered before it was sent."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The sender's digest of everything it has executed before slot ``ts``."""

    ts: Count
    digest: Count


Message: TypeAlias = Unread | Open | Close | Announce | Activate | Barrier | Checkpoint

_ENCODER: Final = msgspec.msgpack.Encoder()
_UNREAD: Final = msgspec.msgpack.Decoder(Unread)
_SORTING: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(Message)
OPEN: Final = _ENCODER.encode(Open())
BARRIER: Final = _ENCODER.encode(Barrier())


def identity_of(message: bytes) -> tuple[int | None, int | None]:
    """Session and number of a call, of whichever machine; None where it has none."""
    try:
        call = _UNREAD.decode(message)
    except msgspec.MsgspecError:
        return None, None
    return (call.session, call.number) if call.number else (None, None)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


class Language:
    """The messages of one machine."""

    def __init__(self, catalogue: Catalogue) -> None:
        fields = [(name, Count) for name in ("session", "number", "acknowledged")]
        self.execute: Any = msgspec.defstruct(
            "Execute", [*fields, ("command", catalogue.union)], array_like=True, tag=EXECUTE_TAG, gc=False
        )
        # A query of a client, in its place in the order; who is to answer it does, and nobody else.
        self.ask: Any = msgspec.defstruct(
            "Ask", [("query", catalogue.query_union)], array_like=True, tag=ASK_TAG, gc=False
        )
        known = self.execute | self.ask | Open | Close | Announce | Activate | Barrier | Checkpoint
        self._decode = msgspec.msgpack.Decoder(known).decode

    def encode(self, session: int, number: int, acknowledged: int, command: object) -> bytes:
        return _ENCODER.encode(self.execute(session, number, acknowledged, command))

    def encode_query(self, query: object) -> bytes:
        return _ENCODER.encode(self.ask(query))

    def decode(self, data: bytes) -> Any:
        """One of the above, or None: nobody's message."""
        if len(data) > NESTING_MAX and is_too_deep(data):
            return None
        try:
            return self._decode(data)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - also what classes of arguments raise in __post_init__
            pass
        try:
            return _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


# -- replies -------------------------------------------------------------------------------------


class Ok(msgspec.Struct, frozen=True, array_like=True, tag=OK_TAG):
    value: msgspec.Raw


class OkEncoded(msgspec.Struct, frozen=True, array_like=True, tag=OK_TAG):
    """The same, on its way out."""

    value: Any


class RejectedReply(msgspec.Struct, frozen=True, array_like=True, tag=1):
    message: str
    detail: Any = None


class FailedReply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    kind: str
    message: str


class RefusedReply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    refusal: Refusal
    message: str


class Elsewhere(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """There is a reply, and it fits no datagram: a client fetches it (``far_calls``)."""


Reply: TypeAlias = Ok | RejectedReply | FailedReply | RefusedReply
_OK: Final = bytes((0x92, OK_TAG))  # how such a reply begins: an array of two, the tag first
_REPLIES: Final = msgspec.msgpack.Decoder(Reply)
FETCH: Final = _ENCODER.encode(Elsewhere())


def encode_reply(
    reply: OkEncoded | RejectedReply | FailedReply | RefusedReply, *, has_sets: bool = False
) -> bytes:
    return (_SORTING if has_sets else _ENCODER).encode(reply)


# Of an ``OkEncoded`` that has no sets in it: what ``encode_reply`` does, without a call in between.
encode_ok: Final = _ENCODER.encode


_WORDS: Final = {
    Refusal.UNREADABLE: "the version of the machine that the group runs has no such command, or takes other"
    " arguments; is a newer one to be activated?",
    Refusal.NOT_READY: "no replica has announced its machine yet; try again",
    Refusal.SESSION_UNKNOWN: "the session has ended, or never was; open another",
    Refusal.SESSION_FULL: "too many answers in the session are not acknowledged",
    Refusal.OLD: "the answer to this request was acknowledged before",
    Refusal.CANNOT_ACTIVATE: "not every voter has announced that it can run this version",
}
REFUSED: Final = {refusal: encode_reply(RefusedReply(refusal, words)) for refusal, words in _WORDS.items()}


def too_large(size: int, most: int) -> bytes:
    """Instead of a reply that is more than sessions keep, and clients are sent."""
    words = f"it was executed, but its result has {size} bytes, and {most} are the most"
    return encode_reply(FailedReply("ResultTooLarge", words))


def call_too_large(size: int, most: int) -> bytes:
    """Instead of a reply to a call that is more than a replica takes."""
    words = f"the call has {size} bytes or more, message_bytes_max of this replica allows {most}"
    return encode_reply(RefusedReply(Refusal.TOO_LARGE, words))


def session_of(reply: bytes) -> int:
    """Of the reply to an ``Open``."""
    return msgspec.msgpack.decode(value_of(reply), type=int)


def value_of(reply: bytes) -> msgspec.Raw:
    """The encoded value of a reply, or the error that it is."""
    match _REPLIES.decode(reply):
        case Ok(value):
            return value
        case other:
            raise error_of(other)


def result_of(reply: bytes, method: Method) -> Any:
    """What the method returned, or the error that the reply is."""
    if reply.startswith(_OK):
        return method.decode_ok(reply)
    return method.decode_result(value_of(reply))


def error_of(reply: RejectedReply | FailedReply | RefusedReply) -> CallError:
    match reply:
        case RejectedReply(message, detail):
            return Rejected(message, detail)
        case FailedReply(kind, message):
            return CommandFailed(kind, message)
        case RefusedReply(refusal, message):
            return Refused(refusal, message)
