"""What replicas ask each other over the bulk channel: above all for the state (R7).

    asks      StateWanted(chain, ts)          a state of this history, at this slot or later
    answers   StateOffered(ts, length) and the executor's snapshot; or nothing, if it cannot

    asks      ResultsWanted()                 what was executed lately: who finds itself diverged looks where
    answers   pairs of slot and checksum

    asks      StatusWanted()
    answers   ReplicaStatus

The bytes are verified twice: each frame of the channel is sealed, and the snapshot ends where the offer said,
with the digest that it said.
"""

import asyncio
from hashlib import blake2b
from struct import Struct as Layout
from typing import Final, Protocol, TypeAlias

import msgspec

from ordering.errors import BulkError
from ordering.sealing import Keyring
from ordering.transports.addresses import parse_address
from ordering.transports.bulk_tcp import BulkStream, open_bulk
from ordering.views import NO_SITE, SiteId
from rsm.logs import Throttle, logger
from rsm.status import ReplicaStatus

log = logger(__name__)

DIGEST_BYTES: Final = 16
SAID_AGAIN_S: Final = 10.0
_throttle: Final = Throttle(SAID_AGAIN_S)
_LENGTH: Final = Layout(">I")
_QUESTION_MAX: Final = 256


class StateWanted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    chain: int
    ts: int


class ResultsWanted(msgspec.Struct, frozen=True, array_like=True, tag=2):
    pass


class StateOffered(msgspec.Struct, frozen=True, array_like=True):
    ts: int
    length: int
    digest: bytes


class Offer(msgspec.Struct, frozen=True):
    """A donor's state."""

    ts: int
    chunks: list[bytes]
    donor: SiteId = NO_SITE  # known to who has asked


class StatusWanted(msgspec.Struct, frozen=True, array_like=True, tag=3):
    pass


Question: TypeAlias = StateWanted | ResultsWanted | StatusWanted
Results: TypeAlias = list[tuple[int, int]]


class Source(Protocol):
    """Who is asked."""

    async def offer(self, wanted: StateWanted) -> Offer | None: ...

    def results(self) -> Results: ...

    def status(self) -> ReplicaStatus: ...


async def serve(stream: BulkStream, source: Source) -> None:
    """Answer one question."""
    question = bytearray()
    async for chunk in stream:
        question += chunk
        if len(question) > _QUESTION_MAX:
            return
    try:
        wanted = msgspec.msgpack.decode(question, type=Question)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    match wanted:
        case ResultsWanted():
            await stream.send(msgspec.msgpack.encode(source.results()))
        case StatusWanted():
            await stream.send(msgspec.msgpack.encode(source.status()))
        case StateWanted():
            offer = await source.offer(wanted)
            if offer is not None:
                await _give(stream, offer)


async def _give(stream: BulkStream, offer: Offer) -> None:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for chunk in offer.chunks:
        digest.update(chunk)
    said = msgspec.msgpack.encode(StateOffered(offer.ts, sum(map(len, offer.chunks)), digest.digest()))
    await stream.send(_LENGTH.pack(len(said)) + said)
    for chunk in offer.chunks:
        await stream.send(chunk)


class Peer(msgspec.Struct, frozen=True):
    """Another replica, and how to be believed there."""

    address: str
    keyring: Keyring | None
    group: int
    boot: int

    async def ask(self, question: Question) -> bytearray | None:
        """Everything it answers; None if the connection broke."""
        host, port = parse_address(self.address).endpoint
        received = bytearray()
        try:
            async with await open_bulk(host, port, self.keyring, group=self.group, boot=self.boot) as stream:
                await stream.send(msgspec.msgpack.encode(question))
                await stream.finish()
                async for chunk in stream:
                    received += chunk
        except BulkError as error:
            log.debug("a peer did not answer", peer=self.address, error=str(error))
            return None
        return received

    async def state(self, wanted: StateWanted) -> Offer | None:
        """None if it has no such state."""
        received = await self.ask(wanted)
        return None if received is None else await asyncio.to_thread(_verified, received, self.address)

    async def status(self) -> ReplicaStatus | None:
        received = await self.ask(StatusWanted())
        try:
            return msgspec.msgpack.decode(received or b"", type=ReplicaStatus)
        except msgspec.MsgspecError:
            return None

    async def results(self) -> Results:
        received = await self.ask(ResultsWanted())
        try:
            return msgspec.msgpack.decode(received or b"", type=Results)
        except msgspec.MsgspecError:
            return []


def _complain(what: str, address: str) -> None:
    """Who fetches a state tries again at once, and for as long as it takes."""
    if (fields := _throttle.admits((what, address))) is not None:
        log.warning(what, peer=address, **fields)


def _verified(received: bytearray, address: str) -> Offer | None:
    """What was offered, if it is what came."""
    if len(received) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(received)
    begin = _LENGTH.size + length
    try:
        offered = msgspec.msgpack.decode(memoryview(received)[_LENGTH.size : begin], type=StateOffered)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        _complain("a state was offered that cannot be read", address)
        return None
    state = bytes(memoryview(received)[begin:])
    if len(state) != offered.length or blake2b(state, digest_size=DIGEST_BYTES).digest() != offered.digest:
        _complain("a state came that is not what was offered", address)
        return None
    return Offer(offered.ts, [state])
