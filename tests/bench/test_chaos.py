"""The chaos battery: its books, its checks on bad histories, its failpoints, and a short real round."""

from collections.abc import Callable, Iterator
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from bench.chaos import rounds
from bench.chaos.books import FILE, Books, Checked, Quotas, Tally
from bench.chaos.checks import check_order, compare_replicas, judge, search_keys
from bench.chaos.failpoints import Arm, Cut, Failpoints, Role, role_of, take_permit
from bench.chaos.history import Called, Ended, History, Notes, Returned, read_history
from bench.chaos.plan import ALL_DOWN_EVERY, Kind, Plan, kind_of, make_plan
from bench.chaos.registers import Recorded, Registers
from bench.chaos.rounds import BAD_ROUNDS_MAX, Campaign, Played, play
from bench.chaos.site import Standing
from bench.errors import BenchError
from cli.main import app
from ordering import Member, SiteId, View, ViewId
from ordering.packets import Ack, Ballot, Descent, Head, NewList, Order, Probe, RecoveryNewList, Run
from rsm import envelope, status
from rsm.linearizability import Operation, Outcome
from rsm.methods import Catalogue
from rsm.state_machine import Context

METHODS = Catalogue(Registers)


# -- histories -----------------------------------------------------------------------------------


def operation(number: int, name: str, arguments: tuple[Any, ...], value: Any, **changes: Any) -> Operation:
    """Called and answered in turn, ten nanoseconds each, at a slot of its own."""
    method = METHODS.query(name) if name in METHODS.queries else METHODS.command(name)
    if not method.mark.is_command:
        bound = method.bind(arguments, {})
    else:
        bound = method.bind((*arguments, 1, number), {})
    made = Operation(
        client=1,
        request=number,
        method=name,
        arguments=msgspec.msgpack.encode(bound),
        call_ns=10 * number,
        return_ns=10 * number + 5,
        outcome=Outcome.OK,
        ts=number,
        reply=envelope.encode_reply(envelope.OkEncoded(value)),
    )
    return msgspec.structs.replace(made, **changes)


def unanswered(operation: Operation) -> Operation:
    return Operation(
        client=operation.client,
        request=operation.request,
        method=operation.method,
        arguments=operation.arguments,
        call_ns=operation.call_ns,
    )


def good() -> list[Operation]:
    rejected = envelope.encode_reply(envelope.RejectedReply("another value is there", "ab"))
    return [
        operation(1, "write", ("k", "a"), ""),
        operation(2, "append", ("k", "b"), "ab"),
        operation(3, "read", ("k",), "ab"),
        operation(4, "swap", ("k", "x", "y"), None, outcome=Outcome.REJECTED, reply=rejected),
        operation(5, "swap", ("k", "ab", "c"), None),
        operation(6, "read", ("k",), "c"),
    ]


ORDER = [(1, 1, 1), (2, 1, 2), (4, 1, 4), (5, 1, 5)]


def history_of(operations: list[Operation], **refused: str) -> History:
    named = {(each.client, each.request): each for each in operations}
    return History(named, {(1, int(name[1:])): why for name, why in refused.items()})


def standing(address: str = "one", order: tuple[int, int] = (4, 7), **changes: Any) -> Standing:
    said = status.ReplicaStatus(
        group="chaos", address=address, site="1", standing=status.Standing.SERVING, mode="durable", applied=9
    )
    return Standing(status=msgspec.structs.replace(said, **changes), order=order)


def problems_of(operations: list[Operation], order: list[tuple[int, int, int]], **refused: str) -> str:
    standings = [standing(order=(len(order), 7))] * 3
    return "\n".join(judge(history_of(operations, **refused), order, standings, 1)[0])


def test_when_a_history_is_good_then_nothing_is_said_and_everything_is_counted() -> None:
    problems, checked = judge(history_of(good()), ORDER, [standing(), standing("two")], 1)
    assert problems == []
    assert checked == Checked(operations=6, acknowledged=6, executed=4, searched=1)


def test_when_an_acknowledged_command_was_not_executed_then_it_is_missed() -> None:
    assert "was answered, but nowhere executed" in problems_of(good()[:2], ORDER[:1])


def test_when_a_command_was_executed_twice_then_both_slots_are_named() -> None:
    assert "was executed twice: at 2 and at 7" in problems_of(good(), [*ORDER, (7, 1, 2)])


def test_when_a_read_returns_an_old_value_then_it_is_found_with_and_without_timestamps() -> None:
    stale = [*good(), operation(7, "read", ("k",), "a", ts=1)]
    found = problems_of(stale, ORDER)
    assert "had returned" in found
    assert "no order explains read('k') → 'a'" in found


def test_when_a_command_of_unknown_outcome_was_executed_then_others_may_see_it() -> None:
    lost = [*good(), unanswered(operation(7, "write", ("k", "z"), "c")), operation(8, "read", ("k",), "z")]
    assert problems_of(lost, [*ORDER, (7, 1, 7)]) == ""
    assert "one machine gives 'c'" in problems_of(lost, ORDER)


def test_when_a_refused_command_was_executed_then_its_caller_was_told_wrong() -> None:
    refused = [*good(), unanswered(operation(7, "write", ("k", "z"), "c"))]
    assert "was refused: NoPrimary" in problems_of(refused, [*ORDER, (7, 1, 7)], _7="NoPrimary")
    assert problems_of(refused, ORDER, _7="NoPrimary") == ""


def test_when_the_order_has_what_nobody_called_or_goes_back_then_it_is_wrong() -> None:
    found = check_order(history_of(good()), [*ORDER, (5, 9, 9)])
    assert found == [
        "slot 5 was executed after slot 5",
        "slot 5: nobody has called request 9 of client 9",
    ]


@pytest.mark.parametrize(
    "other", [standing("two", applied=8), standing("two", digest="ff"), standing("two", order=(4, 8))]
)
def test_when_a_replica_differs_then_it_is_told(other: Standing) -> None:
    (found,) = compare_replicas([standing(), other], ORDER)
    assert "the replicas differ" in found


def test_when_less_was_fetched_than_executed_then_it_is_told() -> None:
    assert "3 commands were fetched" in compare_replicas([standing()], ORDER[:3])[0]


def test_when_there_is_no_time_then_no_key_is_searched() -> None:
    assert search_keys(good(), 1, seconds=-1) == (0, 0, [])


def test_when_a_process_was_killed_then_its_calls_are_unknown_and_its_torn_line_is_passed_over(
    tmp_path: Path,
) -> None:
    first, second = good()[:2]
    notes = Notes(tmp_path / "calls")
    for each in (first, second):
        notes.write(Called(each.client, each.request, each.method, each.arguments, each.call_ns))
    notes.write(Returned(1, 1, Ended.OK, first.return_ns, first.ts, first.reply))
    with (tmp_path / "calls").open("ab") as file:
        file.write(b'["call",1,3,"wri')
    history = read_history([tmp_path / "calls"])
    assert list(history.operations.values()) == [first, unanswered(second)]
    with (tmp_path / "calls").open("ab") as file:
        file.write(b"\n\n")
    with pytest.raises(BenchError, match="calls:4: is no line"):
        read_history([tmp_path / "calls"])


def test_when_the_machine_records_then_pages_give_the_whole_order() -> None:
    machine = Recorded()
    machine.context = Context()
    for number in range(1, 4000):
        machine.context.timestamp = number
        machine.write("k", "v", 1, number)
    fetched: list[tuple[int, int, int]] = []
    while page := machine.executed(len(fetched)):
        assert len(msgspec.msgpack.encode(page)) <= 50_000
        fetched.extend(page)
    assert fetched == machine.order


# -- plans and failpoints ------------------------------------------------------------------------


def test_when_a_seed_is_drawn_again_then_its_faults_are_the_same() -> None:
    plan = make_plan(5, 5, 30)
    assert list(islice(plan.faults(), 50)) == list(islice(make_plan(5, 5, 30).faults(), 50))
    deck = list(islice(plan.faults(), 12))
    assert sorted(fault.role for fault in deck if fault.role and not fault.pause) == sorted(Role)
    assert all(0.5 <= fault.factor <= 10 for fault in deck)


def test_when_three_sites_die_together_then_every_order_of_restart_has_its_turn() -> None:
    seed = ALL_DOWN_EVERY - 1
    assert kind_of(seed) is Kind.ALL_DOWN
    plan = make_plan(seed, 5, 30)
    assert plan.sites == 3
    orders = {restart.order for restart in islice(plan.restarts(), 6)}
    assert orders == set(permutations(range(3)))
    assert make_plan(seed + ALL_DOWN_EVERY, 5, 30).sites == 5


@pytest.mark.parametrize(("sites", "seconds", "word"), [(2, 30.0, "sites"), (3, 1.0, "round-seconds")])
def test_when_a_round_cannot_be_then_it_is_refused(sites: int, seconds: float, word: str) -> None:
    with pytest.raises(BenchError, match=word):
        make_plan(1, sites, seconds)


def test_when_two_come_to_the_place_then_one_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr("bench.chaos.failpoints.os.kill", lambda _, number: struck.append(number))
    permit = str(tmp_path / "permit")
    for number in (1, 2):
        points = Failpoints(number)
        points.arm(Arm(Role.SENDER, Cut.AFTER, permit))
        points.reach(Role.SENDER, Cut.BEFORE)
        points.reach(Role.DONOR, Cut.AFTER)
        assert points.cut(Role.SENDER) is Cut.AFTER
        points.reach(Role.SENDER, Cut.AFTER)
        assert points.cut(Role.SENDER) is None
    assert struck == [9]
    assert Path(permit).read_text() == "1"
    assert not take_permit(permit, "nobody")


def test_when_a_packet_is_sent_to_all_then_it_says_which_role_sends_it() -> None:
    one, two = SiteId(1), SiteId(2)
    head = Head(1, 1, one, 1, 1, 0, 0, 0, 0)
    members = (Member(one, 1, "a:1"), Member(two, 2, "b:1"))
    install = Order(2, 9, one, two, view=View(ViewId(2, 0), members, (one, two), (one, two)))
    block = Order(1, 5, one, two, runs=(Run(one, 1, 1),))
    assert role_of(Ack(head, block)) is Role.TOKEN_SITE
    assert role_of(Ack(head, Order(1, 5, one, two))) is None
    assert role_of(Ack(head, msgspec.structs.replace(block, orderer=two))) is None
    assert role_of(NewList(head, install, Descent(1, 0))) is Role.INITIATOR
    assert role_of(RecoveryNewList(head, Ballot(1, one), install)) is Role.INITIATOR
    assert role_of(Probe(head, ())) is None


# -- books ---------------------------------------------------------------------------------------


def full(kills: int = 1, pauses: int = 1) -> Tally:
    orders = {"".join(order): 1 for order in permutations("123")}
    return Tally(kills={role.value: kills for role in Role}, pauses=pauses, orders=orders)


def test_when_quotas_are_counted_then_only_what_is_missing_is_wanted() -> None:
    quotas = Quotas(kills=2, pauses=1, restarts=1)
    tally = full()
    assert quotas.missing(tally) == {role.value: 1 for role in Role}
    assert quotas.wants(tally, Kind.SINGLE, 5)
    assert not quotas.wants(tally, Kind.ALL_DOWN, 3)
    tally.add(full())
    assert quotas.missing(tally) == {}
    assert quotas.done(tally) == 1.0
    del tally.orders["231"]
    tally.orders |= {"123": 9, "54321": 9}
    assert quotas.missing(tally) == {"all down": 1}
    assert not quotas.wants(tally, Kind.SINGLE, 5)
    assert not quotas.wants(tally, Kind.ALL_DOWN, 5)
    assert quotas.wants(tally, Kind.ALL_DOWN, 3)


def test_when_there_is_nothing_to_do_then_it_is_done() -> None:
    assert Quotas(kills=0, pauses=0, restarts=0).done(Tally()) == 1.0


def test_when_books_are_saved_then_the_campaign_goes_on_with_them(tmp_path: Path) -> None:
    books = Books.load(tmp_path, 5, 40)
    books.add(full(), Checked(operations=7, unknown=1), 2.5, None)
    books.next_seed = 41
    books.save(tmp_path)
    again = Books.load(tmp_path, 5, 1)
    assert again == books
    assert (again.next_seed, again.rounds, again.checked.operations) == (41, 1, 7)
    with pytest.raises(BenchError, match="its campaign has 5 sites"):
        Books.load(tmp_path, 3, 1)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(BenchError, match="cannot be read"):
        Books.load(tmp_path, 5, 1)


# -- the command ---------------------------------------------------------------------------------

Script = Callable[[Plan], Played]


def played(plan: Plan, problems: list[str] | None = None) -> Played:
    return Played(
        plan=plan,
        tally=full(),
        checked=Checked(operations=100, acknowledged=99, unknown=1),
        problems=problems or [],
        seconds=1.0,
        directory=Path("kept"),
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Script]]:
    """Rounds, each as it says."""
    steps: list[Script] = []
    monkeypatch.setattr(rounds, "play", lambda plan, *_: steps.pop(0)(plan))
    yield steps
    assert not steps


def chaos(directory: Path, *words: str) -> tuple[int, str]:
    command = ["chaos", "--directory", str(directory), "--kills", "2", "--pauses", "1", *words]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    return done.exit_code, done.output


def interrupt(_: Plan) -> Played:
    raise KeyboardInterrupt


def test_when_a_campaign_is_interrupted_then_it_goes_on_later(tmp_path: Path, script: list[Script]) -> None:
    script += [played, interrupt]
    code, told = chaos(tmp_path, "--seed", "8")
    assert code == 130
    assert "round 8 (single, 5 sites, 1 s): donor 1" in told
    assert "100 operations checked, 1 of unknown outcome; violations 0" in told
    assert Books.load(tmp_path, 5, 1).next_seed == 9
    script.append(played)
    code, told = chaos(tmp_path)
    assert code == 0
    assert "round 9 (single" in told
    assert "2 rounds" in told


def test_when_something_is_violated_then_the_round_can_be_replayed(
    tmp_path: Path, script: list[Script]
) -> None:
    script += [lambda plan: played(plan, ["slot 3 was lost"]), played]
    code, told = chaos(tmp_path, "--round-seconds", "20")
    assert code == 1
    assert "violation: slot 3 was lost" in told
    assert "rsm chaos --replay 1 --sites 5 --round-seconds 20" in told
    assert chaos(tmp_path)[0] == 1


def test_when_too_much_goes_wrong_then_the_campaign_ends(tmp_path: Path, script: list[Script]) -> None:
    script += [lambda plan: played(plan, ["broken"])] * BAD_ROUNDS_MAX
    assert chaos(tmp_path, "--kills", "99")[0] == 1


def test_when_json_is_asked_for_then_the_summary_is_json(tmp_path: Path, script: list[Script]) -> None:
    script += [played, played]
    command = ["chaos", "--directory", str(tmp_path), "--kills", "2", "--pauses", "1", "--json"]
    done = CliRunner().invoke(app, command)
    summary = msgspec.json.decode(done.stdout)
    assert (summary["met"], summary["violations"], summary["checked"]["operations"]) == (True, 0, 200)
    assert summary["quotas"]["donor"] == {"done": 2, "wanted": 2}


def test_when_books_belong_to_another_campaign_then_the_command_says_so(tmp_path: Path) -> None:
    Books(sites=3, next_seed=1).save(tmp_path)
    code, told = chaos(tmp_path)
    assert code == 2
    assert "go on with --sites 3" in told


# -- real processes ------------------------------------------------------------------------------


def seed_with(*roles: Role) -> int:
    """Of a round that begins with these kills, one after the other."""
    for seed in range(100_000):
        if kind_of(seed) is not Kind.SINGLE:
            continue
        first = list(islice(make_plan(seed, 3, 2.0).faults(), len(roles)))
        if [fault.role for fault in first] == list(roles) and not any(fault.pause for fault in first):
            return seed
    raise AssertionError("no such seed")


def test_when_sites_are_killed_in_their_roles_then_nothing_is_lost_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSM_RECORDING", str(tmp_path / "of another replica"))
    plan = make_plan(seed_with(Role.TOKEN_SITE, Role.LOCK_HOLDER), 3, 60.0)
    done = play(msgspec.structs.replace(plan, callers=1, faults_max=2), tmp_path)
    assert done.problems == []
    assert done.tally.kills == {Role.TOKEN_SITE: 1, Role.LOCK_HOLDER: 1}
    assert done.checked.operations > 50
    assert done.checked.executed > 20
    assert list(tmp_path.iterdir()) == []


def test_when_a_campaign_has_a_directory_then_its_defaults_are_those_of_the_bar() -> None:
    campaign = Campaign()
    assert (campaign.quotas.kills, campaign.quotas.pauses, campaign.sites) == (50, 200, 5)
