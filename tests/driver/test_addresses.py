"""What addresses say, and how many datagrams a packet costs."""

import asyncio
import logging
import socket

import pytest

from ordering.errors import ConfigurationError
from ordering.transports.addresses import Address, Endpoint, default_packet_bytes, parse_address
from ordering.transports.multicast import MulticastSettings, group_sockaddr
from ordering.transports.routes import ROUTES_MAX, Routes

SHARED = Endpoint("239.1.2.3", 7400)
SHARED_AT = ("239.1.2.3", 7400)


def routes(family: socket.AddressFamily = socket.AF_INET) -> Routes:
    return Routes(family, SHARED, SHARED_AT)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7401", Address(Endpoint("127.0.0.1", 7401))),
        ("[::1]:7401", Address(Endpoint("::1", 7401))),
        ("[fe80::1%eth0]:7401", Address(Endpoint("fe80::1%eth0", 7401))),
        ("node-1.example:7401", Address(Endpoint("node-1.example", 7401))),
        ("10.0.0.5:1/239.1.2.3:7400", Address(Endpoint("10.0.0.5", 1), SHARED)),
        ("[fd00::5]:1/[ff05::77]:2", Address(Endpoint("fd00::5", 1), Endpoint("ff05::77", 2))),
    ],
)
def test_when_an_address_is_read_and_written_then_it_is_the_same(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:²", "::1:7", "[]:1", "a:1/", "a:1/b"]
)
def test_when_an_address_cannot_be_read_then_the_error_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write"):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "size"),
    [
        ("127.0.0.1:1", 60_000),
        ("127.8.0.1:1", 60_000),
        ("[::1]:1", 60_000),
        ("localhost:1", 60_000),
        ("10.0.0.1:1", 1_400),
        ("[fd00::1]:1", 1_400),
        ("node-1:1", 1_400),
    ],
)
def test_when_packets_stay_on_the_machine_then_they_may_be_large(address: str, size: int) -> None:
    assert default_packet_bytes(address) == size


@pytest.mark.parametrize(
    ("to", "datagrams"),
    [
        (("10.0.0.1:1", "10.0.0.2:1"), [("10.0.0.1", 1), ("10.0.0.2", 1)]),
        (("10.0.0.1:1/239.1.2.3:7400", "10.0.0.2:1"), [("10.0.0.2", 1), ("10.0.0.1", 1)]),
        (("10.0.0.1:1/239.1.2.3:7400", "10.0.0.2:1/239.1.2.3:7400"), [SHARED_AT]),
        (
            ("10.0.0.1:1/239.1.2.3:7400", "10.0.0.2:1/239.1.2.3:7400", "10.0.0.3:1"),
            [SHARED_AT, ("10.0.0.3", 1)],
        ),
        (
            ("10.0.0.1:1/239.9.9.9:7400", "10.0.0.2:1/239.9.9.9:7400"),
            [("10.0.0.1", 1), ("10.0.0.2", 1)],
        ),
    ],
)
def test_when_members_share_a_multicast_group_then_they_cost_one_datagram(
    to: tuple[str, ...], datagrams: list[tuple[str, int]]
) -> None:
    assert list(routes().find(to).sockaddrs) == datagrams


def test_when_an_address_leads_nowhere_then_it_is_counted_and_the_others_are_reached() -> None:
    known = routes()
    for _ in range(2):
        assert known.find(("nonsense", "[::1]:1", "127.0.0.1:1")).sockaddrs == (("127.0.0.1", 1),)
    assert known.drops == {"no address": 2, "no host": 2}


def test_when_a_name_is_looked_up_then_packets_go_there_once_it_is_known() -> None:
    async def main() -> None:
        known = routes()
        assert known.find(("localhost:7",)).sockaddrs == ()
        async with asyncio.timeout(30):
            while not known.find(("localhost:7",)).sockaddrs:
                await asyncio.sleep(0)
        assert known.find(("localhost:7",)).sockaddrs == (("127.0.0.1", 7),)
        known.close()

    asyncio.run(main())


def test_when_packets_name_ever_new_addresses_then_memory_stays_bounded() -> None:
    known = routes()
    for port in range(1, 3 * ROUTES_MAX):
        known.find((f"127.0.0.1:{port}",))
    assert len(known._known) <= ROUTES_MAX


def test_when_a_datagram_exceeds_the_interface_then_it_is_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = routes()
    route = known.find(("127.0.0.1:1",))
    assert route.whole_bytes > 60_000
    with caplog.at_level(logging.WARNING):
        known.note_fragments(70_000, route)
        known.note_fragments(70_000, route)
    assert known.fragmented == 2
    assert caplog.text.count("packet_bytes") == 2  # the setting, and the helper's name


@pytest.mark.parametrize(
    ("options", "family"),
    [
        ({"group": "10.0.0.1:7400"}, socket.AF_INET),
        ({"group": "239.1.2.3:0"}, socket.AF_INET),
        ({"group": "[ff05::1]:7400"}, socket.AF_INET),
        ({"group": "239.1.2.3:7400"}, socket.AF_INET6),
        ({"group": "[ff05::1]:7400", "interface": "nowhere0"}, socket.AF_INET6),
    ],
)
def test_when_multicast_settings_make_no_sense_then_the_error_names_the_field(
    options: dict[str, str], family: socket.AddressFamily
) -> None:
    with pytest.raises(ConfigurationError, match=r"^multicast\.(group|interface): .*; "):
        group_sockaddr(MulticastSettings(**options), family)  # type: ignore[arg-type]
