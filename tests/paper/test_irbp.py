"""iRBP: failure scenarios (§3.2), detectors (§4.1), the lower bound (§4.2), external processes (§4.4.3)."""

from ordering.packets import Poll
from ordering.qos import TOTALLY_ORDERED
from ordering.simulator.stage import Stage
from tests.paper.watching import mark, ms, sent, texts


def heir_of(stage: Stage) -> str:
    """Where the token goes next."""
    holder = stage.token_site()
    heir = holder.engine.site.view.successor(holder.member.site)
    return next(p.address for p in stage.cluster.live() if p.member.site == heir)


def test_the_failure_of_a_simple_process_does_not_stop_the_protocol(discipline: str) -> None:
    """iRBP §3.2.1 a: its failure "does not affect immediately the protocol"."""
    stage = Stage.born(5, discipline=discipline)
    special = (stage.token_site().address, heir_of(stage))
    simple, source = [a for a in stage.addresses if a not in special][-2:]
    stage.cluster.crash(simple)
    stage.submit(source, "hello")
    stage.run(ms(20))
    assert texts(stage, source) == ["hello"]
    assert stage.process(source).engine.site.epoch == 1
    stage.finish()


def test_the_active_detector_names_the_failed_next_site() -> None:
    """iRBP §4.1: the first model monitors "another process", the next one in the ring."""
    stage = Stage.born(5)
    holder, heir = stage.token_site(), heir_of(stage)
    stage.cluster.crash(heir)
    start = mark(stage)
    stage.submit(holder.address, "hello")
    stage.run(ms(600))
    poller, poll = sent(stage, Poll, start)[0]
    assert poller == holder.member.site
    assert poll.suspects == (stage.process(heir).member.site,)
    stage.finish()


def test_the_passive_detector_names_nobody() -> None:
    """iRBP §4.1: the second model finds the "absence of activity" when the token is lost."""
    stage = Stage.born(5)
    stage.cluster.crash(stage.token_site().address)
    start = mark(stage)
    stage.run(ms(1500))
    assert sent(stage, Poll, start)
    assert all(poll.suspects == () for _, poll in sent(stage, Poll, start))
    assert all(process.engine.site.epoch == 2 for process in stage.cluster.live())
    stage.finish()


def test_the_passive_detector_is_the_more_patient_one() -> None:
    """iRBP §4.1: "the second model of detection can be tuned with conservative timeouts"."""
    active = Stage.born(3)
    active.cluster.crash(heir_of(active))
    active.submit(active.token_site().address, "hello")
    active.until(lambda: all(p.engine.site.epoch == 2 for p in active.cluster.live()), "epoch 2")
    passive = Stage.born(3)
    passive.cluster.crash(passive.token_site().address)
    passive.until(lambda: all(p.engine.site.epoch == 2 for p in passive.cluster.live()), "epoch 2")
    assert active.now < passive.now
    active.finish()
    passive.finish()


def test_one_flaky_site_does_not_freeze_a_healthy_ring(discipline: str) -> None:
    """R4: promises are asked for only after a poll in which a majority agrees."""
    stage = Stage.born(5, discipline=discipline, suspect_ms=2000, slow_ms=4000)
    flaky = next(a for a in stage.addresses if a not in (stage.token_site().address, heir_of(stage)))
    stage.cut("*", flaky)
    start = mark(stage)
    stage.run(ms(900))
    assert {site for site, _ in sent(stage, Poll, start)} == {stage.process(flaky).member.site}
    stage.network.mend_all()
    stage.submit("s1", "hello")
    stage.run(ms(100))
    assert [texts(stage, a) for a in stage.addresses] == [["hello"]] * 5
    assert stage.process(flaky).engine.site.epoch == 1
    stage.finish()


def test_majority_delivery_waits_until_one_correct_process_more_has_the_message(discipline: str) -> None:
    """iRBP §4.2: tolerating f failures needs f+1 copies before delivery."""
    stage = Stage.born(3, discipline=discipline)
    holder = stage.token_site().address
    stage.isolate(holder)
    stage.submit(holder, "alone")
    stage.run(ms(1000))
    assert texts(stage, holder) == []
    stage.finish()


def test_delivery_below_a_majority_may_be_taken_back(discipline: str) -> None:
    """iRBP §4.2, figure 26: the isolated sequencer delivered what the others never saw."""
    stage = Stage.born(3, discipline=discipline)
    holder = stage.token_site()
    others = [a for a in stage.addresses if a != holder.address]
    stage.isolate(holder.address)
    stage.submit(holder.address, "early", qos=TOTALLY_ORDERED)
    stage.submit(others[0], "meanwhile")
    assert texts(stage, holder.address) == ["early"]
    stage.run(ms(2000))
    stage.network.mend_all()
    stage.run(ms(1000))
    assert len(stage.journal.retracted[holder.member.site]) == 1
    assert texts(stage, holder.address) == ["meanwhile", "early"]
    assert texts(stage, others[0]) == texts(stage, holder.address)
    stage.finish()


def test_external_processes_still_receive_send_and_hold(discipline: str) -> None:
    """iRBP §4.4.3, R1: broadcasts go to the whole group, the token only round the core."""
    stage = Stage.born(3, discipline=discipline, return_ms=60_000)
    external = next(a for a in stage.addresses if a not in (stage.token_site().address, heir_of(stage)))
    core = [a for a in stage.addresses if a != external]
    stage.isolate(external)
    stage.run(ms(2000))
    stage.network.mend_all()
    stage.run(ms(500))
    view = stage.process(external).view
    assert view is not None
    assert stage.process(external).member.site in view.external
    stage.submit(external, "from outside the ring")
    stage.submit(core[0], "from inside")
    stage.run(ms(100))
    assert len(texts(stage, external)) == 2
    assert texts(stage, external) == texts(stage, core[0])
    stage.check()


def test_an_external_voter_counts_for_a_majority(discipline: str) -> None:
    """R1, R3: with one core voter gone, the external one's hold and vote make the majority."""
    stage = Stage.born(3, discipline=discipline, return_ms=60_000)
    external = next(a for a in stage.addresses if a not in (stage.token_site().address, heir_of(stage)))
    stage.isolate(external)
    stage.run(ms(2000))
    stage.network.mend_all()
    stage.run(ms(500))
    holder = stage.token_site().address
    other = next(a for a in stage.addresses if a not in (holder, external))
    stage.cluster.crash(other)
    stage.submit(holder, "hello")
    stage.run(ms(2000))
    assert texts(stage, holder) == ["hello"]
    assert texts(stage, external) == ["hello"]
    stage.finish()


def test_an_external_process_fetches_what_it_missed(discipline: str) -> None:
    """iRBP §4.4.3, figure 33: "is its own responsibility to … request message retransmissions"."""
    stage = Stage.born(3, discipline=discipline)
    away = next(a for a in stage.addresses if a != stage.token_site().address)
    stage.isolate(away)
    stage.run(ms(2000))
    source = next(a for a in stage.addresses if a != away)
    for number in range(20):
        stage.submit(source, f"{number}")
        stage.run(ms(5))
    stage.network.mend_all()
    stage.run(ms(1000))
    assert texts(stage, away) == [f"{number}" for number in range(20)]
    stage.finish()


def test_who_comes_back_after_collection_takes_over_the_state_and_keeps_its_vote(discipline: str) -> None:
    """iRBP §4.4.3: "no more in the buffers" obliges the excluded process to commit suicide. Not here."""
    stage = Stage.born(3, discipline=discipline, retain_slots=10)
    away = next(a for a in stage.addresses if a != stage.token_site().address)
    old = stage.process(away)
    stage.isolate(away)
    stage.run(ms(2000))
    source = next(a for a in stage.addresses if a != away)
    for number in range(40):
        stage.submit(source, f"{number}")
        stage.run(ms(5))
    stage.network.mend_all()
    stage.run(ms(5000))
    assert stage.process(away) is old
    assert old.engine.site.counters.get("leaps") == 1
    assert old.member.site in old.engine.site.view.electorate
    assert old.member.site in old.engine.site.view.ring
    assert old.replica.digest == stage.process(source).replica.digest
    stage.finish()


def test_a_deaf_token_site_is_taken_out_of_the_ring(discipline: str) -> None:
    """iRBP §3.2.1 c with a one-way cut: the site is heard, does nothing, and must not block the others."""
    stage = Stage.born(3, discipline=discipline)
    deaf = stage.token_site()
    others = [a for a in stage.addresses if a != deaf.address]
    stage.cut("*", deaf.address)
    stage.submit(others[0], "hello")
    stage.run(ms(10 * stage.cluster.config.detection_ms))
    assert [texts(stage, address) for address in others] == [["hello"]] * 2
    view = stage.process(others[0]).view
    assert view is not None
    assert deaf.member.site not in view.ring
    stage.finish()
