"""RMP §4.2, the basic delivery algorithm."""

from ordering.packets import Ack, Data, Nack
from ordering.simulator.stage import Stage
from ordering.state import State
from tests.paper.watching import delivered_after_ms, log, mark, ms, orders, sent, texts


def test_an_ack_orders_several_data_packets_and_passes_the_token() -> None:
    """RMP §4.2: "RMP allows multiple data packets to be timestamped with a single ACK"."""
    stage = Stage.born(3)
    holder = stage.token_site()
    others = [a for a in stage.addresses if a != holder.address]
    start = mark(stage)
    for address in others:
        stage.submit(address, f"one of {address}", f"two of {address}")
    stage.submit(holder.address, "its own")
    stage.run(ms(50))
    made = [order for order in orders(stage, start) if order.runs]
    assert any(len(order.runs) == 2 and order.last_ts - order.ts == 4 for order in made)
    assert [order.next_site for order in made] == [
        holder.engine.site.view.successor(order.orderer) for order in made
    ]
    stage.finish()


def test_an_ack_takes_a_timestamp_and_its_data_packets_the_following_ones() -> None:
    """RMP §4.2: "an ACK that orders two data packets might have a timestamp of 8 … 9 … 10"."""
    stage = Stage.born(3)
    holder = stage.token_site()
    end = holder.engine.site.queue.frontier
    stage.submit(holder.address, "first", "second")
    stage.run(ms(20))
    assert log(stage, holder) == [(end + 2, "first"), (end + 3, "second")]
    stage.finish()


def test_every_site_delivers_the_same_messages_in_the_same_order(discipline: str) -> None:
    """RMP §3.2: totally ordered delivery serializes all packets to a group, at all members alike."""
    stage = Stage.born(4, discipline=discipline)
    for number in range(20):
        for address in stage.addresses:
            stage.submit(address, f"{address}.{number}")
        stage.run(ms(1))
    stage.run(ms(100))
    logs = [log(stage, stage.process(address)) for address in stage.addresses]
    assert len(logs[0]) == 80
    assert all(other == logs[0] for other in logs)
    stage.finish()


def test_messages_of_a_source_keep_their_order(discipline: str) -> None:
    """RMP figure 3.2: totally ordered is source ordered too; also when the first packet is lost."""
    stage = Stage.born(3, discipline=discipline)
    stage.drop("s2", "*", Data)
    stage.submit("s2", "first")
    stage.submit("s2", "second")
    stage.run(ms(200))
    assert [texts(stage, address) for address in stage.addresses] == [["first", "second"]] * 3
    stage.finish()


def test_a_site_accepts_the_token_only_without_gaps() -> None:
    """RMP §4.2: no token "until there are no empty slots in the OrderingQ"."""
    stage = Stage.born(3)
    holder = stage.token_site()
    heir = next(
        p
        for p in stage.cluster.live()
        if p.member.site == holder.engine.site.view.successor(holder.member.site)
    )
    source = next(a for a in stage.addresses if a not in {holder.address, heir.address})
    stage.drop(source, heir.address, Data, 1)
    start = mark(stage)
    stage.submit(source, "missed")
    stage.run(ms(2) + 1)
    assert heir.engine.state is State.GETTING_PACKETS
    assert not [1 for site, _ in sent(stage, Ack, start) if site == heir.member.site]
    stage.run(ms(50))
    assert [1 for site, _ in sent(stage, Ack, start) if site == heir.member.site]
    assert [1 for site, _ in sent(stage, Nack, start) if site == heir.member.site]
    stage.finish()


def test_after_a_rotation_the_token_site_knows_that_messages_are_stable() -> None:
    """RMP §4.2: given N members, once the token was passed N times the message is everywhere."""
    sites = 5
    stage = Stage.born(sites)
    start = mark(stage)
    stage.submit("s1", "hello")
    stage.run(ms(50))
    ordered = next(order for order in orders(stage, start) if order.runs)
    passes = [order for order in orders(stage, start) if order.ts >= ordered.ts]
    assert len(passes) <= sites
    assert stage.token_site().engine.site.stability.stable >= ordered.last_ts
    stage.finish()


def test_a_quiescent_ring_passes_the_token_round_once_and_then_stops() -> None:
    """RMP §4.2: "the token is passed all the way around the ring once and then stops"."""
    stage = Stage.born(5)
    stage.submit("s1", "hello")
    stage.run(ms(50))
    start = mark(stage)
    stage.run(ms(3000))
    assert not sent(stage, Ack, start)
    assert all(
        p.engine.site.stability.stable >= p.engine.site.queue.last_real_ts for p in stage.cluster.live()
    )
    stage.finish()


def test_an_idle_sequencer_sends_no_orders() -> None:
    """RMP §4.2 for the other discipline: a quiet group orders nothing."""
    stage = Stage.born(5, discipline="sequencer")
    start = mark(stage)
    stage.run(ms(3000))
    assert not sent(stage, Ack, start)
    stage.finish()


def test_a_lost_data_packet_is_found_by_the_ack_that_orders_it(discipline: str) -> None:
    """RMP §4.2: "timestamps also provide a global basis for the detection of dropped packets"."""
    stage = Stage.born(5, discipline=discipline)
    stage.drop("s2", "s3", Data)
    start = mark(stage)
    stage.submit("s2", "hello")
    stage.run(ms(30))
    assert texts(stage, "s3") == ["hello"]
    asked = [nack for site, nack in sent(stage, Nack, start) if site == stage.process("s3").member.site]
    assert asked[0].data[0].source == stage.process("s2").member.site
    stage.finish()


def test_a_nack_goes_to_all_and_names_one_site_to_answer(discipline: str) -> None:
    """RMP §4.2: multicast NACKs that request a single responder limit the NACK explosion."""
    stage = Stage.born(5, discipline=discipline)
    for lost in ("s3", "s4"):
        stage.drop("s2", lost, Data)
    start = mark(stage)
    stage.submit("s2", "hello")
    stage.run(ms(40))
    nacks = sent(stage, Nack, start)
    assert nacks
    assert all(nack.named for _, nack in nacks[:1])
    repeats = [packet for site, packet in sent(stage, Data, start) if packet.batch.source != site]
    own = [packet for site, packet in sent(stage, Data, start) if packet.batch.source == site]
    assert len(repeats) + len(own) - 1 <= 2, "one answer to each asker at most"
    stage.finish()


def test_the_ordering_queue_is_trimmed_once_everyone_has_the_messages(discipline: str) -> None:
    """RMP §4.2: "the OrderingQ does not need to contain any more than N ACKs and New List packets"."""
    sites = 3
    stage = Stage.born(sites, discipline=discipline)
    for number in range(100):
        stage.submit("s1", f"{number}")
        stage.run(ms(2))
    stage.run(ms(1000))
    assert all(len(p.engine.site.queue.blocks) <= sites + 1 for p in stage.cluster.live())
    stage.finish()


def test_a_quiet_ring_recovers_its_last_message_at_once(discipline: str) -> None:
    """R16, departing from RMP §4.2's one second: no timer of the idle ring is waited for."""
    stage = Stage.born(3, discipline=discipline, probe_ms=5000, passive_ms=9000)
    victim = next(a for a in stage.addresses if a != stage.token_site().address)
    source = next(a for a in stage.addresses if a != victim)
    stage.cut("*", victim)
    stage.submit(source, "last")
    stage.run(ms(4))
    stage.network.mend_all()
    stage.run(ms(100))
    after = delivered_after_ms(stage, victim, "last")
    assert after is not None
    assert after <= 60
    stage.finish()
