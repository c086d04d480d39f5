"""How many voters are to hold a command before its answer is given (R10, ``docs/guarantees.md``).

::

    await counter.with_options(qos="all").add(1)    # "k=2": it survives two failures; "majority": the default

A result comes from applied state, and replicas apply at majority: nothing is answered below that, so
"ordered" and a small K ask for less than they get. Above it only the answer waits, and neither the group nor
any other call. What the ring cannot give because voters are out of it is not waited for: then the answer
tells the level that was reached.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from ordering.effects import HoldersKnown
from ordering.errors import SubmitError
from ordering.events import HoldersRequested
from rsm.errors import InvalidCall

ENOUGH: Final = 1  # any majority is that many
ALL: Final = 0
_LEVELS: Final = {"ordered": ENOUGH, "majority": ENOUGH, "all": ALL}


def voters_of(qos: str) -> int:
    """How many voters a level asks for; 0 for all there are."""
    known = _LEVELS.get(qos)
    if known is not None:
        return known
    word, _, digits = qos.partition("=")
    if word == "k" and digits.isascii() and digits.isdecimal():
        return int(digits) + 1
    raise InvalidCall(f'qos: {qos!r} is no level; use "ordered", "k=N", "majority" or "all"')


class Held(NamedTuple):
    """So many of all voters are known to hold a slot; at least, and at some time."""

    holders: int
    voters: int

    def is_enough(self, wanted: int) -> bool:
        return self.holders >= (wanted or self.voters)

    @property
    def qos(self) -> str:
        if self.holders >= self.voters:
            return "all"
        return f"k={self.holders - 1}" if self.holders > self.voters // 2 + 1 else "majority"


class Holders:
    """A replica's questions to its engine. ``ask`` may refuse (``SubmitError``)."""

    def __init__(self, ask: Callable[[HoldersRequested], None], loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop
        self._last = 0
        self._waiting: dict[int, asyncio.Future[Held | None]] = {}

    async def of(self, ts: int, voters: int) -> Held | None:
        """None: a majority holds it, and more could not be found out."""
        self._last += 1
        number = self._last
        future: asyncio.Future[Held | None] = self._loop.create_future()
        self._waiting[number] = future
        try:
            self._ask(HoldersRequested(number, ts, voters))
            return await future
        except SubmitError:
            return None
        finally:
            del self._waiting[number]

    def known(self, notice: HoldersKnown) -> None:
        future = self._waiting.get(notice.number)
        if future is not None and not future.done():
            future.set_result(Held(notice.holders, notice.voters))

    def interrupted(self) -> None:
        """The membership is over, and with it what its engine was asked."""
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
