"""A tiny attack on a real ring: nothing gets in, and every datagram is accounted for. Speed is not judged."""

import json
from array import array
from random import Random

import pytest
from typer.testing import CliRunner

from bench.attack import AtSite, AttackPlan, Judge
from bench.attacker import Forger, Kind, Overheard
from bench.errors import BenchError
from bench.tap import Heard, Made
from cli.main import app
from ordering.packets import Batch, Confirm, Data, Head
from ordering.qos import MAJORITY
from ordering.sealing import Keyring
from ordering.views import SiteId
from ordering.wire import Wire

DATAGRAMS = 2_000
KEYRING = Keyring((b"k" * 32,))
HEAD = Head(1, 2, SiteId(7), 9, 1, 0, 0, 0, 0)


# -- the whole -----------------------------------------------------------------------------------


def test_when_a_ring_is_attacked_then_nothing_is_accepted_and_everything_is_accounted_for() -> None:
    words = ["bench", "attack", "--datagrams", str(DATAGRAMS), "--rate", "4000", "--rounds", "2", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    values = shown["values"]
    assert list(values["checks"].values()) == [True] * 5
    assert values["attack"]["kinds"] == {kind: DATAGRAMS // len(Kind) for kind in Kind}
    sites = values["sites"].values()
    assert sum(site["sent"] for site in sites) == DATAGRAMS
    for site in sites:
        assert site["accepted"] == 0
        assert site["genuine"] > 0
        assert site["sent"] - site["kernel_drops"] <= site["dropped"] + site["strayed"] <= site["sent"]
        assert {"forged", "replayed", "unsealed", "truncated", "foreign", "oversized"} <= set(site["reasons"])
    assert values["calm"]["delivered"] > 0
    assert values["attacked"]["delivered"] > 0
    assert "attacked_to_calm" in shown["ratios"]


@pytest.mark.parametrize("words", [["--datagrams", "200", "--rounds", "50"], ["--size", "5"]])
def test_when_an_attack_makes_no_sense_then_nothing_is_started(words: list[str]) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bench", "attack", *words])
    assert done.exit_code == 2, done.output
    assert words[0] in done.output


def test_when_a_plan_has_no_datagram_of_some_kind_then_it_is_refused() -> None:
    AttackPlan(datagrams=40, rounds=4).check()
    with pytest.raises(BenchError, match="datagrams"):
        AttackPlan(datagrams=39, rounds=4).check()


# -- what the attacker makes ---------------------------------------------------------------------


def test_when_the_forger_makes_datagrams_then_who_has_the_key_refuses_all_of_every_kind() -> None:
    sender = Wire(KEYRING)
    receivers = [Wire(KEYRING, lambda head: head.group == HEAD.group) for _ in range(2)]
    forger = Forger(3, Random(7))
    for number in range(1, 40):
        batch = Batch(HEAD.sender, HEAD.boot, number, MAJORITY, (bytes(100 * number),))
        datagram = sender.pack(Data(HEAD, batch) if number % 2 else Confirm(HEAD))
        assert all(receiver.unpack(datagram) is not None for receiver in receivers)
        forger.overheard.append(Overheard(datagram, (0, 1)))
    genuine = {known.datagram for known in forger.overheard}
    seen: dict[Kind, int] = dict.fromkeys(Kind, 0)
    for _ in range(3_000):
        kind, place, datagram = forger.next()
        seen[kind] += 1
        assert (kind in {Kind.REPLAYED, Kind.MISDIRECTED}) == (datagram in genuine)
        assert (kind is Kind.MISDIRECTED) <= (place == 2)
        if place < 2:
            assert receivers[place].unpack(datagram) is None, kind
    assert set(seen.values()) == {300}


# -- judging -------------------------------------------------------------------------------------

ADDRESSES = ("a", "b", "c")


def heard(site: int, *entries: tuple[int, int, int]) -> Heard:
    senders, counters, checks = zip(*entries, strict=True) if entries else ((), (), ())
    columns = (array("Q", senders), array("Q", counters), array("I", checks))
    return Heard(site, *columns, 0, {}, 0, 0, [(1, 0)], 0)


def made(site: int, *entries: tuple[int, tuple[str, ...]]) -> Made:
    routes = list(dict.fromkeys(to for _, to in entries))
    numbers = array("I", [routes.index(to) for _, to in entries])
    return Made(site, array("I", [check for check, _ in entries]), numbers, routes)


@pytest.mark.parametrize(
    ("verdict", "receiver", "entries"),
    [
        ("genuine", 1, [(1, 1, 50)]),
        ("genuine", 2, [(1, 2, 60)]),
        ("strayed", 1, [(1, 2, 60)]),
        ("mirrored", 0, [(1, 2, 60)]),
        ("repeated", 1, [(1, 1, 50), (1, 1, 50)]),
        ("invented", 1, [(1, 1, 51)]),  # altered
        ("invented", 1, [(1, 3, 50)]),  # a number that was not used
        ("invented", 1, [(1, 0, 50)]),
        ("invented", 1, [(9, 1, 50)]),  # a sender nobody is
    ],
)
def test_when_books_are_compared_then_each_entry_gets_its_verdict(
    verdict: str, receiver: int, entries: list[tuple[int, int, int]]
) -> None:
    judge = Judge(ADDRESSES)
    reports = [heard(site, *(entries if site == receiver + 1 else ())) for site in (1, 2, 3)]
    judge.judge(reports, [made(1, (50, ("b", "c")), (60, ("c",))), made(2), made(3)])
    assert judge.verdicts[receiver][verdict] == 1
    assert judge.verdicts[receiver].total() == len(entries)


def test_when_books_come_in_parts_then_a_repetition_is_noticed_over_them() -> None:
    judge = Judge(ADDRESSES)
    judge.judge([heard(1), heard(2, (1, 1, 50)), heard(3)], [made(1, (50, ("b",))), made(2), made(3)])
    judge.judge(
        [heard(1), heard(2, (1, 2, 70), (1, 1, 50)), heard(3)], [made(1, (70, ("b",))), made(2), made(3)]
    )
    assert judge.verdicts[1] == {"genuine": 2, "repeated": 1}


@pytest.mark.parametrize(
    ("dropped", "kernel_drops", "strayed", "expected"),
    [
        (10, 0, 0, True),
        (9, 0, 0, False),
        (9, 1, 0, True),
        (9, 0, 1, True),
        (11, 0, 0, False),
        (8, 1, 0, False),
    ],
)
def test_when_a_datagram_is_missing_then_it_is_not_accounted_for(
    dropped: int, kernel_drops: int, strayed: int, expected: bool
) -> None:
    site = AtSite(
        sent=10,
        dropped=dropped,
        kernel_drops=kernel_drops,
        accepted=0,
        strayed=strayed,
        genuine=5,
        reasons={},
    )
    assert site.is_accounted_for is expected
