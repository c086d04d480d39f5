"""RMP §4.3, membership view changes, with rules R5 to R9 and R17 where they depart from it."""

from ordering.effects import Ending
from ordering.errors import NotMember
from ordering.packets import ChangeKind, ListChangeRequest, NewList, RecoveryStart
from ordering.simulator.stage import Stage
from ordering.views import View
from tests.paper.watching import mark, ms, orders, sent, texts


def view_of(stage: Stage, address: str) -> View:
    view = stage.process(address).view
    assert view is not None
    return view


def test_a_joiner_is_placed_directly_after_the_token_site() -> None:
    """RMP §4.3: "a new member is always added … directly after the current token site"."""
    stage = Stage.born(3)
    start = mark(stage)
    joiner = stage.cluster.start("s4", founder=True)
    stage.run(ms(100))
    new_list = next(order for order in orders(stage, start) if order.view is not None)
    assert new_list.view is not None
    assert new_list.view.successor(new_list.orderer) == joiner.member.site
    assert new_list.next_site == joiner.member.site, "it takes an immediate role"
    stage.finish()


def test_a_membership_change_without_failure_costs_one_group_message(discipline: str) -> None:
    """RMP §1 (5): non-failure changes cost a single group message, and no recovery."""
    stage = Stage.born(4, discipline=discipline)
    start = mark(stage)
    stage.leave("s4")
    stage.run(ms(100))
    assert len([order for order in orders(stage, start) if order.view is not None]) == 1
    assert not sent(stage, RecoveryStart, start)
    assert view_of(stage, "s1").id.epoch == 1
    stage.cluster.crash("s4")
    stage.finish()


def test_a_joiner_repeats_its_request_until_a_new_list_names_it(discipline: str) -> None:
    """RMP §4.3: "it will repeatedly send the List Change Request packet"."""
    stage = Stage.born(3, discipline=discipline)
    joiner = stage.cluster.start("s4", founder=True)
    stage.drop("s4", "*", ListChangeRequest, 3)
    stage.drop("*", "s4", NewList, 1)
    start = mark(stage)
    stage.run(ms(1000))
    requests = [
        packet for site, packet in sent(stage, ListChangeRequest, start) if site == joiner.member.site
    ]
    assert len([packet for packet in requests if packet.change.kind is ChangeKind.JOIN]) > 3
    assert joiner.member.site in view_of(stage, "s1").ring
    stage.finish()


def test_a_lone_joiner_founds_nothing() -> None:
    """R9, departing from RMP §4.3, where a joiner without an answer "creates a new group"."""
    stage = Stage.born(3)
    for address in ("s1", "s2", "s3"):
        stage.cluster.pause(address)
    joiner = stage.cluster.start("s4", founder=True)
    stage.run(ms(5000))
    assert joiner.view is None
    assert isinstance(stage.submit("s4", "hello"), NotMember)
    stage.finish()


def test_a_group_is_born_only_when_all_founders_are_there(discipline: str) -> None:
    """R9: a chain is born once, when all configured founders say that they were never members."""
    stage = Stage(Stage.born(3, discipline=discipline).cluster.config)
    stage.cluster.start("s1", founder=True)
    stage.cluster.start("s2", founder=True)
    stage.run(ms(5000))
    assert all(process.view is None for process in stage.cluster.live())
    stage.cluster.start("s3", founder=True)
    stage.run(ms(1000))
    assert all(process.view is not None for process in stage.cluster.live())
    stage.finish()


def test_a_leaver_stays_until_its_messages_are_ordered(discipline: str) -> None:
    """RMP §4.3: "it must remain a member … until after it has seen and committed the new view"."""
    stage = Stage.born(4, discipline=discipline)
    leaver = stage.process("s4")
    stage.submit("s4", "farewell")
    stage.leave("s4")
    stage.run(ms(100))
    assert texts(stage, "s4") == ["farewell"]
    assert stage.journal.ended[leaver.member.site].ending is Ending.LEFT
    assert [texts(stage, address) for address in ("s1", "s2", "s3")] == [["farewell"]] * 3
    assert len(view_of(stage, "s1").electorate) == 3
    stage.cluster.crash("s4")
    stage.finish()


def test_a_newcomer_votes_only_after_an_ordered_promotion(discipline: str) -> None:
    """R7: NewList, state transfer, Promote; never a voter without the state."""
    stage = Stage.born(3, discipline=discipline)
    stage.submit("s1", "before")
    stage.run(ms(50))
    joiner = stage.cluster.start("s4", founder=True)
    stage.run(ms(500))
    site = joiner.member.site
    views = [view for _, view in stage.journal.views[stage.process("s1").member.site] if view.has(site)]
    assert site in views[0].learners
    assert site in views[-1].electorate
    assert joiner.replica.digest == stage.process("s1").replica.digest
    stage.finish()


def test_a_restarted_site_replaces_its_former_self(discipline: str) -> None:
    """R6: a memory-mode restart is a new voter that enters by replacing the old one."""
    stage = Stage.born(3, discipline=discipline)
    old = stage.process("s2").member.site
    stage.cluster.crash("s2")
    stage.cluster.restart("s2")
    stage.run(ms(3000))
    new = stage.process("s2").member.site
    electorate = view_of(stage, "s1").electorate
    assert new in electorate
    assert old not in electorate
    assert len(electorate) == 3
    stage.finish()


def test_a_removed_site_stops_serving(discipline: str) -> None:
    """iRBP §4.3.4, R17: a process that is not in the new view commits suicide."""
    stage = Stage.born(4, discipline=discipline)
    removed = stage.process("s4")
    stage.remove("s4", at="s1")
    stage.run(ms(60))
    assert stage.journal.ended[removed.member.site].ending is Ending.REMOVED
    stage.finish()
