"""Trials: what is measured, and that it depends on the trial alone."""

from random import Random
from typing import Any

import pytest

from ordering.effects import Deliver, Effect
from ordering.errors import ConfigurationError
from ordering.simulator.checkers.base import Checker
from ordering.simulator.cluster import Cluster
from ordering.simulator.measurement import Measurement, SteadyLoad, Trial, main, measure
from ordering.simulator.mutants import MUTANTS, planted
from ordering.simulator.process import Process

DISCIPLINES = pytest.mark.parametrize("discipline", ["rotating", "sequencer"])


class Counted(Checker):
    """Counts deliveries by site, without any of the measurement's bookkeeping."""

    def __init__(self) -> None:
        super().__init__()
        self.delivered: dict[str, int] = {}

    def on_effect(self, process: Process, effect: Effect, now: int) -> None:
        if isinstance(effect, Deliver):
            count = sum(len(delivery.messages) for delivery in effect.deliveries)
            self.delivered[process.address] = self.delivered.get(process.address, 0) + count


@DISCIPLINES
def test_when_nothing_is_lost_then_all_messages_are_delivered_at_all_sites_and_stable(
    discipline: str,
) -> None:
    counted = Counted()
    figures = measure(Trial(seed=1, discipline=discipline, sites=3, seconds=1), (counted,))
    assert figures.violations == []
    assert figures.messages > 50
    assert set(counted.delivered.values()) == {figures.messages}
    assert len(counted.delivered) == 3
    assert (figures.undelivered, figures.refused, figures.lost, figures.views) == (0, 0, 0, 1)
    assert figures.at_source.samples == figures.at_all.samples == figures.stable.samples == figures.messages
    assert figures.packets == sum(figures.kinds.values()) >= figures.messages + figures.overhead
    assert figures.datagrams > figures.packets


@DISCIPLINES
def test_when_a_message_is_followed_then_it_reaches_its_source_all_sites_and_stability_in_turn(
    discipline: str,
) -> None:
    figures = measure(Trial(seed=2, discipline=discipline, seconds=1))
    source, everywhere, stable = figures.at_source, figures.at_all, figures.stable
    assert source.mean_ms is not None
    assert everywhere.mean_ms is not None
    assert stable.mean_ms is not None
    # A message needs one way of 0.3 to 0.5 ms and its bytes' time on the wire at least.
    assert 0.3 < source.mean_ms <= everywhere.mean_ms
    assert source.mean_ms < stable.mean_ms


def test_when_a_trial_is_played_twice_then_its_figures_are_equal_and_another_seed_has_others() -> None:
    trial = Trial(seed=5, loss=0.05, seconds=1)
    assert measure(trial) == measure(trial)
    assert measure(trial) != measure(Trial(seed=6, loss=0.05, seconds=1))


@DISCIPLINES
def test_when_few_messages_are_sent_then_what_the_birth_took_is_not_counted(discipline: str) -> None:
    figures = measure(Trial(seed=1, discipline=discipline, sites=5, rate=1, seconds=1))
    assert figures.token_passes == figures.kinds["order"] > 0
    assert figures.datagrams <= 4 * figures.packets


def test_when_a_measurement_begins_then_only_what_follows_counts() -> None:
    cluster = Cluster(Trial(seed=1).config(), 1, [])
    measurement, load = Measurement(5), SteadyLoad(cluster, Random(1), Trial(seed=1))
    cluster.network.sent, cluster.network.lost, measurement.retransmissions = 90, 7, 3
    measurement.begin(cluster)
    cluster.network.sent += 10
    figures = measurement.figures(cluster, load, [])
    assert (figures.datagrams, figures.lost, figures.retransmissions) == (10, 0, 0)


def test_when_packets_are_lost_then_they_are_sent_again_and_everything_arrives_later() -> None:
    calm = measure(Trial(seed=3, seconds=1))
    lossy = measure(Trial(seed=3, seconds=1, loss=0.1))
    assert lossy.violations == []
    assert lossy.undelivered == 0
    assert lossy.lost > 0.05 * lossy.datagrams
    assert calm.retransmissions == 0 < lossy.retransmissions
    assert calm.at_all.p99_ms is not None
    assert lossy.at_all.p99_ms is not None
    assert lossy.at_all.p99_ms > calm.at_all.p99_ms


def test_when_unreliable_packets_are_lost_then_they_stay_undelivered() -> None:
    figures = measure(Trial(seed=1, qos="unreliable", senders=1, sites=3, loss=0.1, seconds=2))
    assert figures.violations == []
    assert 0 < figures.undelivered < figures.messages
    assert figures.stable.p50_ms is None


def test_when_a_message_exceeds_a_packet_then_its_pieces_are_no_overhead() -> None:
    figures = measure(Trial(seed=1, message_bytes=14_000, rate=10, sites=3, seconds=2))
    assert figures.violations == []
    assert figures.kinds["data"] >= 10 * figures.messages
    orders = figures.kinds["order"] + figures.kinds["confirm"] + figures.kinds["probe"]
    assert orders <= figures.overhead <= orders + figures.retransmissions


def test_when_senders_are_few_then_only_they_send() -> None:
    class Sources(Checker):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[int] = set()

        def on_effect(self, process: Process, effect: Effect, now: int) -> None:
            if isinstance(effect, Deliver):
                self.found |= {delivery.source for delivery in effect.deliveries}

    sources = Sources()
    measure(Trial(seed=1, senders=2, seconds=1), (sources,))
    assert len(sources.found) == 2


def test_when_the_engine_is_broken_then_the_figures_tell_of_violations() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "deliver before a majority holds")
    with planted(mutant):
        figures = measure(Trial(seed=1, seconds=1, loss=0.05))
    assert figures.violations


@pytest.mark.parametrize(
    "wrong",
    [{"sites": 1}, {"senders": 6}, {"rate": 0}, {"loss": 1.0}, {"message_bytes": 3}, {"discipline": "x"}],
)
def test_when_a_trial_makes_no_sense_then_it_says_which_setting(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Trial(seed=0, **wrong)


def test_when_a_trial_is_replayed_from_its_line_then_the_same_comes_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial = Trial(seed=4, sites=3, loss=0.01, qos="k=1", message_bytes=64, seconds=1)
    assert main(trial.replay.split()[3:]) == 0
    assert f'"messages": {measure(trial).messages},' in capsys.readouterr().out


def test_when_trials_differ_then_their_names_do() -> None:
    others: list[dict[str, Any]] = [
        {"sites": 3},
        {"loss": 0.1},
        {"rate": 7},
        {"qos": "total"},
        {"senders": 1},
    ]
    assert len({Trial(seed=1, **other).replay for other in [{}, *others]}) == 6
