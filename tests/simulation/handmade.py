"""Processes and effects made by hand, to show to checkers."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ordering.call_table import CallTable
from ordering.config import MS, Config
from ordering.effects import (
    Deliver,
    Delivery,
    Effect,
    InstallView,
    LevelReached,
)
from ordering.packets import Descent, Head, Order, Run
from ordering.qos import (
    MAJORITY,
    Level,
    Qos,
)
from ordering.simulator.checkers.base import Checker
from ordering.simulator.disk import Disk
from ordering.views import Member, SiteId, View, ViewId

CHAIN = 77
CONFIG = Config(group="g", founders=("s1", "s2", "s3"))
SETTLED = 10 * CONFIG.detection_ms * MS


# -- a world made by hand ----------------------------------------------------------------------------


def member(number: int) -> Member:
    return Member(SiteId(number), 1000 + number, f"s{number}")


def view(
    epoch: int = 1,
    revision: int = 0,
    members: Iterable[int] = (1, 2, 3),
    voters: Iterable[int] | None = None,
    ring: Iterable[int] | None = None,
) -> View:
    sites = tuple(SiteId(number) for number in members)
    electorate = sites if voters is None else tuple(SiteId(number) for number in voters)
    order = sites if ring is None else tuple(SiteId(number) for number in ring)
    return View(ViewId(epoch, revision), tuple(member(site) for site in sites), electorate, order)


def install(ts: int = 1, shown: View | None = None, chain: int = CHAIN) -> InstallView:
    return InstallView(ts, chain, shown if shown is not None else view())


def message(
    ts: int, source: int, seq: int, qos: Qos = MAJORITY, *, text: str = "", reached: Level | None = None
) -> Delivery:
    content = (text or f"{source}-{seq}").encode()
    level = reached if reached is not None else qos.level
    return Delivery(ts, SiteId(source), seq, qos, level, (content,))


def deliver(*deliveries: Delivery, epoch: int = 1, revision: int = 0) -> Deliver:
    return Deliver(ViewId(epoch, revision), deliveries)


def order(ts: int, *, epoch: int = 1, orderer: int = 1, runs: tuple[Run, ...] = (), to: int = 2) -> Order:
    return Order(epoch, ts, SiteId(orderer), SiteId(to), runs)


def stub(number: int) -> Any:
    """A process with as much of an engine as checkers look at."""
    queue = SimpleNamespace(
        frontier=0, base=0, started_at=0, blocks={}, tail=None, views=[(1, view())], sources={},
        ordered_bytes=0,
    )  # fmt: skip
    site = SimpleNamespace(
        me=SiteId(number), chain=CHAIN, descent=Descent(CHAIN, 0), epoch=1, fenced=False, outside=False,
        config=CONFIG, view=view(), queue=queue, holds_token=lambda: False, counters={},
        assemblies=SimpleNamespace(bytes=0, lanes={}), unnamed=False,
    )  # fmt: skip
    engine = SimpleNamespace(
        site=site,
        state=SimpleNamespace(value="not token site"),
        recovery=SimpleNamespace(accepted=None),
        retransmission=SimpleNamespace(_sent={}),
        membership=SimpleNamespace(requests={}),
        submission=SimpleNamespace(
            outbox=SimpleNamespace(messages=0, pending={}, calls=0),
            requests=SimpleNamespace(waiting={}, next_number=1),
        ),
        rpc=SimpleNamespace(table=CallTable(CONFIG)),
        sending=SimpleNamespace(in_transit=0, flow=SimpleNamespace(window=1_000)),
        transfer=SimpleNamespace(wanted=None),
        lanes=SimpleNamespace(outbox=SimpleNamespace(messages=0, pending={})),
    )
    process = SimpleNamespace(
        member=member(number), address=f"s{number}", engine=engine, alive=True, paused=False, ended=None,
        view=None, majority=0, replica=SimpleNamespace(ts=0), key=number, disk=Disk(),
    )  # fmt: skip
    process.is_member = lambda: process.alive and process.view is not None
    return process


def stubs(count: int = 3) -> list[Any]:
    return [stub(number) for number in range(1, count + 1)]


def cluster_of(processes: list[Any], left_broken: tuple[str, ...] = ()) -> Any:
    def live() -> list[Any]:
        return [process for process in processes if process.alive]

    return SimpleNamespace(config=CONFIG, live=live, left_broken=set(left_broken), callers={})


def tell(checker: Checker, process: Any, *effects: Effect, now: int = 0) -> None:
    """Show effects as the cluster does, and settle."""
    for effect in effects:
        checker.on_effect(process, effect, now)
        if isinstance(effect, InstallView):
            process.view = effect.view
        elif isinstance(effect, LevelReached):
            process.majority = effect.majority
    checker.on_settled(process, now)


def submit(checker: Checker, process: Any, seq: int, *texts: str, qos: Qos = MAJORITY, now: int = 0) -> None:
    checker.on_submit(process, seq, tuple(text.encode() for text in texts), qos, now)


def hold(process: Any, *blocks: Order) -> None:
    """Let a process have these blocks, and everything before them."""
    queue = process.engine.site.queue
    queue.blocks = {block.ts: block for block in blocks}
    queue.frontier = max((block.last_ts for block in blocks), default=0)


def packet_from(process: Any, *, held: int = 0, epoch: int = 1) -> Head:
    return Head(1, CHAIN, process.member.site, process.member.boot, epoch, held, held, 0, 0)


def assert_finds(checker: Checker, words: str) -> None:
    assert any(words in violation for violation in checker.violations), checker.violations
    assert all(f" {checker.name}: " in violation for violation in checker.violations)
