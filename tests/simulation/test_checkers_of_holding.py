"""Checkers of what processes have and get done, against worlds known to be bad and good ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from ordering.config import MS, Config
from ordering.effects import (
    Effect,
    LevelReached,
    Multicast,
    Unicast,
)
from ordering.packets import Ack, Confirm, Descent, NewList, Order, Run
from ordering.qos import (
    MAJORITY,
    SOURCE_ORDERED,
    TOTAL,
    TOTALLY_ORDERED,
    UNORDERED,
    UNRELIABLE,
    Qos,
    k_resilient,
)
from ordering.simulator.checkers import make_checkers
from ordering.simulator.checkers.agreement import Agreement
from ordering.simulator.checkers.base import Checker
from ordering.simulator.checkers.bounds import SAMPLE, Bounds
from ordering.simulator.checkers.hold_statements import HoldStatements
from ordering.simulator.checkers.liveness import Liveness
from ordering.simulator.checkers.resilience import Resilience
from ordering.simulator.checkers.single_token import SingleToken
from ordering.simulator.cluster import Cluster
from ordering.views import SiteId, View
from tests.simulation.handmade import (
    SETTLED,
    assert_finds,
    cluster_of,
    deliver,
    hold,
    install,
    member,
    message,
    order,
    packet_from,
    stub,
    stubs,
    submit,
    tell,
    view,
)

# -- agreement and resilience at the end -------------------------------------------------------------


def final(checker: Checker, process: Any, *slots: int) -> None:
    tell(checker, process, install(), *(deliver(message(ts, 1, ts)) for ts in slots))
    tell(checker, process, LevelReached(max(slots, default=1), 1))


def heal_and_finish(checker: Checker, cluster: Any) -> None:
    checker.on_healed(cluster, 0)
    checker.finish(cluster, SETTLED)


def hold_all(processes: list[Any], last_ts: int) -> None:
    for process in processes:
        process.engine.site.queue.base = process.engine.site.queue.frontier = last_ts


def test_agreement_accepts_equal_sets_and_what_a_learner_has_from_its_state() -> None:
    checker = Agreement()
    one, two, _ = processes = stubs()
    final(checker, one, 3)
    final(checker, two, 3)
    for process in processes:
        tell(
            checker,
            process,
            install(4, view(1, 1)),
            deliver(message(5, 1, 5), revision=1),
            LevelReached(5, 1),
        )
    heal_and_finish(checker, cluster_of(processes))
    assert checker.violations == []


@pytest.mark.parametrize("slots", [(3,), (4,)], ids=["last missing", "first missing"])
def test_agreement_finds_a_survivor_that_lacks_a_message(slots: tuple[int, ...]) -> None:
    checker = Agreement()
    one, two = processes = stubs(2)
    final(checker, one, 3, 4)
    final(checker, two, *slots)
    heal_and_finish(checker, cluster_of(processes))
    assert_finds(checker, "is not so at site 2")


def test_agreement_lets_off_hosts_left_broken_and_runs_without_time_to_heal() -> None:
    checker = Agreement()
    one, two = processes = stubs(2)
    final(checker, one, 3, 4)
    final(checker, two, 3)
    checker.finish(cluster_of(processes), SETTLED)
    heal_and_finish(checker, cluster_of(processes, left_broken=("s2",)))
    assert checker.violations == []


@pytest.mark.parametrize("kept", [(3, 4), (3,)], ids=["kept", "lost"])
def test_resilience_wants_what_a_dead_process_acknowledged(kept: tuple[int, ...]) -> None:
    checker = Resilience()
    one, two, three = processes = stubs()
    hold_all(processes, 9)
    for process in processes:
        tell(checker, process)
    final(checker, one, 3, 4)
    one.alive = False
    final(checker, two, *kept)
    final(checker, three, *kept)
    heal_and_finish(checker, cluster_of(processes))
    if kept == (3, 4):
        assert checker.violations == []
    else:
        assert_finds(checker, "message 1:4, final at slot 4 at process 1, is lost at site 2")


def test_resilience_finds_a_group_of_which_nobody_is_left() -> None:
    checker = Resilience()
    processes = stubs(1)
    hold_all(processes, 9)
    final(checker, processes[0], 3)
    processes[0].alive = False
    heal_and_finish(checker, cluster_of(processes))
    assert_finds(checker, "no live member is left")


# -- resilience at the moment of delivery ------------------------------------------------------------

BLOCK = order(2, runs=(Run(SiteId(1), 1, 1),))
OTHER_BLOCK = order(2, epoch=2, runs=(Run(SiteId(2), 1, 1),))


@pytest.mark.parametrize(
    ("qos", "holders", "words"),
    [
        (MAJORITY, 2, ""),
        (MAJORITY, 1, "1 of 3 voters hold it"),
        (k_resilient(2), 3, ""),
        (k_resilient(2), 2, "2-resilient, 2 voters hold it"),
        (TOTAL, 3, ""),
        (TOTAL, 2, "the ring does not hold it"),
        (TOTALLY_ORDERED, 1, ""),
    ],
)
def test_resilience_counts_who_really_holds_a_slot(qos: Qos, holders: int, words: str) -> None:
    checker = Resilience()
    one, *others = processes = stubs()
    for process in processes[:holders]:
        hold(process, BLOCK)
    for process in others:
        tell(checker, process)
    one.view = view()
    tell(checker, one, deliver(message(3, 1, 1, qos)))
    if words:
        assert_finds(checker, words)
    else:
        assert checker.violations == []


def test_resilience_does_not_count_another_order_at_the_same_slot() -> None:
    checker = Resilience()
    one, two, three = stubs()
    hold(one, BLOCK)
    hold(two, OTHER_BLOCK)
    for process in (two, three):
        tell(checker, process)
    one.view = view()
    tell(checker, one, deliver(message(3, 1, 1)))
    assert_finds(checker, "1 of 3 voters hold it")


@pytest.mark.parametrize(("holders", "broken"), [(2, False), (1, True)])
def test_resilience_checks_what_level_reached_says(holders: int, broken: bool) -> None:
    checker = Resilience()
    one, *others = processes = stubs()
    for process in processes[:holders]:
        hold(process, BLOCK)
    for process in others:
        tell(checker, process)
    one.view = view()
    tell(checker, one, LevelReached(3, 0))
    assert bool(checker.violations) is broken


@pytest.mark.parametrize("accepted", [True, False])
def test_resilience_counts_who_accepted_the_install_that_opens_an_epoch(accepted: bool) -> None:
    checker = Resilience()
    one, two, three = stubs()
    opening = Order(2, 4, SiteId(1), SiteId(1), view=view(2))
    hold(one, opening)
    one.view = one.engine.site.view = view(2)
    two.engine.site.queue.frontier = 3
    two.engine.recovery.accepted = opening if accepted else None
    for process in (two, three):
        tell(checker, process)
    two.engine.recovery.accepted = None  # it has moved on since
    tell(checker, one, LevelReached(4, 0))
    if accepted:
        assert checker.violations == []
    else:
        assert_finds(checker, "1 of 3 voters hold it")


# -- single token ------------------------------------------------------------------------------------


def take_token(process: Any, epoch: int = 1) -> None:
    site = process.engine.site
    site.epoch = epoch
    site.queue.tail = order(3, epoch=epoch, to=site.me)
    site.holds_token = lambda: True


def test_single_token_accepts_a_token_that_moves_and_an_old_holder_of_an_earlier_epoch() -> None:
    checker = SingleToken()
    one, two, three = stubs()
    take_token(one)
    checker.on_settled(one, 0)
    one.engine.site.holds_token = lambda: False
    take_token(two)
    checker.on_settled(two, 0)
    take_token(three, epoch=2)
    checker.on_settled(three, 0)
    assert checker.violations == []


def test_single_token_finds_two_holders() -> None:
    checker = SingleToken()
    one, two, _ = stubs()
    for process in (one, two):
        take_token(process)
        checker.on_settled(process, 0)
    assert_finds(checker, "sites 1 and 2 both hold the token of epoch 1")


@pytest.mark.parametrize("broken", [False, True], ids=["retransmitted", "changed"])
def test_single_token_finds_an_order_that_changed(broken: bool) -> None:
    checker = SingleToken()
    one, two, _ = stubs()
    second = order(5, to=3 if broken else 2)
    tell(checker, one, Multicast(("s2",), Ack(packet_from(one), order(5))))
    tell(checker, two, Unicast("s3", Ack(packet_from(two), second)))
    tell(
        checker,
        two,
        Multicast(("s3",), NewList(packet_from(two), order(5, epoch=2, orderer=2), Descent(1, 0))),
    )
    assert bool(checker.violations) is broken
    if broken:
        assert_finds(checker, "before that it was")


# -- bounds ------------------------------------------------------------------------------------------


def test_bounds_accepts_small_buffers() -> None:
    checker = Bounds()
    (one,) = stubs(1)
    for _ in range(2 * SAMPLE):
        checker.on_settled(one, 0)
    assert checker.violations == []


@pytest.mark.parametrize(
    ("part", "attribute", "words"),
    [
        ("retransmission", "_sent", "retransmissions remembered"),
        ("membership", "requests", "membership requests"),
        ("submission.outbox", "messages", "own messages waiting for a slot"),
        ("lanes.outbox", "messages", "own unordered messages"),
        ("site.queue", "blocks", "blocks"),
        ("site.queue", "ordered_bytes", "bytes with a slot"),
        ("site.assemblies", "bytes", "bytes of unfinished messages"),
        ("site.assemblies", "lanes", "unfinished messages of strangers"),
        ("sending", "in_transit", "bytes in transit that nobody has sent"),
    ],
)
def test_bounds_finds_a_buffer_that_grows(part: str, attribute: str, words: str) -> None:
    checker = Bounds()
    (one,) = stubs(1)
    tight = Config(
        group="g", founders=("s1",), window_messages=5, retain_slots=5, horizon=5, retransmit_burst=5,
        window_bytes=5, buffer_bytes_max=5, message_bytes_max=5, assembly_bytes_max=5,
    )  # fmt: skip
    one.engine.site.config = tight
    owner = one.engine
    for name in part.split("."):
        owner = getattr(owner, name)
    is_number = isinstance(getattr(owner, attribute), int)
    lanes: dict[object, object] = {(SiteId(number), number, True): {} for number in range(1_000, 1_100)}
    setattr(owner, attribute, 1_000 if is_number else lanes)
    for _ in range(SAMPLE):
        checker.on_settled(one, 0)
    assert_finds(checker, words)


def test_bounds_finds_slots_and_data_that_are_never_collected() -> None:
    checker = Bounds()
    (one,) = stubs(1)
    one.engine.site.config = Config(group="g", founders=("s1",), retain_slots=5, horizon=5, block_messages=5)
    one.engine.site.queue.frontier = 16
    source = SimpleNamespace(batches=dict.fromkeys(range(11)), unordered_bytes=0)
    one.engine.site.queue.sources = {SiteId(2): source}
    for _ in range(SAMPLE):
        checker.on_settled(one, 0)
    assert_finds(checker, "slots from base to frontier 16, at most 15")
    assert_finds(checker, "batches of source 2 11, at most 10")


@pytest.mark.parametrize(
    ("kept", "everyone", "broken"), [(3, True, False), (50, True, True), (50, False, False)]
)
def test_bounds_wants_garbage_collected_in_a_quiet_group(kept: int, everyone: bool, broken: bool) -> None:
    checker = Bounds()
    processes = stubs(3 if everyone else 2)
    for process in processes:
        process.view = view()
        process.engine.site.queue.blocks = {ts: order(ts) for ts in range(kept)}
    heal_and_finish(checker, cluster_of(processes))
    assert bool(checker.violations) is broken
    if broken:
        assert_finds(checker, "keeps 50 blocks in a quiet group")


# -- liveness ----------------------------------------------------------------------------------------


def run_to_the_end(checker: Liveness, receivers: list[Any], cluster: Any, delivered_at: int = 1) -> None:
    """Site 1 has a message accepted; these get it, after the run has healed."""
    for process in cluster.live():
        tell(checker, process, install())
    submit(checker, cluster.live()[0], 1, "1-1")
    checker.on_healed(cluster, 0)
    for process in receivers:
        tell(checker, process, deliver(message(3, 1, 1)), LevelReached(3, 1), now=delivered_at)
    checker.finish(cluster, SETTLED)


def test_liveness_accepts_messages_that_come_in_time() -> None:
    checker = Liveness()
    processes = stubs()
    run_to_the_end(checker, processes, cluster_of(processes))
    assert checker.violations == []


@pytest.mark.parametrize(
    ("receivers", "delivered_at", "words"),
    [(0, 1, "never final at site 1"), (2, 1, "never final at site 3"), (3, SETTLED + 1, "is only at")],
    ids=["nowhere", "not everywhere", "late"],
)
def test_liveness_finds_messages_that_do_not_come_in_time(
    receivers: int, delivered_at: int, words: str
) -> None:
    checker = Liveness()
    processes = stubs()
    run_to_the_end(checker, processes[:receivers], cluster_of(processes), delivered_at)
    assert_finds(checker, words)


def test_liveness_lets_off_broken_hosts_and_submitters_that_died() -> None:
    checker = Liveness()
    processes = stubs()
    run_to_the_end(checker, processes[:2], cluster_of(processes, left_broken=("s3",)))
    assert checker.violations == []
    checker = Liveness()
    processes = stubs()
    cluster = cluster_of(processes)
    submit(checker, processes[0], 1, "1-1")
    for process in processes:
        tell(checker, process, install())
    checker.on_healed(cluster, 0)
    processes[0].alive = False
    checker.finish(cluster, SETTLED)
    assert checker.violations == []


def test_liveness_lets_off_a_learner_that_has_the_message_in_its_state() -> None:
    checker = Liveness()
    one, two, _ = processes = stubs()
    submit(checker, one, 1, "1-1")
    for process in (one, two):
        tell(checker, process, install(), deliver(message(3, 1, 1)), LevelReached(3, 1))
    for process in processes:
        tell(checker, process, install(4, view(1, 1)))
    heal_and_finish(checker, cluster_of(processes))
    assert checker.violations == []


@pytest.mark.parametrize("shown", [None, view(ring=(1, 2))], ids=["never let in", "out of the ring"])
def test_liveness_finds_a_process_that_does_not_come_back(shown: View | None) -> None:
    checker = Liveness()
    processes = stubs()
    for process in processes:
        process.view = view() if shown is None else shown
    if shown is None:
        processes[2].view = None
        processes[2].member = member(9)
    heal_and_finish(checker, cluster_of(processes))
    assert_finds(checker, "is not in the ring")


# -- hold statements ---------------------------------------------------------------------------------


def test_hold_statements_accepts_true_ones_and_retransmissions_behind_a_fence() -> None:
    checker = HoldStatements()
    (one,) = stubs(1)
    own = order(4)
    one.engine.site.queue.frontier = 4
    tell(checker, one, Multicast(("s2",), Ack(packet_from(one, held=4), own)), deliver(message(5, 1, 1)))
    one.engine.site.fenced = True
    tell(checker, one, Multicast(("s2",), Confirm(packet_from(one))))
    tell(checker, one, Multicast(("s2",), Ack(packet_from(one), own)))
    one.engine.site.fenced, one.engine.site.epoch = False, 2
    tell(
        checker,
        one,
        Multicast(("s2",), Confirm(packet_from(one, held=4, epoch=2))),
        deliver(message(6, 1, 2)),
    )
    assert checker.violations == []


def test_hold_statements_finds_a_claim_beyond_the_frontier() -> None:
    checker = HoldStatements()
    (one,) = stubs(1)
    one.engine.site.queue.frontier = 4
    tell(checker, one, Unicast("s2", Confirm(packet_from(one, held=5))))
    assert_finds(checker, "states 5 and holds 4")


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (Multicast(("s2",), Confirm(packet_from(stub(1), held=3))), "stated 3 in epoch 1 after its promise"),
        (
            Multicast(("s2",), Ack(packet_from(stub(1)), order(4))),
            "ordered slot 4 of epoch 1 after its promise",
        ),
        (deliver(message(3, 1, 1)), "delivered in epoch 1 after its promise"),
    ],
    ids=["hold", "order", "delivery"],
)
def test_hold_statements_finds_what_a_fenced_process_may_not_do(effect: Effect, words: str) -> None:
    checker = HoldStatements()
    (one,) = stubs(1)
    one.engine.site.queue.frontier = 4
    one.engine.site.fenced = True
    tell(checker, one)
    tell(checker, one, effect)
    assert_finds(checker, words)


# -- the real thing ----------------------------------------------------------------------------------


def test_when_a_site_crashes_and_restarts_then_no_checker_complains() -> None:
    addresses = ("s1", "s2", "s3")
    config = Config(group="g", founders=addresses, contacts=addresses)
    checkers = make_checkers()
    cluster = Cluster(config, 1, checkers)
    levels = (UNRELIABLE, UNORDERED, SOURCE_ORDERED, TOTALLY_ORDERED, k_resilient(1), MAJORITY, TOTAL)

    def load(label: str) -> None:
        for number in range(14):
            for address in addresses:
                process = cluster.processes[address]
                if process.alive:
                    cluster.submit(process, (f"{label}-{address}-{number}".encode(),), levels[number % 7])
            cluster.clock.run_until(cluster.clock.now + 5 * MS)

    for address in addresses:
        cluster.start(address, founder=True)
    cluster.clock.run_until(100 * MS)
    load("all")
    cluster.crash("s2")
    load("without s2")
    cluster.clock.run_until(cluster.clock.now + 1000 * MS)
    cluster.restart("s2")
    load("again")
    for checker in checkers:
        checker.on_healed(cluster, cluster.clock.now)
    cluster.clock.run_until(cluster.clock.now + SETTLED)
    for checker in checkers:
        checker.finish(cluster, cluster.clock.now)
    assert [violation for checker in checkers for violation in checker.violations] == []
    assert len({process.replica.digest for process in cluster.live()}) == 1
