"""A process that kills itself at a point: URL, what it does, before or behind, which statement.

It prepares a unit, and commits or aborts it if it is told so. ``before COMMIT`` of ``commit`` means: when the
first statement that begins so is about to be executed within the commit.
"""

import asyncio
import os
import signal
import sys

from apps.actions.participant import Unit
from apps.actions.sql import SqlParticipant, _Seat
from tests.apps.actions.bank import bank, debit

UNIT = Unit("transfer", (1 << 64) - 1)
OPERATIONS = (debit("alice", 10).at("a"),)

say = _Seat.say
strikes = ("", "")  # before or behind, and what


def struck(seat: _Seat, statement: str) -> None:
    side, words = strikes
    if side == "before" and statement.startswith(words):
        os.kill(os.getpid(), signal.SIGKILL)
    say(seat, statement)
    if side == "behind" and statement.startswith(words):
        os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, step: str, side: str, words: str) -> None:
    global strikes  # noqa: PLW0603 - of this process
    _Seat.say = struck  # type: ignore[assignment,method-assign]
    participant = SqlParticipant(url, bank)
    await participant.open()
    if step == "prepare":
        strikes = (side, words)
    await participant.prepare(UNIT, OPERATIONS)
    strikes = (side, words)
    await (participant.commit(UNIT, OPERATIONS) if step == "commit" else participant.abort(UNIT))
    raise SystemExit("it did not come there")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
