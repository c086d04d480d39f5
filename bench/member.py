"""One site of a measured group: a driver, a membership, and an application that hashes what it is given."""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from bench.errors import BenchError
from bench.wire import Content
from bench.workers import Link
from ordering import Config, Deliver, EndMembership, InstallView, Retract, View
from ordering.driver import Driver, Group, Notice, Stopped
from ordering.qos import Level, Qos, parse_qos
from ordering.sealing import Keyring
from ordering.transports.multicast import MulticastSettings
from ordering.views import SiteId

MULTICAST_GROUP = "239.77.4.1:7460"
GROUP = "bench"
_BIRTH_SECONDS = 20.0
BENCH_KEY = bytes(range(32))  # a benchmark keeps no secrets


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Where the sites are, and how packets travel between them."""

    hosts: tuple[str, ...]
    multicast: bool = False
    interface: str = "lo"
    sealed: bool = False

    @classmethod
    def loopback(cls, sites: int, *, multicast: bool, sealed: bool) -> "Network":
        return cls(hosts=("127.0.0.1",) * sites, multicast=multicast, sealed=sealed)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's settings a benchmark may change; None leaves the default."""

    window_bytes: int | None = None
    packet_bytes: int = 60_000
    discipline: str = "rotating"

    def config(self, founders: tuple[str, ...]) -> Config:
        chosen: dict[str, Any] = {"packet_bytes": self.packet_bytes, "discipline": self.discipline}
        if self.window_bytes is not None:
            chosen["window_bytes"] = self.window_bytes
        return Config(group=GROUP, founders=founders, **chosen)


def forget_settings() -> None:
    """A replica and a client read ``RSM_…`` variables; here they are what the plan says."""
    for name in [name for name in os.environ if name.startswith("RSM_")]:
        del os.environ[name]


async def heard(link: Link) -> Any:
    """The next word on the link, while the loop goes on."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(link.fileno())
    return link.hear()


class Member:
    """Joined and in a ring of all sites once ``open`` returns. ``on_deliver`` may submit."""

    def __init__(
        self, link: Link, me: int, network: Network, settings: Settings, host: type[Driver] = Driver
    ) -> None:
        self.link = link
        self.me = me
        self._host = host
        self.network = network
        self.settings = settings
        self.views: list[tuple[int, View]] = []  # (when, what)
        self.on_deliver: Callable[[Deliver], None] | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self.driver: Driver
        self.group: Group

    async def open(self) -> None:
        network = self.network
        multicast = None
        if network.multicast:
            multicast = MulticastSettings(group=MULTICAST_GROUP, interface=network.interface)
        logging.getLogger("ordering").setLevel(logging.ERROR)  # that it is insecure is known here
        self.driver = await self._host.open(
            bind=f"{network.hosts[self.me]}:0",
            keyring=Keyring((BENCH_KEY,)) if network.sealed else None,
            insecure=not network.sealed,
            multicast=multicast,
        )
        self.link.say(self.driver.address)
        founders = tuple(await heard(self.link))
        self.group = self.driver.join(self.settings.config(founders), self._listen)
        try:
            async with asyncio.timeout(_BIRTH_SECONDS):
                while not self.views or len(self.views[-1][1].ring) < len(founders):
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            raise BenchError(f"no ring of {len(founders)} came about in {_BIRTH_SECONDS:.0f} s") from None
        self.link.say("member")

    @property
    def site(self) -> SiteId:
        return self.group.member.site

    def _listen(self, notices: list[Notice]) -> None:
        for notice in notices:
            if isinstance(notice, Deliver):
                if self.on_deliver is not None:
                    self.on_deliver(notice)
            elif isinstance(notice, InstallView):
                self.views.append((time.monotonic_ns(), notice.view))
                self._changed.set()
            elif isinstance(notice, EndMembership | Stopped | Retract):
                self.fail(
                    BenchError(f"the group went on without this site, or took something back: {notice}")
                )

    def fail(self, error: BenchError) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    async def first_of(self, finished: asyncio.Future[Any], seconds: float, what: str) -> None:
        """Wait until finished; failures and too much patience raise."""
        done, _ = await asyncio.wait(
            (finished, self.failure), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise BenchError(f"{what} within {seconds:.0f} s; {self._standing()}")
        for future in done:
            future.result()

    def _standing(self) -> str:
        stats = self.driver.stats()
        dropped = sum(each.dropped_by_kernel or 0 for each in stats.sockets)
        group = stats.groups[0] if stats.groups else None
        where = f"this site is {group.state}, view {group.view}" if group is not None else "this site is out"
        return f"{where}; {dropped} datagrams dropped by the kernel"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the applications do."""

    size: int = 1024
    senders: int = 1
    seconds: float = 3.0
    qos: str = "majority"
    batch: int = 1  # messages in one call of submit
    one_outstanding: bool = False


FINAL = b"final"
_LATENCIES_MAX = 200_000


class Application:
    """Submits as fast as the window opens, or one message at a time; hashes everything delivered."""

    def __init__(self, member: Member, load: Load, messages: list[list[bytes]]) -> None:
        self.member = member
        self.load = load
        self.qos: Qos = parse_qos(load.qos)
        self.messages = [tuple(batch) for batch in messages]
        self.sending = member.me < load.senders
        self.in_order = self.qos.level >= Level.TOTALLY_ORDERED
        self.content: dict[int, Content] = {}
        self.took: list[int] = []
        self.count = 0
        self.started_ns = self.last_ns = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._finals = 0
        self._next = 0
        self._ended = False
        self._asked: deque[tuple[int, int]] = deque()  # (last number of a submission, when)
        self._until_ns = 0
        # From now on: another site may be told to go before this one.
        member.on_deliver = self.on_deliver

    async def run(self) -> None:
        member = self.member
        self.started_ns = self.last_ns = time.monotonic_ns()
        self._until_ns = self.started_ns + int(self.load.seconds * 1e9)
        sender = None
        if self.sending:
            if self.load.one_outstanding:
                self._submit_one()
            else:
                sender = asyncio.ensure_future(self._send())
                sender.add_done_callback(self._on_sent)
        await member.first_of(self.finished, self.load.seconds + 15.0, "not everything was delivered")

    def _on_sent(self, sender: asyncio.Future[None]) -> None:
        if not sender.cancelled() and (error := sender.exception()) is not None:
            self.member.fail(BenchError(f"a message was refused: {error}"))

    async def _send(self) -> None:
        """The window is the only brake; between two submissions the sockets have their turn."""
        submit, batches, qos = self.member.group.submit_when_free, self.messages, self.qos
        number = 0
        while (now := time.monotonic_ns()) < self._until_ns:
            accepted = await submit(batches[number % len(batches)], qos)
            number += 1
            self._asked.append((accepted.first_seq + accepted.count - 1, now))
            await asyncio.sleep(0)
        await submit((FINAL,), qos)

    def _submit_one(self) -> None:
        now = time.monotonic_ns()
        if now >= self._until_ns:
            self._ended = True
            self.member.group.submit((FINAL,), self.qos)
            return
        accepted = self.member.group.submit(self.messages[self._next % len(self.messages)][:1], self.qos)
        self._next += 1
        self._asked.append((accepted.first_seq, now))

    def on_deliver(self, deliver: Deliver) -> None:
        mine = False
        for delivery in deliver.deliveries:
            messages = delivery.messages
            source = 0 if self.in_order else delivery.source
            content = self.content.get(source) or self.content.setdefault(source, Content())
            content.add(messages)
            self.count += len(messages)
            if messages[-1] == FINAL:
                self._finals += 1
            if self._asked and delivery.source == self.member.site:
                mine = self._note_latency(delivery.first_seq + len(messages) - 1) or mine
        self.last_ns = time.monotonic_ns()
        if mine and self.load.one_outstanding and not self._ended:
            self._submit_one()
        if self._finals == self.load.senders and not self.finished.done():
            self.finished.set_result(None)

    def _note_latency(self, last_seq: int) -> bool:
        now = time.monotonic_ns()
        noted = False
        while self._asked and self._asked[0][0] <= last_seq:
            asked = self._asked.popleft()[1]
            noted = True
            if len(self.took) < _LATENCIES_MAX:
                self.took.append(now - asked)
        return noted

    @property
    def digest(self) -> str:
        """One for all where there is one order; else one for each source."""
        return "+".join(self.content[source].digest for source in sorted(self.content))
