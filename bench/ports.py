"""Ports of this machine for processes that are to be started, killed, and started again."""

import secrets
import socket
from random import Random
from typing import Final

from bench.errors import BenchError

# Below those that the kernel gives away: a process that is down needs its own again.
_PORTS: Final = (20_000, 32_000)
_TRIES: Final = 200


def free_ports(count: int) -> list[int]:
    """Free for UDP and TCP, as far as one can know: whoever gets there first has them, and others say so."""
    found: list[int] = []
    rng = Random(secrets.randbits(64))
    for _ in range(_TRIES):
        port = rng.randrange(*_PORTS)
        if port not in found and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise BenchError(f"there are no {count} free ports between {_PORTS[0]} and {_PORTS[1]}")


def is_free(port: int) -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
