"""``Groups``: several engines behind one door, each as if it had a host of its own."""

from collections.abc import Callable
from random import Random

import pytest

from ordering import packets as p
from ordering.config import MS, Config
from ordering.effects import (
    Accepted,
    Deliver,
    Effect,
    Ending,
    EndMembership,
    InstallView,
    Multicast,
    SetTimer,
)
from ordering.engine import Engine
from ordering.errors import GroupError, InvariantViolation, LockError, MembershipError, NotMember
from ordering.events import (
    ChangeRequested,
    LockRequested,
    PacketsReceived,
    Started,
    StateTransferred,
    SubmitRequested,
    TimerFired,
)
from ordering.groups import Groups, InGroup, Outcome
from ordering.naming import group_id
from ordering.packets import ChangeKind, Head, Packet
from ordering.site import Timer
from ordering.state import State
from ordering.views import Member, SiteId, View, ViewId
from tests.ordering.hosting import Host, World

FOUNDED = Started(founder=True)
LATE = 1_000_000 * MS


def config(group: str, *founders: str) -> Config:
    return Config(group=group, founders=founders or ("a",))


def member(number: int = 1, address: str = "a") -> Member:
    return Member(SiteId(number), 1000 + number, address)


def open_at(groups: Groups, group: str, *founders: str, number: int = 1) -> Engine:
    return groups.open(config(group, *founders), member(number), Random(7))


def started(groups: Groups, group: str, *founders: str, number: int = 1, now: int = 0) -> Engine:
    """A group that is open and started; with one founder it is born at once."""
    engine = open_at(groups, group, *founders, number=number)
    groups.handle(InGroup(group, FOUNDED), now)
    return engine


def question(group: str, address: str = "b") -> Packet:
    """What the other founder asks, which a founder answers."""
    effects = Engine(config(group, "a", address), member(2, address), Random(3)).handle(FOUNDED, 0)
    return next(effect.packet for effect in effects if isinstance(effect, Multicast))


def head_of(group: str) -> Head:
    return Head(group_id(group), 0, SiteId(2), 1002, 0, 0, 0, 0, 0)


def kinds(outcomes: list[Outcome]) -> dict[str, list[type[Effect]]]:
    return {outcome.group: [type(effect) for effect in outcome.effects] for outcome in outcomes}


def dismissal(engine: Engine) -> Packet:
    """Another member's word that this site is out of the group."""
    mine = engine.site.head()
    head = Head(mine.group, mine.chain, SiteId(2), 1002, mine.epoch, 0, 0, 0, 0)
    return p.NotMember(head, engine.site.me, View(ViewId(9, 0), (), (), ()))


def timer(groups: Groups) -> int | None:
    return groups.wake_at


def outrun(engine: Engine) -> None:
    """Take the engine's clock ahead of its host's: the next event finds that time went back."""
    engine.site.now = 1000 * LATE


# -- opening and closing -------------------------------------------------------------------------


def test_when_groups_are_opened_then_each_has_an_engine_under_its_name() -> None:
    groups = Groups()
    orders = open_at(groups, "orders")
    stock = open_at(groups, "stock")
    assert groups.names == ("orders", "stock")
    assert groups.engine("orders") is orders
    assert groups.engine("stock") is stock
    assert orders.state is stock.state is State.IDLE
    assert timer(groups) is None


def test_when_a_name_is_opened_twice_then_it_is_refused_and_the_first_goes_on() -> None:
    groups = Groups()
    engine = started(groups, "orders")
    with pytest.raises(GroupError, match=r"^group: 'orders' is open already; use it, or close it"):
        open_at(groups, "orders", number=2)
    assert groups.engine("orders") is engine
    assert kinds(groups.handle(InGroup("orders", SubmitRequested((b"x",))), 1))["orders"]


def test_when_two_names_have_one_id_then_the_second_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordering.site.group_id", len)
    groups = Groups()
    open_at(groups, "stock")
    with pytest.raises(GroupError, match=r"^group: 'goods' and 'stock' have the same 64-bit id; name one"):
        open_at(groups, "goods")
    open_at(groups, "orders")
    assert groups.names == ("stock", "orders")


@pytest.mark.parametrize(
    ("again", "field"),
    [(Member(SiteId(1), 5000, "a"), "member.site"), (Member(SiteId(5), 1001, "a"), "member.boot")],
    ids=["site", "boot"],
)
def test_when_a_site_comes_back_under_an_old_identity_then_it_is_refused(again: Member, field: str) -> None:
    groups = Groups()
    started(groups, "orders")
    groups.close("orders")
    with pytest.raises(GroupError, match=rf"^{field}: was in group 'orders' before; draw a new site and"):
        groups.open(config("orders"), again, Random(1))
    groups.open(config("stock"), again, Random(1))
    groups.open(config("orders"), member(9), Random(1))
    assert groups.names == ("stock", "orders")


def test_when_a_group_is_not_open_then_everything_asked_of_it_is_refused() -> None:
    groups = Groups()
    open_at(groups, "stock")
    refusal = r"^group: 'orders' is not open here; open it first \(open: 'stock'\)"
    with pytest.raises(GroupError, match=refusal):
        groups.handle(InGroup("orders", FOUNDED), 0)
    with pytest.raises(GroupError, match=refusal):
        groups.close("orders")
    with pytest.raises(GroupError, match=refusal):
        groups.engine("orders")


# -- local events --------------------------------------------------------------------------------


def test_when_a_local_event_names_a_group_then_only_that_group_acts() -> None:
    groups = Groups()
    started(groups, "orders")
    other = open_at(groups, "stock")
    [outcome] = groups.handle(InGroup("orders", SubmitRequested((b"one", b"two"))), 1)
    assert outcome.group == "orders"
    assert outcome.error is None
    assert [type(effect) for effect in outcome.effects if isinstance(effect, Accepted | Deliver)] == [
        Accepted,
        Deliver,
    ]
    assert other.state is State.IDLE
    assert other.site.now == 0


def test_when_a_group_of_one_starts_then_its_view_is_its_own() -> None:
    groups = Groups()
    open_at(groups, "orders")
    open_at(groups, "stock")
    chains = []
    for name in ("orders", "stock"):
        [outcome] = groups.handle(InGroup(name, FOUNDED), 0)
        chains += [effect.chain for effect in outcome.effects if isinstance(effect, InstallView)]
        assert outcome.group == name
    assert len(set(chains)) == 2


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (SubmitRequested((b"x",)), NotMember),
        (ChangeRequested(ChangeKind.LEAVE), MembershipError),
        (LockRequested("door"), LockError),
    ],
    ids=["submit", "change", "lock"],
)
def test_when_an_engine_refuses_then_the_caller_hears_it_and_nothing_has_changed(
    event: SubmitRequested | ChangeRequested | LockRequested, refusal: type[Exception]
) -> None:
    groups = Groups()
    started(groups, "orders", "a", "b")
    started(groups, "stock")
    before = groups.wake_at
    with pytest.raises(refusal):
        groups.handle(InGroup("orders", event), 1)
    assert timer(groups) == before
    assert [o.group for o in groups.handle(PacketsReceived((question("orders"),)), 2)] == ["orders"]
    assert groups.counters == {}


# -- packets -------------------------------------------------------------------------------------


def test_when_a_drain_brings_packets_of_several_groups_then_each_group_gets_its_own() -> None:
    groups = Groups()
    for name in ("orders", "stock", "audit"):
        started(groups, name, "a", "b")
    drain = (question("stock"), question("orders"), question("stock"))
    outcomes = groups.handle(PacketsReceived(drain), 1)
    assert [outcome.group for outcome in outcomes] == ["stock", "orders"]
    for outcome in outcomes:
        packets = [effect.packet for effect in outcome.effects if isinstance(effect, Multicast)]
        assert {packet.head.group for packet in packets} == {group_id(outcome.group)}
    assert kinds(outcomes) == {"stock": [Multicast, Multicast], "orders": [Multicast]}
    assert groups.engine("audit").site.now == 0


def test_when_no_engine_wants_a_packet_then_it_is_counted_by_reason() -> None:
    groups = Groups()
    open_at(groups, "idle", "a", "b")
    outrun(started(groups, "stopped", "a", "b"))
    groups.handle(PacketsReceived((question("stopped"),)), 1)
    groups.handle(PacketsReceived((dismissal(started(groups, "ended", now=1)),)), 1)
    started(groups, "orders", "a", "b", now=1)
    names = ("idle", "stopped", "nowhere", "orders", "ended", "nowhere")
    outcomes = groups.handle(PacketsReceived(tuple(question(name) for name in names)), 1)
    assert [outcome.group for outcome in outcomes] == ["orders"]
    expected = {
        "dropped: group not started": 1,
        "dropped: group stopped": 1,
        "dropped: group ended": 1,
        "dropped: group not open": 2,
    }
    assert groups.counters == expected
    assert [groups.admits(head_of(name)) for name in names] == [False, False, False, True, False, False]
    assert groups.counters == {reason: 2 * count for reason, count in expected.items()}


def test_when_a_packet_comes_back_to_its_sender_then_it_is_dropped_before_it_is_opened() -> None:
    groups = Groups()
    engine = started(groups, "orders", "a", "b")
    own = Head(group_id("orders"), 0, engine.site.me, 1001, 0, 0, 0, 0, 0)
    assert not groups.admits(own)
    assert groups.counters == {"dropped: own packet": 1}


def test_when_a_group_is_closed_then_its_packets_are_dropped_until_it_is_opened_and_started() -> None:
    groups = Groups()
    started(groups, "orders", "a", "b")
    groups.close("orders")
    assert groups.handle(PacketsReceived((question("orders"),)), 1) == []
    open_at(groups, "orders", "a", "b", number=3)
    assert groups.handle(PacketsReceived((question("orders"),)), 2) == []
    assert groups.counters == {"dropped: group not open": 1, "dropped: group not started": 1}
    groups.handle(InGroup("orders", FOUNDED), 3)
    assert kinds(groups.handle(PacketsReceived((question("orders"),)), 4)) == {"orders": [Multicast]}


# -- the timer -----------------------------------------------------------------------------------


def own_timer(group: str, now: int) -> int:
    """What the engine of such a group would ask for alone."""
    effects = Engine(config(group, "a", "b"), member(), Random(7)).handle(FOUNDED, now)
    return next(effect.at for effect in effects if isinstance(effect, SetTimer))


def test_when_several_groups_wait_then_the_timer_is_the_earliest_and_wakes_who_is_due() -> None:
    groups = Groups()
    started(groups, "orders", "a", "b", now=10 * MS)
    started(groups, "stock", "a", "b", now=20 * MS)
    first, second = own_timer("orders", 10 * MS), own_timer("stock", 20 * MS)
    assert first < second
    assert timer(groups) == first
    assert groups.handle(TimerFired(), first - 1) == []
    assert timer(groups) == first
    assert kinds(groups.handle(TimerFired(), first)) == {"orders": [Multicast]}
    assert timer(groups) == second
    assert groups.engine("stock").site.now == 20 * MS


def test_when_the_timer_is_late_then_all_who_are_due_are_woken_longest_overdue_first() -> None:
    groups = Groups()
    for now, name in enumerate(("c", "b", "a")):
        started(groups, name, "a", "b", now=now * MS)
    outcomes = groups.handle(TimerFired(), LATE)
    assert [outcome.group for outcome in outcomes] == ["c", "b", "a"]
    assert groups.wake_at is not None
    assert groups.wake_at > LATE


def test_when_other_events_come_after_a_due_time_then_the_timer_stays_due() -> None:
    groups = Groups()
    started(groups, "orders", "a", "b")
    due = own_timer("orders", 0)
    groups.handle(PacketsReceived((question("orders"),)), LATE)
    assert timer(groups) == due
    assert kinds(groups.handle(TimerFired(), LATE)) == {"orders": [Multicast]}
    assert groups.wake_at is not None
    assert groups.wake_at > LATE


def test_when_an_engine_asks_for_a_time_that_is_past_then_it_is_due_at_once() -> None:
    groups = Groups()
    engine = started(groups, "orders", "a", "b")
    engine.site.arm(Timer.LANE, MS)
    groups.handle(PacketsReceived((question("orders"),)), LATE)
    assert timer(groups) == MS
    groups.handle(TimerFired(), LATE)
    assert Timer.LANE not in engine.site.deadlines


def test_when_a_woken_engine_asks_for_no_timer_then_it_has_none() -> None:
    groups = Groups()
    engine = started(groups, "orders", "a", "b")
    engine.site.deadlines.clear()
    assert groups.handle(TimerFired(), LATE) == []
    assert timer(groups) is None
    assert groups.handle(TimerFired(), LATE) == []


def test_when_a_group_is_closed_then_it_has_no_timer() -> None:
    groups = Groups()
    started(groups, "orders", "a", "b", now=10 * MS)
    started(groups, "stock", "a", "b", now=20 * MS)
    groups.close("orders")
    assert timer(groups) == own_timer("stock", 20 * MS)
    groups.close("stock")
    assert timer(groups) is None
    assert groups.handle(TimerFired(), LATE) == []


def test_when_a_membership_ends_then_the_group_has_no_timer_and_may_be_opened_anew() -> None:
    groups = Groups()
    engine = started(groups, "orders")
    assert timer(groups) is not None
    [outcome] = groups.handle(PacketsReceived((dismissal(engine),)), 1)
    assert outcome.error is None
    assert outcome.effects[-1] == EndMembership(Ending.REMOVED)
    assert timer(groups) is None
    with pytest.raises(NotMember):
        groups.handle(InGroup("orders", SubmitRequested((b"x",))), 2)
    assert groups.handle(InGroup("orders", StateTransferred(1)), 2) == []
    groups.close("orders")
    open_at(groups, "orders", number=2)
    assert InstallView in kinds(groups.handle(InGroup("orders", FOUNDED), 3))["orders"]


# -- a group that breaks ---------------------------------------------------------------------------


def unlearn(engine: Engine) -> None:
    """A defect: the engine does not know its packets any more."""
    engine._handlers.clear()


@pytest.mark.parametrize(
    ("plant", "kind"), [(outrun, InvariantViolation), (unlearn, KeyError)], ids=["invariant", "defect"]
)
@pytest.mark.parametrize("broken", ["audit", "orders", "stock"])
def test_when_one_group_breaks_in_a_drain_then_the_others_keep_their_effects(
    plant: Callable[[Engine], None], kind: type[Exception], broken: str
) -> None:
    names = ("audit", "orders", "stock")
    groups = Groups()
    for name in names:
        started(groups, name, "a", "b")
    plant(groups.engine(broken))
    drain = tuple(question(name) for name in names)
    outcomes = groups.handle(PacketsReceived(drain), 1)
    assert [outcome.group for outcome in outcomes] == list(names)
    for outcome in outcomes:
        assert len(outcome.effects) == (outcome.group != broken)
        assert isinstance(outcome.error, kind) == (outcome.group == broken)
    again = groups.handle(PacketsReceived(drain), 2)
    assert [outcome.group for outcome in again] == [name for name in names if name != broken]
    assert groups.counters == {"dropped: group stopped": 1}


def test_when_one_group_breaks_at_the_timer_then_the_others_are_woken_and_it_never_is_again() -> None:
    groups = Groups()
    outrun(started(groups, "orders", "a", "b"))
    started(groups, "stock", "a", "b", now=1)
    outcomes = groups.handle(TimerFired(), LATE)
    assert [(o.group, type(o.error)) for o in outcomes] == [
        ("orders", InvariantViolation),
        ("stock", type(None)),
    ]
    assert kinds(outcomes)["stock"] == [Multicast]
    assert kinds(groups.handle(TimerFired(), 2 * LATE)) == {"stock": [Multicast]}


def test_when_a_local_event_breaks_its_group_then_the_outcome_says_so() -> None:
    groups = Groups()
    outrun(started(groups, "orders", "a", "b"))
    started(groups, "stock", "a", "b", now=10 * MS)
    [outcome] = groups.handle(InGroup("orders", SubmitRequested((b"x",))), 10 * MS)
    assert outcome.group == "orders"
    assert outcome.effects == []
    assert isinstance(outcome.error, InvariantViolation)
    assert timer(groups) == own_timer("stock", 10 * MS)


def test_when_a_group_has_stopped_then_it_answers_as_one_that_ended_until_it_is_opened_anew() -> None:
    groups = Groups()
    outrun(started(groups, "orders"))
    [outcome] = groups.handle(TimerFired(), LATE)
    assert outcome.error is not None
    with pytest.raises(LockError, match=r"'orders': stopped by InvariantViolation"):
        groups.handle(InGroup("orders", LockRequested("door")), LATE)
    with pytest.raises(NotMember, match=r"'orders': stopped by InvariantViolation\('time went back"):
        groups.handle(InGroup("orders", SubmitRequested((b"x",))), LATE)
    assert groups.handle(InGroup("orders", StateTransferred(1)), LATE) == []
    assert groups.handle(InGroup("orders", ChangeRequested(ChangeKind.LEAVE)), LATE) == []
    assert timer(groups) is None
    assert groups.names == ("orders",)
    groups.close("orders")
    open_at(groups, "orders", number=2)
    assert InstallView in kinds(groups.handle(InGroup("orders", FOUNDED), LATE))["orders"]


def test_when_the_hosts_time_goes_back_then_it_is_told_and_no_group_stops() -> None:
    groups = Groups()
    started(groups, "orders", "a", "b", now=5)
    with pytest.raises(InvariantViolation, match="time went back from 5 to 4"):
        groups.handle(PacketsReceived((question("orders"),)), 4)
    assert kinds(groups.handle(PacketsReceived((question("orders"),)), 5)) == {"orders": [Multicast]}


# -- processes that share groups -------------------------------------------------------------------

# Every process is in two groups or more, no two groups have the same founders, and each outlives any
# one process. A process is the same site, with the same boot, in all its groups.
FOUNDERS = {"orders": ("a", "b", "c"), "stock": ("b", "c", "d"), "audit": ("d", "a", "b")}


def born(seed: int = 1, discipline: str = "rotating") -> World:
    world = World(FOUNDERS, seed, discipline=discipline)
    for group, founders in FOUNDERS.items():
        world.until_ring(group, *founders)
    return world


def submit_everywhere(world: World, label: str) -> dict[str, list[str]]:
    """One message of each member of each group, all at once; returns them by group."""
    sent: dict[str, list[str]] = {}
    for group, cluster in world.clusters.items():
        for process in cluster.live():
            text = f"{group} {label} {process.address}"
            assert world.submit(process.address, group, text) is None
            sent.setdefault(group, []).append(text)
    return sent


@pytest.mark.parametrize("discipline", ["rotating", "sequencer"])
def test_when_processes_share_groups_then_each_group_orders_its_own_messages(discipline: str) -> None:
    world = born(discipline=discipline)
    sent: dict[str, list[str]] = {}
    for number in range(20):
        for group, texts in submit_everywhere(world, str(number)).items():
            sent.setdefault(group, []).extend(texts)
        world.run(MS)
    world.finish()
    for group, founders in FOUNDERS.items():
        told = [world.told(address, group) for address in founders]
        assert told[0] == told[1] == told[2]
        assert sorted(told[0]) == sorted(sent[group])
        chains = {process.engine.site.chain for process in world.clusters[group].live()}
        assert len(chains) == 1
    assert all(host.mixed_drains > 10 for host in world.hosts.values())
    assert all(host.groups.counters == {} for host in world.hosts.values())
    assert len({site.engine.site.chain for c in world.clusters.values() for site in c.live()}) == 3


@pytest.mark.parametrize(
    ("kind", "asked", "ending"),
    [(ChangeKind.LEAVE, "b", Ending.LEFT), (ChangeKind.REMOVE, "c", Ending.REMOVED)],
    ids=["leave", "remove"],
)
def test_when_a_site_is_out_of_one_group_then_its_process_serves_the_others_and_may_come_back(
    kind: ChangeKind, asked: str, ending: Ending
) -> None:
    world = born()
    stock = world.clusters["stock"]
    gone = stock.processes["b"]
    world.change(asked, "stock", kind, "b")
    world.until(lambda: gone.ended is not None, "b is out of stock")
    assert gone.ended is not None
    assert gone.ended.ending is ending
    assert isinstance(world.submit("b", "stock", "stock late"), NotMember)
    world.until_ring("stock", "c", "d")
    sent = submit_everywhere(world, "without b")
    assert sent["stock"] == ["stock without b c", "stock without b d"]
    for group, texts in sent.items():
        world.until_told(group, *texts)
    world.until_ring("stock", "b", "c", "d")
    assert stock.processes["b"] is not gone
    assert "orders without b b" in world.told("c", "orders")
    sent = submit_everywhere(world, "again")
    world.finish()
    for group, founders in FOUNDERS.items():
        assert all(set(sent[group]).issubset(world.told(address, group)) for address in founders)
    for group in ("orders", "audit"):
        process = world.clusters[group].processes["b"]
        assert process.view is not None
        assert str(process.view.id) == "1.0"  # nothing has happened there
        assert len(world.hosts["b"].members[group]) == 1


def test_when_a_process_crashes_then_every_ring_it_was_in_forms_anew_and_takes_it_back() -> None:
    world = born()
    for group, texts in submit_everywhere(world, "before").items():
        world.until_told(group, *texts)
    world.crash("b")
    world.until_ring("orders", "a", "c")
    world.until_ring("stock", "c", "d")
    world.until_ring("audit", "d", "a")
    for group, texts in submit_everywhere(world, "without b").items():
        assert len(texts) == 2
        world.until_told(group, *texts)
    world.boot("b")
    for group, founders in FOUNDERS.items():
        world.until_ring(group, *founders)
    sent = submit_everywhere(world, "again")
    world.finish()
    for group, founders in FOUNDERS.items():
        told = [world.told(address, group) for address in founders]
        assert all(set(sent[group]).issubset(messages) for messages in told)
        assert len({process.replica.digest for process in world.clusters[group].live()}) == 1


def test_when_one_group_breaks_at_a_process_then_only_its_ring_forms_anew() -> None:
    world = born()
    stock = world.clusters["stock"]
    outrun(stock.processes["b"].engine)
    world.until_ring("stock", "c", "d")
    assert len(stock.broken) == 1
    assert world.hosts["b"].groups.names == ("orders", "stock", "audit")
    sent = submit_everywhere(world, "without b")
    assert [len(texts) for texts in sent.values()] == [3, 2, 3]
    for group, texts in sent.items():
        world.until_told(group, *texts)
    stock.restart("b")
    world.until_ring("stock", "b", "c", "d")
    world.finish()
    for group in ("orders", "audit"):
        assert world.clusters[group].broken == []
        views = {str(site.view.id) for site in world.clusters[group].live() if site.view is not None}
        assert views == {"1.0"}


def stormy(seed: int) -> World:
    """Loss, reordering, and a crash now and then, under load."""
    world = born(seed)
    world.network.weather.loss = 0.05
    world.network.weather.reordering = 0.05
    rng = Random(seed)
    for number in range(6):
        victim = rng.choice(sorted(world.hosts))
        for step in range(10):
            for group, cluster in world.clusters.items():
                process = rng.choice(cluster.live())
                if process.is_member():
                    world.submit(process.address, group, f"{group} {number} {step}")
            world.run(rng.randrange(20) * MS)
        world.crash(victim)
        world.run(rng.randrange(400) * MS)
        world.boot(victim)
        world.network.weather.loss = 0.0
        for group, founders in FOUNDERS.items():
            world.until_ring(group, *founders)
        world.network.weather.loss = 0.05
    world.finish()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_when_processes_crash_and_packets_are_lost_then_no_checker_of_any_group_complains(seed: int) -> None:
    world = stormy(seed)
    for group, founders in FOUNDERS.items():
        processes = world.clusters[group].processes
        assert len({processes[address].replica.digest for address in founders}) == 1
        assert processes[founders[0]].majority > 60
        assert world.clusters[group].broken == []


def test_when_a_run_is_repeated_then_every_outcome_is_the_same() -> None:
    one, other = stormy(9), stormy(9)
    assert one.hosts.keys() == other.hosts.keys()
    for address, host in one.hosts.items():
        assert host.record == other.hosts[address].record
        assert len(host.record) > 100


# -- the same without Groups -----------------------------------------------------------------------


class Alone:
    """A group's engine with a host and a timer of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.wake_at: int | None = None

    def handle(
        self, event: PacketsReceived | TimerFired | Started | SubmitRequested, now: int
    ) -> list[Effect]:
        if isinstance(event, TimerFired):
            if self.wake_at is None or self.wake_at > now:
                return []
            self.wake_at = None
        effects = self.engine.handle(event, now)
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.wake_at = effect.at
        return [effect for effect in effects if not isinstance(effect, SetTimer)]


def replay(world: World, host: Host) -> None:
    """Bring what happened at a host to engines that know nothing of each other."""
    alone: dict[str, Alone] = {}
    for now, event, outcomes, wake_at in host.record:
        expected: dict[str, list[Effect]] = {}
        match event:
            case InGroup(group, Started() | SubmitRequested() as local):
                if isinstance(local, Started):
                    [me] = host.members[group]
                    alone[group] = Alone(Engine(world.clusters[group].config, me, Random(me.boot)))
                expected[group] = alone[group].handle(local, now)
            case PacketsReceived(packets):
                for group, one in alone.items():
                    share = tuple(packet for packet in packets if packet.head.group == group_id(group))
                    if share:
                        expected[group] = one.handle(PacketsReceived(share), now)
            case TimerFired():
                expected = {group: one.handle(event, now) for group, one in alone.items()}
        assert {o.group: o.effects for o in outcomes} == {g: e for g, e in expected.items() if e}
        assert wake_at == min((one.wake_at for one in alone.values() if one.wake_at), default=None)


def test_when_groups_share_a_host_then_each_does_what_it_would_do_alone() -> None:
    world = born()
    world.network.weather.loss = 0.1
    world.network.weather.reordering = 0.1
    for number in range(60):
        submit_everywhere(world, str(number))
        world.run(7 * MS)
    world.crash("d")
    for number in range(200):
        world.run(7 * MS)
        world.submit("b", "orders", f"orders more {number}")
    for address in ("a", "b", "c"):
        host = world.hosts[address]
        assert host.mixed_drains > 50
        replay(world, host)
