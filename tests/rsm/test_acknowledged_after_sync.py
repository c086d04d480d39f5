"""No acknowledgement leaves before its sync: read off the system calls of a real replica."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rsm.client import Client, ClientConfig
from tests.cli.test_replica import SECONDS, first_line, free_addresses, rsm, start
from tests.rsm.machines import Counter
from tests.rsm.test_replica import play

CALLS = 25
# So patient that nothing is asked twice: an answer that is given again needs no sync.
PATIENT = {"rto_min_ms": 10_000, "rto_max_ms": 20_000, "suspect_ms": 30_000, "slow_ms": 40_000}
TRACED = "trace=sendto,sendmsg,sendmmsg,recvfrom,recvmsg,fdatasync,fsync"


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Path, str, "subprocess.Popen[str]"]]:
    """A group of one, so that its own disk is its majority, with its system calls written down."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    (address,) = free_addresses(1)
    assert rsm("init", str(tmp_path / "g"), "--sites", address, "--group", "tested").returncode == 0
    process = start(tmp_path / "g" / "site-1.toml")
    watching = None
    try:
        assert first_line(process).startswith("ready")
        watching = subprocess.Popen(
            [strace, "-f", "-e", TRACED, "-o", str(tmp_path / "trace"), "-p", str(process.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stderr is not None
        assert "attached" in watching.stderr.readline()
        yield tmp_path, address, process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
        if watching is not None:
            watching.communicate(timeout=SECONDS)


def test_when_a_command_is_answered_then_log_and_claim_were_synced_before(
    traced: tuple[Path, str, "subprocess.Popen[str]"],
) -> None:
    directory, address, process = traced
    ports: list[str] = []

    async def main() -> None:
        key = directory / "g" / "group.key"
        config = ClientConfig(group="tested", replicas=(address,), key_file=key, ring=PATIENT)
        client = Client(Counter, config)
        await client.open()
        ports.append(client.address.rpartition(":")[2])
        for number in range(1, CALLS + 1):
            assert await client.proxy.add(1) == number
        client.close()

    play(main())
    process.terminate()
    process.wait(SECONDS)
    to_client = re.compile(rf"^\d+ +send\w+\(.*htons\({ports[0]}\)")
    syncs = replies = 0
    for line in (directory / "trace").read_text().splitlines():
        if re.search(r"fdatasync\(\d+\) += 0|fdatasync resumed>\) += 0", line):
            syncs += 1
        elif to_client.search(line):
            replies += 1
            assert syncs >= 2, f"answer {replies} left after {syncs} syncs since the one before it: {line}"
            syncs = 0
    assert replies >= CALLS
