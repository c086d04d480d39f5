"""The quality-of-service ladder: RMP §3.2 (figure 3.2) in the counting of rule R10.

A K-resilient message survives K failures, so K+1 sites hold it. RMP counts token passes instead and
its K is one larger; we count failures because that is the number a user has in mind.
"""

from enum import IntEnum
from typing import Final

import msgspec

from ordering.errors import UnknownQos


class Level(IntEnum):
    """The rungs, weakest first. Each promises all that the rungs below it promise."""

    UNRELIABLE = 0
    UNORDERED = 1
    SOURCE_ORDERED = 2
    TOTALLY_ORDERED = 3
    K_RESILIENT = 4
    MAJORITY = 5
    TOTAL = 6


class Qos(msgspec.Struct, frozen=True, array_like=True):
    """A rung, and K where the rung is K_RESILIENT (zero everywhere else)."""

    level: Level
    k: int = 0

    @property
    def rides_the_ring(self) -> bool:
        """Whether messages of this quality take an ordered sequence number and a slot (R10)."""
        return self.level >= Level.SOURCE_ORDERED


UNRELIABLE: Final = Qos(Level.UNRELIABLE)
UNORDERED: Final = Qos(Level.UNORDERED)
SOURCE_ORDERED: Final = Qos(Level.SOURCE_ORDERED)
TOTALLY_ORDERED: Final = Qos(Level.TOTALLY_ORDERED)
MAJORITY: Final = Qos(Level.MAJORITY)
TOTAL: Final = Qos(Level.TOTAL)


def k_resilient(k: int) -> Qos:
    """Delivered once K+1 sites hold it: it survives K failures."""
    return Qos(Level.K_RESILIENT, k)


def parse_qos(text: str) -> Qos:
    """Read ``majority``, ``total``, ``k=2``, ``source-ordered`` … as typed on a command line."""
    word = text.strip().lower().replace("-", "_")
    if word.startswith("k="):
        digits = word[2:]
        if digits.isdigit():
            return k_resilient(int(digits))
    else:
        for level in Level:
            if level.name.lower() == word and level is not Level.K_RESILIENT:
                return Qos(level)
    names = ", ".join(level.name.lower() for level in Level if level is not Level.K_RESILIENT)
    raise UnknownQos(f"qos: {text!r} is not a quality of service; use one of {names}, or k=N")
