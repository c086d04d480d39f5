"""Group names and where they live (RMP §3.1).

A name is hashed to a multicast address and a port, so that processes which share only the name
find each other. Collisions are harmless: every packet carries the group's 64-bit id and its chain.
(Two names with the same id cannot be told apart by it: one process refuses to open both, see ``groups``.)
The port's high bit is set, away from the statically assigned ones. RMP leaves the hash open; ours
is SHA-256, and the address lies in 239.0.0.0/8 (administratively scoped: it does not leave the
organisation), whose 24 free bits are what RMP's mapping uses.
"""

from hashlib import sha256
from typing import NamedTuple


class GroupAddress(NamedTuple):
    address: str
    port: int


def group_id(name: str) -> int:
    """64 bits that stand for the group in every packet."""
    return int.from_bytes(sha256(b"rsm group " + name.encode()).digest()[:8], "big")


def group_address(name: str) -> GroupAddress:
    """The multicast address and port of a group name."""
    digest = sha256(b"rsm address " + name.encode()).digest()
    port = 0x8000 | (int.from_bytes(digest[3:5], "big") & 0x7FFF)
    return GroupAddress(f"239.{digest[0]}.{digest[1]}.{digest[2]}", port)


def chain_id(group: int, founders: tuple[tuple[int, int], ...], parent: int) -> int:
    """A chain's id from its founders' (site, boot) pairs: 128 random bits each, so it is unique.

    ``parent`` is the chain a loosened quorum forks from, 0 at birth (R9).
    """
    digest = sha256(b"rsm chain")
    digest.update(f"{group}:{parent}".encode())
    for site, boot in sorted(founders):
        digest.update(f":{site}.{boot}".encode())
    return int.from_bytes(digest.digest()[:8], "big")
