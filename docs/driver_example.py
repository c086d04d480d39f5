"""Three members on this machine that keep the same list. Run it: python docs/driver_example.py"""

import asyncio
import logging

from ordering import Config, Deliver, InstallView, LevelReached
from ordering.driver import Driver, Notice, run


class Journal:
    """Applies what a majority holds, in order. Messages below that level wait in ``log``."""

    def __init__(self, expected: int) -> None:
        self.log: list[tuple[int, tuple[bytes, ...]]] = []
        self.lines: list[str] = []
        self.expected = expected
        self.member, self.complete = asyncio.Event(), asyncio.Event()

    def listen(self, notices: list[Notice]) -> None:
        for notice in notices:
            match notice:
                case InstallView():
                    self.member.set()
                case Deliver(_, deliveries):
                    self.log += [(delivery.first_ts, delivery.messages) for delivery in deliveries]
                case LevelReached(majority, _):
                    while self.log and self.log[0][0] <= majority:
                        self.lines += [message.decode() for message in self.log.pop(0)[1]]
        if len(self.lines) == self.expected:
            self.complete.set()


async def main() -> list[list[str]]:
    drivers = [await Driver.open(bind="127.0.0.1:0", insecure=True) for _ in range(3)]
    config = Config(group="journal", founders=tuple(driver.address for driver in drivers))
    journals = [Journal(expected=300) for _ in drivers]
    groups = [driver.join(config, journal.listen) for driver, journal in zip(drivers, journals, strict=True)]
    await asyncio.gather(*(journal.member.wait() for journal in journals))
    for number in range(100):
        for name, group in zip("abc", groups, strict=True):
            await group.submit_when_free((f"{name} writes line {number}".encode(),))
    await asyncio.gather(*(journal.complete.wait() for journal in journals))
    for driver in drivers:
        driver.close()
    return [journal.lines for journal in journals]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    first, *others = run(main())
    print(f"{len(first)} lines, the same at all three: {all(lines == first for lines in others)}")
