"""What the narrator tells of a run."""

import pytest

from ordering.simulator.narrator import Line, Narrator, Topic
from ordering.simulator.plan import FaultMix, Plan
from ordering.simulator.run import simulate


def narrate(plan: Plan, verbosity: int = 1) -> list[Line]:
    lines: list[Line] = []
    simulate(plan, (Narrator(lines.append, verbosity),))
    return lines


CALM = Plan(seed=1, sites=3, faults=FaultMix.NONE, seconds=2, rate=20)


def test_when_a_calm_group_runs_then_its_life_is_told_in_order() -> None:
    lines = narrate(CALM)
    texts = [line.text for line in lines]
    assert [line.now for line in lines] == sorted(line.now for line in lines)
    assert texts.count("starts") == 3
    first_view = next(line for line in lines if line.topic is Topic.VIEW)
    assert "view 1.0: ring" in first_view.text
    for word in ("electorate", "external -", "learners -"):
        assert word in first_view.text
    for topic in (Topic.SUBMIT, Topic.ORDER, Topic.TOKEN, Topic.DELIVERY, Topic.RECOVERY):
        assert any(line.topic is topic for line in lines), topic


def test_when_a_site_is_named_then_address_and_incarnation_are_shown() -> None:
    names = {line.site for line in narrate(CALM)}
    assert {name.partition("#")[0] for name in names} == {"s1", "s2", "s3", "-"}
    assert {name.partition("#")[2] for name in names} == {"1", "2", "3", ""}


def test_when_told_twice_then_the_lines_are_equal() -> None:
    assert narrate(CALM) == narrate(CALM)


def test_when_every_packet_is_told_then_routine_ones_are_among_them() -> None:
    kinds = {line.text.split()[0] for line in narrate(CALM, 2) if line.topic is Topic.PACKET}
    assert {"Data", "Ack", "Confirm", "Probe", "Hello", "NewList"} <= kinds
    assert not any(line.topic is Topic.PACKET for line in narrate(CALM))


def test_when_told_then_the_trace_is_the_same_as_untold() -> None:
    plan = Plan(seed=4, seconds=3)
    assert simulate(plan, (Narrator(lambda line: None, 2),)).trace == simulate(plan).trace


@pytest.fixture(scope="module")
def stormy() -> list[Line]:
    return [line for seed in range(4) for line in narrate(Plan(seed=seed))]


@pytest.mark.parametrize(
    "words",
    [
        "crashes; its memory is gone",
        "restarts with an empty memory",
        "is paused",
        "goes on after a pause",
        "has a clock that runs at",
        "asks to JOIN",
        "asks to PROMOTE",
        "polls the others",
        "agrees in poll round",
        "asks for promises to end epoch",
        "promises ballot",
        "proposes in ballot",
        "accepts ballot",
        "announces view",
        "takes over the state of",
        "installs view",
    ],
)
def test_when_faults_strike_then_they_and_their_repair_are_told(stormy: list[Line], words: str) -> None:
    assert any(words in line.text for line in stormy)


def test_when_an_install_is_announced_again_then_it_is_not_told_again() -> None:
    announced = [line.text for line in narrate(Plan(seed=1)) if line.text.startswith("announces view")]
    assert announced
    assert len(announced) == len(set(announced))
