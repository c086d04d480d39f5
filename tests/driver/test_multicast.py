"""IP multicast, inside a network namespace of the test's own: it reaches nobody else."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordering import Config
from ordering.driver import Driver, run
from ordering.errors import ConfigurationError
from ordering.transports.addresses import default_packet_bytes
from ordering.transports.multicast import MulticastSettings
from tests.driver.replica import House, all_applied, submit_all

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "127.0.0.1:0": MulticastSettings(group="239.1.2.3:7400", interface="lo"),
    "[fd00::1]:0": MulticastSettings(group="[ff05::7400]:7400", interface="rsm0"),
}
# Linux has no IPv6 multicast on its loopback interface.
SETTING_UP = (
    "link set lo up",
    "link set lo multicast on",
    "route add 239.0.0.0/8 dev lo",
    "link add rsm0 type veth peer name rsm1",
    "link set rsm0 up",
    "link set rsm1 up",
    "addr add fd00::1/64 dev rsm0 nodad",
)


@pytest.fixture
def namespace() -> Iterator[str]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and the ip command")
    name = f"rsm-driver-{os.getpid()}-{time.monotonic_ns()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
    try:
        for command in SETTING_UP:
            subprocess.run(["ip", "-n", name, *command.split()], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def run_inside(namespace: str, *arguments: str) -> None:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "tests.driver.test_multicast"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("bind", sorted(GROUPS))
def test_when_members_share_a_multicast_group_then_one_datagram_serves_them(
    namespace: str, bind: str
) -> None:
    run_inside(namespace, bind)


def test_when_multicast_leads_nowhere_then_the_driver_does_not_open(namespace: str) -> None:
    run_inside(namespace, "nowhere")


async def nowhere() -> None:
    settings = MulticastSettings(group="[ff05::7400]:7400", interface="lo")
    with pytest.raises(ConfigurationError, match="multicast"):
        await Driver.open(bind="[::1]:0", insecure=True, multicast=settings)


async def body(bind: str) -> None:
    """Three that share the group and one that does not: whatever goes to all costs two datagrams."""
    async with House() as house:
        settings = GROUPS[bind]
        for multicast in (settings, settings, settings, None):
            driver = await Driver.open(bind=bind, insecure=True, multicast=multicast)
            house.drivers.append(driver)
            assert driver.address.endswith(f"/{settings.group}") is (multicast is not None)
        founders = tuple(driver.address for driver in house.drivers)
        config = Config(
            group="orders", founders=founders, packet_bytes=min(map(default_packet_bytes, founders))
        )
        replicas = [house.join(driver, config) for driver in house.drivers]
        for replica in replicas:
            await replica.until(lambda r: r.view is not None)
        before = house.drivers[0].stats()
        for number in range(500):
            await replicas[0].group.submit_when_free((f"message {number}".encode(),))
        await all_applied(replicas, 500)
        after = house.drivers[0].stats()
        own = after.own_multicasts_heard - before.own_multicasts_heard
        assert own > 10, own  # messages that wait for the window share packets
        sent = after.datagrams_out - before.datagrams_out
        # Some of them were sent before; the rest goes to one site only.
        assert own * 2 - 10 <= sent <= own * 2.5, (own, sent)
        await asyncio.gather(*(submit_all(r, f"site {n}", 1_000) for n, r in enumerate(replicas)))
        await all_applied(replicas, 4_500)
        for driver in house.drivers:
            stats = driver.stats()
            assert stats.wire_drops == {"unreadable": 0}
            assert stats.fragmented == 0


if __name__ == "__main__":
    for on_uvloop in (True, False):
        run(nowhere() if sys.argv[1] == "nowhere" else body(sys.argv[1]), uvloop=on_uvloop)
