"""RMP §4.4, fault recovery, with rules R1 to R4 where they make it sound."""

from ordering.errors import NoPrimary
from ordering.packets import RecoveryAbort, RecoveryNewList, RecoveryStart, RecoveryVote
from ordering.simulator.stage import Stage
from tests.paper.watching import log, mark, ms, sent, texts


def test_survivors_of_a_crash_have_the_same_messages_in_the_same_order(discipline: str) -> None:
    """RMP §4.4: all sites of the new view "have the same set of packets in their OrderingQ"."""
    stage = Stage.born(5, discipline=discipline)
    for number in range(10):
        for address in stage.addresses:
            stage.submit(address, f"{address}.{number}")
        stage.run(ms(1))
    stage.cluster.crash("s1")
    stage.run(ms(3000))
    survivors = [log(stage, process) for process in stage.cluster.live()]
    assert len(survivors) == 4
    assert all(other == survivors[0] for other in survivors)
    assert {f"s2.{n}" for n in range(10)} <= {text for _, text in survivors[0]}
    stage.finish()


def test_a_minority_never_installs_a_view(discipline: str) -> None:
    """R1, where RMP §4.4 lets a group choose a smaller minimum size."""
    stage = Stage.born(5, discipline=discipline)
    minority, majority = ("s1", "s2"), ("s3", "s4", "s5")
    for one in minority:
        for other in majority:
            stage.cut(one, other)
            stage.cut(other, one)
    stage.run(ms(5000))
    for address in minority:
        view = stage.process(address).view
        assert view is not None
        assert view.id.epoch == 1
        assert isinstance(stage.submit(address, "refused"), NoPrimary)
    view = stage.cluster.newest_view()
    assert view is not None
    assert view.id.epoch == 2
    stage.submit("s4", "accepted")
    stage.run(ms(200))
    assert texts(stage, "s5") == ["accepted"]
    stage.finish()


def test_a_failure_shrinks_the_ring_and_never_the_electorate(discipline: str) -> None:
    """R1: majorities of a shrinking view wedge or fork."""
    stage = Stage.born(5, discipline=discipline)
    stage.cluster.crash("s5")
    stage.run(ms(3000))
    stage.cluster.crash("s4")
    stage.run(ms(3000))
    view = stage.cluster.newest_view()
    assert view is not None
    assert len(view.ring) == 3
    assert len(view.electorate) == 5
    stage.finish()


def test_of_competing_initiators_one_wins_and_the_others_step_back(discipline: str) -> None:
    """RMP §4.4: an initiator that meets a larger version number aborts its own reformation."""
    stage = Stage.born(5, discipline=discipline)
    start = mark(stage)
    stage.cluster.crash(stage.token_site().address)
    stage.run(ms(3000))
    assert len({site for site, _ in sent(stage, RecoveryStart, start)}) > 1
    assert sent(stage, RecoveryAbort, start)
    views = {stage.process(p.address).view for p in stage.cluster.live()}
    assert len(views) == 1
    stage.finish()


def test_a_later_initiator_completes_the_install_that_was_accepted(discipline: str) -> None:
    """R3, where RMP's two-phase commit can commit two lists when the initiator dies half-way."""
    stage = Stage.born(5, discipline=discipline)
    stage.cluster.crash(stage.token_site().address)
    start = mark(stage)
    stage.until(lambda: bool(sent(stage, RecoveryNewList, start)), "someone proposes")
    initiator, proposal = sent(stage, RecoveryNewList, start)[0]
    stage.run(ms(1) + 1)
    victim = next(p for p in stage.cluster.live() if p.member.site == initiator)
    stage.cluster.crash(victim.address)
    stage.run(ms(3000))
    for process in stage.cluster.live():
        installed = [view for _, view in stage.journal.views[process.member.site] if view.id.epoch == 2]
        assert installed == [proposal.order.view]
    stage.finish()


def test_who_promised_states_no_holds(discipline: str) -> None:
    """R4: who promised makes no hold statement in the old epoch."""
    stage = Stage.born(3, discipline=discipline)
    start = mark(stage)
    stage.cluster.crash(stage.token_site().address)
    stage.run(ms(2000))
    votes = [vote for _, vote in sent(stage, RecoveryVote, start)]
    assert votes
    assert all(vote.head.held == 0 and vote.head.received == 0 for vote in votes)
    stage.finish()


def test_unordered_data_is_ordered_in_the_next_epoch_under_its_own_id(discipline: str) -> None:
    """R15 (iRBP §4.3.2, same-view delivery): nothing accepted is silently dropped or doubled."""
    stage = Stage.born(3, discipline=discipline)
    holder = stage.token_site().address
    stage.cluster.crash(holder)
    one, other = [a for a in stage.addresses if a != holder]
    stage.submit(one, "a")
    stage.submit(other, "b")
    stage.run(ms(100))
    stage.submit(one, "c")
    stage.run(ms(2000))
    assert sorted(texts(stage, one)) == ["a", "b", "c"]
    assert texts(stage, one) == texts(stage, other)
    stage.finish()
