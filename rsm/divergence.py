"""Who finds itself alone with what it has computed asks the others where that began (R17)."""

from collections.abc import Iterable

from rsm.errors import Diverged
from rsm.transfer import Peer, Results


async def first_difference(own: Results, others: Iterable[Peer]) -> str:
    """In words: from whom, and at which slot."""
    known = dict(own)
    found: list[str] = []
    for peer in others:
        theirs = await peer.results()
        differing = [ts for ts, result in theirs if known.get(ts, result) != result]
        if differing:
            found.append(f"from {peer.address} at slot {min(differing)}")
        elif theirs:
            found.append(f"from {peer.address} at no slot that both remember")
    return "; ".join(found) or "no other replica could be asked"


def explained(error: Diverged, said: str, machine: str) -> Diverged:
    return Diverged(
        f"{error}; the first result that differs {said}. A command of {machine} depends on something else"
        " than the state, its arguments and its context",
        error.checkpoint,
        alone=error.alone,
    )
