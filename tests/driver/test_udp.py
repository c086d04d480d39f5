"""The socket: what fails to be sent is counted, and what waits is bounded."""

import asyncio
import logging
import socket
from typing import Any

import pytest

from ordering.codec import BOOT_AT, encode
from ordering.packets import Confirm, Head
from ordering.transports import udp
from ordering.transports.udp import UdpSocket, bound_socket
from ordering.twins import BOOT_BYTES
from ordering.views import SiteId


def here() -> socket.socket:
    return bound_socket(socket.AF_INET, ("127.0.0.1", 0))


def test_when_a_datagram_is_too_large_or_its_place_impossible_then_it_is_counted() -> None:
    async def main() -> None:
        sender = UdpSocket(here())
        sender.start(asyncio.get_running_loop(), lambda: None)
        sender.send(bytes(70_000), ("127.0.0.1", 9))
        sender.send(b"x", ("255.255.255.255", 9))
        sender.send(b"x", ("127.0.0.1", 70_000))
        sender.close()
        assert sender.errors == {"EMSGSIZE": 1, "EACCES": 1, "OverflowError": 1}
        assert sender.datagrams_out == 0

    asyncio.run(main())


def test_when_nobody_listens_then_sending_and_reading_go_on() -> None:
    async def main() -> None:
        with here() as gone:
            nowhere = gone.getsockname()
        sender = UdpSocket(here())
        sender.start(asyncio.get_running_loop(), lambda: None)
        for _ in range(3):
            sender.send(b"x", nowhere)
            assert list(sender.drain()) == []
        sender.close()
        assert sender.datagrams_out == 3

    asyncio.run(main())


class Clogged(socket.socket):
    """Takes so many datagrams, then none until it is opened up."""

    room = 0

    def sendto(self, *_: object) -> int:
        if self.room <= 0:
            raise BlockingIOError
        self.room -= 1
        return 1


def test_when_the_socket_is_full_then_datagrams_wait_in_order_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp, "QUEUE_BYTES", 1_000)

    async def main() -> None:
        clogged = Clogged(socket.AF_INET, socket.SOCK_DGRAM)
        clogged.bind(("127.0.0.1", 0))
        sender = UdpSocket(clogged)
        sender.start(asyncio.get_running_loop(), lambda: None)
        for _ in range(15):
            sender.send(bytes(100), ("127.0.0.1", 9))
        assert sender.errors == {"queue full": 5}
        clogged.room = 3
        while sender.datagrams_out < 3:
            await asyncio.sleep(0)
        for _ in range(4):
            sender.send(bytes(100), ("127.0.0.1", 9))
        assert sender.errors == {"queue full": 6}
        assert sender.datagrams_out == 3
        clogged.room = 100
        while sender.datagrams_out < 13:
            await asyncio.sleep(0)
        sender.send(bytes(100), ("127.0.0.1", 9))
        assert sender.datagrams_out == 14
        sender.close()

    asyncio.run(main())


def test_when_a_datagram_waits_then_what_is_written_over_it_does_not_matter() -> None:
    async def main() -> None:
        sent: list[bytes] = []

        class Keeping(Clogged):
            def sendto(self, *arguments: Any) -> int:
                super().sendto(*arguments)
                sent.append(bytes(arguments[0]))
                return 1

        clogged = Keeping(socket.AF_INET, socket.SOCK_DGRAM)
        clogged.bind(("127.0.0.1", 0))
        sender = UdpSocket(clogged)
        sender.start(asyncio.get_running_loop(), lambda: None)
        room = bytearray(b"first")
        sender.send(room, ("127.0.0.1", 9))
        room[:] = b"other"
        clogged.room = 1
        while not sent:
            await asyncio.sleep(0)
        sender.close()
        assert sent == [b"first"]

    asyncio.run(asyncio.wait_for(main(), 10))


def test_when_more_has_arrived_than_a_drain_takes_then_the_rest_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp, "DRAIN_DATAGRAMS", 4)
    monkeypatch.setattr(udp, "DRAIN_BYTES", 2_500)
    receiver = UdpSocket(here())
    with here() as sender:
        for size in [10] * 6 + [1_000] * 4:
            sender.sendto(bytes(size), receiver.sock.getsockname())
    drains = [[len(datagram) for datagram in receiver.drain()] for _ in range(4)]
    receiver.close()
    assert drains == [[10] * 4, [10, 10, 1_000, 1_000], [1_000, 1_000], []]
    assert (receiver.datagrams_in, receiver.bytes_in) == (10, 4_060)


def test_when_the_receive_buffer_overflows_then_the_kernels_drops_are_told() -> None:
    receiver = UdpSocket(here(), buffer_bytes=4_096)
    with here() as sender:
        for _ in range(100):
            sender.sendto(bytes(1_000), receiver.sock.getsockname())
    stats = receiver.stats()
    received = len(list(receiver.drain()))
    receiver.close()
    if stats.dropped_by_kernel is not None:
        assert stats.dropped_by_kernel == 100 - received
    assert received < 100


def test_when_the_kernel_caps_a_buffer_then_the_log_says_what_to_raise(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "_SO_RCVBUFFORCE", -1)
    monkeypatch.setattr(udp, "BUFFER_BYTES_ENOUGH", 1 << 30)
    with caplog.at_level(logging.WARNING):
        UdpSocket(here(), buffer_bytes=1 << 30).close()
    assert "sysctl -w net.core.rmem_max=1073741824" in caplog.text


def test_when_a_packet_is_encoded_then_its_boot_lies_where_the_driver_looks() -> None:
    boot = 0x0123456789ABCDEF0123456789ABCDEF
    datagram = encode(Confirm(Head(1, 2, SiteId(3), boot, 4, 5, 6, 7, 8)), 9)
    assert int.from_bytes(datagram[BOOT_AT : BOOT_AT + BOOT_BYTES], "big") == boot
