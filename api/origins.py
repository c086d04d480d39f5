"""May a page that a person has open somewhere ask this gateway?

Without tokens, whoever reaches the port may do everything, and a browser on this machine reaches it for every
page that it shows. Pages of others are known by their ``Origin``. One whose name was made to lead here says
nothing wrong of its origin, but its ``Host`` is none of ours. Programs send no origin, and a host they have
reached us by. Where tokens are needed a page would have to have one.
"""

from collections.abc import Mapping
from typing import Final

from api.problems import Problem
from api.settings import GatewaySettings
from ordering.transports.addresses import is_loopback

_HOSTS_MAX: Final = 64  # that are remembered: there is a name for each port


class Origins:
    def __init__(self, settings: GatewaySettings) -> None:
        self._is_open = settings.tokens is None
        self._is_local = is_loopback(settings.endpoint[0])
        self._names = frozenset(settings.hosts)
        self._ours: set[bytes] = set()  # hosts that were looked at

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises for a page of somebody else."""
        if not self._is_open:
            return
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if self._is_local and host is not None and host not in self._ours:
            self._look_at(host)
        if origin is not None and origin.partition(b"://")[2] != host:
            shown = origin.decode(errors="backslashreplace")
            raise Problem("foreign_page", f"Origin: pages of {shown} may not ask here")

    def _look_at(self, host: bytes) -> None:
        text = host.decode(errors="backslashreplace")
        name, _, port = text.rpartition(":")
        if not name or not port.isdigit():
            name = text
        if name not in self._names and not is_loopback(name.strip("[]")):
            raise Problem(
                "foreign_page",
                f"Host: {text!r} is no name of this machine; name it in hosts, or give the gateway tokens",
            )
        if len(self._ours) >= _HOSTS_MAX:
            self._ours.clear()
        self._ours.add(host)
