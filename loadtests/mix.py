"""Which users there are, and how many of each: ``read=60,write=40``."""

from collections.abc import Collection
from typing import Final

KINDS: Final = ("read", "write", "cas", "txn", "watch")


def weights_of(text: str, known: Collection[str] = KINDS) -> dict[str, int]:
    """The weights; whatever is not named does not come."""
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is no kind of user; there are {', '.join(known)}")
        if name in weights:
            raise ValueError(f"{name} stands there twice")
        if not equals or not number.isascii() or not number.isdigit():
            raise ValueError(f"{part.strip()!r}: write {name}=60, a whole number")
        weights[name] = int(number)
    if not any(weights.values()):
        raise ValueError("somebody must come: all weights are 0")
    return weights
