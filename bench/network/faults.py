"""Ways to break a bridge, and to mend it: rules that drop frames, and links that are pulled.

Rules stop IP and nothing else. Were address resolution lost as well, a link that is deaf in one direction
would soon be dead in both, and a lossy one would stand still for whole seconds: another fault.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable

from bench.errors import BenchError, NotAvailable
from bench.namespaces import Bridge

_NFT_SECONDS = 10.0
_TABLE = "bridge faults"


def require_nft() -> None:
    if shutil.which("nft") is None:
        raise NotAvailable("lossy and one-way links need nft; on Debian: apt-get install nftables")


class Faults:
    """What is broken on one bridge. Everything goes when its namespace goes."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.dropped = 0  # frames, by rules that were taken away

    def block(self, pairs: Iterable[tuple[int, int]]) -> None:
        """From the first of each pair nothing reaches the second; all at once."""
        self._rules([f'iifname "port{source}" oifname "port{target}"' for source, target in pairs])

    def lose(self, percent: int) -> None:
        """Of all that passes the bridge."""
        self._rules([f"numgen random mod 100 < {percent}"])

    def pull(self, site: int) -> None:
        self.bridge.cut(site)

    def plug(self, site: int) -> None:
        self.bridge.mend(site)

    def mend_rules(self) -> None:
        self.dropped += self._count()
        self._nft("-f", "-", script=f"delete table {_TABLE}\n")

    def _rules(self, matches: list[str]) -> None:
        rules = "".join(f"    meta protocol ip {match} counter drop\n" for match in matches)
        chain = f"  chain forward {{\n    type filter hook forward priority 0; policy accept;\n{rules}  }}\n"
        self._nft("-f", "-", script=f"table {_TABLE} {{\n{chain}}}\n")

    def _count(self) -> int:
        listed = json.loads(self._nft("-j", "list", "table", *_TABLE.split()))
        return sum(
            part["counter"]["packets"]
            for entry in listed["nftables"]
            for part in entry.get("rule", {}).get("expr", [])
            if "counter" in part
        )

    def _nft(self, *words: str, script: str = "") -> str:
        done = subprocess.run(
            self.bridge.switch.command("nft", *words),
            input=script, capture_output=True, text=True, timeout=_NFT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise BenchError(f"nft {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout
