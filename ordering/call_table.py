"""What a member remembers of callers (RMP §4.5), so that a repeated call costs no second place in the order.

RMP keeps the highest delivered number of each non-member in the membership view. Here the numbers only
suppress retransmissions and decide nothing (R12), so each member keeps what it happens to know, for as
long as it has room, and a view stays small: who has forgotten a call forwards it again, the application
sees it twice, and its sessions tell. What the caller has an answer to (``floor``) is forgotten at once.
"""

from ordering.config import Config
from ordering.packets import Answer, Call, NonMemberData, Receipt
from ordering.qos import Level
from ordering.views import NO_SITE, SiteId, View, ViewId, handler_holder

NO_VIEW = ViewId(0, 0)
HELD_BACK_MAX = 64  # packets of one caller


class CallerRecord:
    """One caller, or one member that sends requests."""

    __slots__ = (
        "address",
        "boot",
        "delivered",
        "floor",
        "held_back",
        "last",
        "replies",
        "reply_bytes",
        "site",
        "under_way",
        "view",
    )

    def __init__(self, site: SiteId, boot: int, address: str) -> None:
        self.site = site
        self.boot = boot
        self.address = address
        self.view = NO_VIEW  # the one the caller knows
        self.floor = 1  # what is below has its answer
        # The highest ordered call that this site has forwarded, each after all before it, or that has its
        # final place in the order: a later one may follow (see ``multirpc``).
        self.last = 0
        self.held_back: dict[int, NonMemberData] = {}  # by ``after``: what came ahead of its predecessor
        self.under_way: dict[int, None] = {}  # forwarded here, not delivered yet
        self.delivered: dict[int, Receipt] = {}
        self.replies: dict[int, Answer] = {}
        self.reply_bytes = 0


class CallTable:
    """Bounded in callers, calls of each, and bytes of replies; the least recently heard caller goes first."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.records: dict[tuple[SiteId, int], CallerRecord] = {}
        self.reply_bytes = 0
        self.held_back_bytes = 0

    def hold_back(self, record: CallerRecord, packet: NonMemberData) -> bool:
        """Keep what came ahead of its predecessor, if there is room: networks reorder more than they lose."""
        size = sum(map(len, packet.messages))
        if packet.after in record.held_back:
            return True
        if len(record.held_back) >= HELD_BACK_MAX or self.held_back_bytes + size > self._config.call_bytes:
            return False
        record.held_back[packet.after] = packet
        self.held_back_bytes += size
        return True

    def release(self, record: CallerRecord, after: int) -> NonMemberData:
        packet = record.held_back.pop(after)
        self.held_back_bytes -= sum(map(len, packet.messages))
        return packet

    def record(self, caller: SiteId, boot: int, address: str) -> CallerRecord:
        """The caller's record, now the last to be forgotten."""
        key = (caller, boot)
        records = self.records
        record = records.pop(key, None)
        if record is None:
            if len(records) >= self._config.callers_max:
                forgotten = records.pop(next(iter(records)))
                self._forget_replies(forgotten)
                for after in list(forgotten.held_back):
                    self.release(forgotten, after)
            record = CallerRecord(caller, boot, address)
        records[key] = record
        return record

    def record_of(self, call: Call, latest: CallerRecord | None) -> CallerRecord:
        """The same for a call; ``latest`` is what this has given just before, which most calls share."""
        if latest is not None and latest.site == call.caller and latest.boot == call.boot:
            return latest
        return self.record(call.caller, call.boot, call.address)

    def raise_floor(self, record: CallerRecord, floor: int) -> None:
        if floor <= record.floor:
            return
        record.floor = floor
        for numbers in (record.under_way, record.delivered):
            for number in [number for number in numbers if number < floor]:
                del numbers[number]
        if record.replies:
            for number in [number for number in record.replies if number < floor]:
                self._drop_reply(record, number)

    def note_delivered(self, record: CallerRecord, number: int, ts: int, reached: Level) -> Receipt:
        """The call has been delivered; where it was first is what a repetition is told."""
        record.under_way.pop(number, None)
        if number > record.last and reached >= Level.MAJORITY:
            record.last = number
        delivered = record.delivered
        receipt = delivered.get(number)
        if receipt is None:
            receipt = Receipt(number, ts, reached)
            if number >= record.floor:
                delivered[number] = receipt
                if len(delivered) > self._config.call_messages:
                    del delivered[next(iter(delivered))]
        return receipt

    def keep_reply(self, record: CallerRecord, answer: Answer) -> Answer:
        """Keep the reply to repeat it; of two for one request the first stands."""
        known = record.replies.get(answer.number)
        if known is not None:
            return known
        size = len(answer.payload)
        if answer.number < record.floor or size > self._config.call_bytes:
            return answer
        record.replies[answer.number] = answer
        record.reply_bytes += size
        self.reply_bytes += size
        config = self._config
        while record.reply_bytes > config.call_bytes or len(record.replies) > config.call_messages:
            self._drop_reply(record, next(iter(record.replies)))
        if self.reply_bytes > config.reply_bytes:
            for oldest in [r for r in self.records.values() if r.replies]:
                self._forget_replies(oldest)
                if self.reply_bytes <= config.reply_bytes:
                    break
        return answer

    def erase_above(self, ts: int) -> None:
        """A view change took back places: what had them is not delivered any more."""
        for record in self.records.values():
            for number in [n for n, receipt in record.delivered.items() if receipt.ts > ts]:
                del record.delivered[number]

    def leap(self) -> None:
        """A state covers what this site has not seen delivered: what it forwarded may be in there."""
        for record in self.records.values():
            record.under_way.clear()

    def _forget_replies(self, record: CallerRecord) -> None:
        self.reply_bytes -= record.reply_bytes
        record.reply_bytes = 0
        record.replies.clear()

    def _drop_reply(self, record: CallerRecord, number: int) -> None:
        size = len(record.replies.pop(number).payload)
        record.reply_bytes -= size
        self.reply_bytes -= size


def owed_by(me: SiteId, calls: tuple[Call, ...], view: View | None) -> tuple[int, ...]:
    """Offsets of the requests that ``me`` is to reply to in ``view``."""
    if view is None or me == NO_SITE:
        return ()
    held = {0: False}
    owed: list[int] = []
    for offset, call in enumerate(calls):
        handler = call.handler
        if handler not in held:
            held[handler] = handler_holder(view, handler) == me
        if held[handler]:
            owed.append(offset)
    return tuple(owed)
