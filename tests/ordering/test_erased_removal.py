"""A removal that a view change erases: the site was never gone, and neither was what it had sent."""

import pytest

from ordering.config import MS
from ordering.effects import Abandoned, Ending, EndMembership
from ordering.packets import Data
from ordering.simulator.stage import Stage
from tests.paper.watching import texts


@pytest.mark.parametrize("durable", [0, 1], ids=["memory", "durable"])
@pytest.mark.parametrize("reaches_others", [True, False], ids=["others have it", "nobody has it"])
def test_when_a_removal_is_erased_then_its_subject_goes_on_with_its_messages_and_numbers(
    durable: int, reaches_others: bool
) -> None:
    """The token site removes a site and tells only that site, which then forgets what it had sent without a
    slot; the others go on without the block. Where they have the message it has got a slot meanwhile."""
    stage = Stage.born(5, durable=durable)
    orderer = stage.token_site().address
    subject, *rest = [address for address in stage.addresses if address != orderer]
    process = stage.process(subject)
    stage.drop(subject, orderer if reaches_others else "*", Data, 10_000)
    assert stage.submit(subject, "sent before") is None
    for other in rest:
        stage.cut(orderer, other)
    stage.run(2 * MS)
    stage.remove(subject, at=orderer)
    stage.until(lambda: not process.engine.site.view.has(process.member.site), "it knows of its removal")
    stage.isolate(orderer)
    stage.isolate(subject)
    witness = stage.process(rest[0])
    stage.until(lambda: witness.engine.site.epoch > 1, "the others go on")
    if reaches_others:
        stage.until(lambda: texts(stage, rest[0]) == ["sent before"], "they order what they have")
    stage.network.mend_all()
    stage.isolate(orderer)
    stage.until(lambda: process.engine.site.epoch > 1, "it follows them")
    assert stage.submit(subject, "sent after") is None
    stage.finish()
    assert {tuple(texts(stage, address)) for address in stage.addresses} == {("sent before", "sent after")}


@pytest.mark.parametrize("durable", [0, 1], ids=["memory", "durable"])
def test_when_a_site_leaps_into_a_view_without_it_then_it_names_what_it_cannot_vouch_for(
    durable: int,
) -> None:
    """Its message had a slot that the others erased; slots of that number are final with them by now."""
    stage = Stage.born(5, durable=durable, retain_slots=4)
    source = stage.token_site().address
    process = stage.process(source)
    witness = next(address for address in stage.addresses if address != source)
    stage.isolate(source)
    assert stage.submit(source, "erased") is None
    stage.until(lambda: stage.process(witness).engine.site.epoch > 1, "the others go on")
    stage.run(100 * MS)
    stage.network.mend_all()
    for kind in ("NewList", "Ack", "NotMember", "Collected"):
        stage.drop("*", source, kind, 10_000)
    stage.drop(source, "*", "ListChangeRequest", 10_000)
    stage.until(lambda: process.engine.retransmission.behind_epoch > 1, "it hears of the later epoch")
    stage.isolate(source)
    stage.remove(source, at=witness)
    stage.until(lambda: not stage.process(witness).engine.site.view.has(process.member.site), "it is removed")
    for number in range(15):
        stage.submit(witness, f"later {number}")
        stage.run(20 * MS)
    stage.network.mend_all()
    stage.drop("*", source, "NotMember", 10_000)
    mine = [Abandoned(1, 1, ordered=True), EndMembership(Ending.REMOVED)]
    stage.until(
        lambda: (
            mine
            == [
                effect
                for site, effect in stage.journal.effects
                if site == process.member.site and isinstance(effect, Abandoned | EndMembership)
            ]
        ),
        "it ends, and says what of",
    )
    assert process.engine.site.counters["leaps"] == 1
