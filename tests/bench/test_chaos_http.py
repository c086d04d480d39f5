"""The chaos battery over HTTP: its checks on bad histories, its models, and a short real round."""

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import msgspec
import pytest
from typer.testing import CliRunner

from apps.kv import KeyValueStore
from apps.kv.types import Add, Compare, Delete, Event, Get, Once, Put
from bench.chaos import rounds
from bench.chaos.books import GATEWAY, Books, Checked, Quotas, Tally
from bench.chaos.failpoints import Role
from bench.chaos.history import Ended, History
from bench.chaos.http.checks import check_watch, judge_http, replayed, search_groups
from bench.chaos.http.draws import COUNTER, REGISTERS, Draws, Request
from bench.chaos.http.outside import Transport
from bench.chaos.http.requests import http_of, told
from bench.chaos.http.store import NOBODY, RecordedStore, Shown, mark, marked, name_of
from bench.chaos.http.watching import Broke, Got, Line, Opened, Parser, read_watch
from bench.chaos.plan import Kind, Plan, kind_of, make_plan
from bench.chaos.rounds import Played, play
from bench.chaos.site import Standing
from bench.errors import BenchError
from cli.main import app
from rsm import envelope, status
from rsm.errors import Rejected
from rsm.linearizability import Executed, Model, Operation, Outcome, outcome_of
from rsm.state_machine import Context

MODEL = Model(Shown)
KEY, OTHER, NUMBER = b"g/a", b"g/b", b"g/n"


class Story:
    """Requests one after the other, each called and answered in ten nanoseconds, at a slot of its own."""

    def __init__(self) -> None:
        self.machine = Shown()
        self.machine.context = Context()
        self.operations: list[Operation] = []
        self.order: list[tuple[int, int, int]] = []

    def do(self, method: str, *arguments: Any, sent: int | None = None) -> Operation:
        """``sent``: as another try of that request."""
        number = len(self.operations) + 1
        self.machine.context.timestamp = number
        found = (MODEL.catalogue.queries | MODEL.catalogue.commands)[method]
        bound = found.bind(arguments, {})
        reply = MODEL.call(self.machine, method, bound)
        outcome = outcome_of(reply)
        assert outcome is not None
        made = Operation(
            client=1,
            request=number,
            method=method,
            arguments=msgspec.msgpack.encode(bound),
            call_ns=10 * number,
            return_ns=10 * number + 5,
            outcome=outcome,
            ts=number,
            reply=reply,
        )
        self.operations.append(made)
        if not MODEL.is_query(method):
            self.order.append((number, 1, sent or number))
        return made

    def put(self, key: bytes, *, once: bool = False, expect: int | None = None) -> Operation:
        value = mark((1, len(self.operations) + 1))
        return self.do("put", key, value, expect, value if once else None)

    def again(self, number: int) -> Operation:
        """The same request as that one."""
        first = self.operations[number - 1]
        arguments = msgspec.structs.astuple(MODEL.bind(first.method, first.arguments))
        return self.do(first.method, *arguments, sent=number)

    def change(self, number: int, **changes: Any) -> None:
        self.operations[number - 1] = msgspec.structs.replace(self.operations[number - 1], **changes)

    def lose(self, number: int) -> None:
        """Nobody was told what became of it."""
        made = self.operations[number - 1]
        self.operations[number - 1] = Operation(
            client=1, request=number, method=made.method, arguments=made.arguments, call_ns=made.call_ns
        )

    def events(self) -> list[Event]:
        return self.machine.store.changes(0).events

    def judged(self, *watches: list[Line], **refused: str) -> tuple[str, Checked]:
        named = {(each.client, each.request): each for each in self.operations}
        history = History(named, {(1, int(name[1:])): why for name, why in refused.items()})
        said = status.ReplicaStatus(
            group="chaos", address="one", site="1", standing=status.Standing.SERVING, mode="durable"
        )
        standings = [Standing(status=said, order=(len(self.order), 7))] * 3
        seen = {f"watch-{number}": lines for number, lines in enumerate(watches, start=1)}
        problems, checked = judge_http(history, self.order, standings, seen, 1)
        return "\n".join(problems), checked

    def problems(self, *watches: list[Line], **refused: str) -> str:
        return self.judged(*watches, **refused)[0]


def ok(value: Any) -> bytes:
    return envelope.encode_reply(envelope.OkEncoded(value))


def good() -> Story:
    story = Story()
    story.put(KEY, once=True)
    story.do("get", KEY)
    story.put(KEY, expect=1)
    story.put(KEY, expect=1, once=True)
    story.do("add", NUMBER, 50_001, None)
    story.do("add", KEY, 60_001, None)
    story.again(1)
    then = [Put(KEY, mark((1, 8))), Add(NUMBER, 80_001), Delete(OTHER), Get(KEY)]
    story.do("txn", [Compare(KEY, "revision", "=", 3)], then, [Get(KEY)], None)
    story.do("delete", KEY, None, mark((1, 9)))
    story.do("get", KEY)
    story.do("listing", b"g/")
    story.again(9)
    story.do("get", NUMBER)
    return story


def test_when_a_history_is_good_then_nothing_is_said_and_everything_is_counted() -> None:
    story = good()
    assert [each.outcome for each in story.operations].count(Outcome.REJECTED) == 2
    problems, checked = story.judged(watch_of(story))
    assert problems == ""
    assert checked == Checked(
        operations=13, acknowledged=13, executed=9, searched=1, repeated=2, watched=len(story.events())
    )


# -- planted ---------------------------------------------------------------------------------------


def test_when_an_acknowledged_write_is_nowhere_then_it_is_missed() -> None:
    story = good()
    story.order.remove((3, 1, 3))
    assert "was answered, but nowhere executed" in story.problems()


def test_when_a_write_is_lost_for_its_readers_then_it_is_found_with_and_without_timestamps() -> None:
    story = Story()
    story.put(KEY)
    story.do("get", KEY)
    story.change(2, reply=ok(None))
    found = story.problems()
    assert "read at slot 2; one machine gives" in found
    assert "keys g: no order explains get(b'g/a') → None" in found


def test_when_a_read_is_stale_then_it_is_found_with_and_without_timestamps() -> None:
    story = Story()
    story.put(KEY)
    old = story.do("get", KEY)
    story.put(KEY)
    story.do("get", KEY)
    story.change(4, reply=old.reply, ts=old.ts)
    found = story.problems()
    assert "stands at 2; when it was called, put(" in found
    assert "keys g: no order explains get(b'g/a')" in found


def test_when_a_request_without_a_key_is_executed_twice_then_it_is_found() -> None:
    story = good()
    story.order.append((99, 1, 5))
    assert "was executed more often than it was sent, which was 1 times" in story.problems()


def test_when_a_repeated_request_is_carried_out_twice_then_its_answers_and_readers_tell() -> None:
    story = Story()
    story.do("add", NUMBER, 10_001, mark((1, 1)))
    story.again(1)
    story.do("get", NUMBER)
    story.change(2, reply=ok((20_002, 2)))
    story.change(3, reply=ok((NUMBER, b"20002", 2, 1, 2)))
    found = story.problems()
    assert "repeats add(" in found
    assert "and was told something else" in found
    assert "slot 2: add(" in found
    assert "keys g: no order explains add(" in found


def test_when_a_repeated_request_is_told_another_revision_then_it_is_found() -> None:
    story = good()
    story.change(7, reply=ok((7, 1, 4)))
    assert "and was told something else" in story.problems()


def test_when_a_request_was_refused_by_the_state_and_then_carried_out_then_that_is_right() -> None:
    story = Story()
    story.put(KEY)
    story.put(KEY, expect=0, once=True)
    story.do("delete", KEY, None, mark((1, 3)))
    story.again(2)
    assert [each.outcome for each in story.operations[1::2]] == [Outcome.REJECTED, Outcome.OK]
    assert story.problems() == ""


def test_when_a_condition_is_passed_over_then_it_is_found_with_and_without_timestamps() -> None:
    story = Story()
    story.put(KEY)
    story.put(KEY, expect=0)
    story.change(2, outcome=Outcome.OK, reply=ok((2, 1, 2)))
    found = story.problems()
    assert "slot 2: put(" in found
    assert "keys g: no order explains put(" in found


def test_when_requests_of_unknown_outcome_took_effect_then_others_may_see_it() -> None:
    story = Story()
    story.put(KEY, once=True)
    story.again(1)
    story.do("get", KEY)
    story.lose(1)
    story.lose(2)
    problems, checked = story.judged()
    assert problems == ""
    assert (checked.unknown, checked.acknowledged) == (2, 1)
    story.order.clear()
    found = story.problems()
    assert "one machine gives None" in found
    assert "keys g: no order explains get(" in found


def test_when_a_refused_request_was_executed_then_its_caller_was_told_wrong() -> None:
    story = good()
    story.lose(3)
    assert "its caller was told that it was refused: 503" in story.problems(_3="503 no_primary")


def test_when_a_slot_has_what_nobody_sent_or_goes_back_then_it_is_told() -> None:
    story = good()
    story.order.append((5, 9, 9))
    found = story.problems()
    assert "slot 5 was executed after slot 12" in found
    assert "slot 5: nobody has sent request 9 of client 9" in found


def test_when_an_answer_says_the_slot_of_another_then_it_is_told() -> None:
    story = good()
    story.change(3, ts=5)
    assert "says it was executed at 5" in story.problems()


def test_when_an_answer_is_none_that_a_store_gives_then_it_is_a_violation() -> None:
    story = good()
    answer = told(Request((1, 5), "add", (NUMBER, 50_001, None)), problem(500, "defect"))
    assert answer.ended is Ended.FAILED
    story.change(5, outcome=Outcome.FAILED, reply=answer.reply, ts=answer.ts)
    assert "HTTP 500('defect')" in story.problems()


# -- watches ---------------------------------------------------------------------------------------


def got(event: Event, *, last: bool) -> Got:
    kind = "delete" if event.value is None else "put"
    number = event.revision if last else 0
    return Got(kind, number, event.revision, event.key, event.value, event.created, event.version)


def watch_of(story: Story, *cuts: int) -> list[Line]:
    """From the beginning, broken off behind so many events each time, and gone on behind the last id."""
    events = story.events()
    came = [
        got(event, last=number + 1 == len(events) or events[number + 1].revision != event.revision)
        for number, event in enumerate(events)
    ]
    lines: list[Line] = []
    since = 0
    for cut in (*cuts, len(came)):
        begin = sum(each.revision <= since for each in came)
        lines += [Opened(0, since), *came[begin:cut], Broke("gone")]
        since = max((each.id for each in came[:cut]), default=0)
    return lines


def test_when_a_watch_is_broken_off_anywhere_then_it_goes_on_without_a_gap() -> None:
    story = good()
    count = len(story.events())
    for cut in range(count):
        seen, problems = check_watch("watch-1", watch_of(story, cut), story.events())
        assert problems == []
        assert seen >= count


def test_when_a_watch_begins_now_then_it_has_what_comes_behind_that() -> None:
    story = good()
    lines = watch_of(story)
    begun = [Opened(1, -1), Got("ready", 3), *(each for each in lines if getattr(each, "revision", 0) > 3)]
    assert check_watch("watch-1", begun, story.events())[1] == []
    begun.pop(1)
    assert "begins with put instead of where it begins" in check_watch("w", begun, story.events())[1][0]


Plant = Callable[[list[Line]], None]


def swap(lines: list[Line]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda lines: lines.pop(2), "came where put"),
        (lambda lines: lines.insert(2, lines[1]), "came where put"),
        (swap, "came where put"),
        (lambda lines: lines.insert(-1, got(Event(99, KEY, b"1"), last=True)), "never happened"),
        (lambda lines: lines.insert(1, Got("", 3)), "id 3 came before the events of 1"),
        (lambda lines: lines.__setitem__(4, msgspec.structs.replace(lines[4], id=8)), "has id 8"),
        (lambda lines: lines.__setitem__(1, msgspec.structs.replace(lines[1], id=0)), "has id 0"),
        (lambda lines: lines.__setitem__(1, msgspec.structs.replace(lines[1], value=b"x")), "came where"),
        (lambda lines: lines.extend([Opened(1, 3)]), "went on behind 3, having reached 9"),
    ],
)
def test_when_a_watch_has_a_gap_or_something_else_then_it_is_found(plant: Plant, words: str) -> None:
    story = good()
    lines = watch_of(story)
    assert [each.id for each in lines if isinstance(each, Got)] == [1, 3, 5, 0, 8, 9]
    plant(lines)
    assert words in story.problems(lines)


def test_when_a_resumed_watch_leaves_something_out_then_it_is_found() -> None:
    story = good()
    lines = watch_of(story, 2)
    lines.pop(lines.index(Opened(0, 3)) + 1)
    assert "watch-1, behind 3 at gateway 0: put b'g/" in story.problems(lines)


def test_when_server_sent_events_come_then_they_are_read(tmp_path: Path) -> None:
    text = (
        'event: ready\ndata: {"revision":4}\nid: 4\n\n'
        'event: put\ndata: {"event":"put","key":"k","revision":5,"value_base64":"/w==","created":5,'
        '"version":1}\n\n'
        'event: delete\ndata: {"event":"delete","key":"j","revision":5}\nid: 5\n\n'
        ": alive\nid: 9\n\n"
        ": nothing\n\n"
    )
    parser = Parser()
    events = [event for line in text.splitlines() if (event := parser.feed(line)) is not None]
    assert events == [
        Got("ready", 4),
        Got("put", 0, 5, b"k", b"\xff", 5, 1),
        Got("delete", 5, 5, b"j"),
        Got("", 9),
    ]
    path = tmp_path / "watch"
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in events))
    assert read_watch(path) == events
    path.write_text("{")
    with pytest.raises(BenchError, match="no record of a watch"):
        read_watch(path)


# -- machines and requests -------------------------------------------------------------------------


def drawn(seed: int, count: int) -> tuple[Story, list[Request]]:
    """A sequential history of whatever is drawn; half of what may be repeated is."""
    story, rng = Story(), Random(seed)
    draws = Draws(1, rng, lambda: len(story.operations) * 100_000_000)
    requests = []
    while len(story.operations) < count:
        request = draws.draw(len(story.operations) + 1)
        requests.append(request)
        made = story.do(request.method, *request.arguments)
        if made.outcome is Outcome.OK:
            draws.see(request, msgspec.msgpack.decode(made.reply)[1])
        if request.once is not None and rng.random() < 0.5:
            story.again(made.request)
    return story, requests


@pytest.mark.parametrize("seed", range(5))
def test_when_requests_are_drawn_then_both_models_explain_what_the_store_answers(seed: int) -> None:
    story, requests = drawn(seed, 400)
    problems, checked = story.judged(watch_of(story))
    assert problems == ""
    assert (checked.gave_up, checked.operations) == (0, len(story.operations))
    assert {each.method for each in requests} == {"get", "listing", "put", "delete", "add", "txn"}
    assert {each.outcome for each in story.operations} == {Outcome.OK, Outcome.REJECTED}
    keys = {key for each in story.events() if (key := each.key)}
    assert {key.partition(b"/")[2] for key in keys} == {*REGISTERS, COUNTER}


def test_when_there_is_no_time_then_no_group_is_searched() -> None:
    assert search_groups([], {}, 1, seconds=-1) == (0, 0, [])


def test_when_a_command_is_executed_then_the_store_notes_its_name_once() -> None:
    store = RecordedStore()
    store.context = Context()

    def call(slot: int, call: Callable[[], object]) -> None:
        store.context.timestamp = slot
        call()

    once = Once(b"3:4", b"")
    call(1, lambda: store.put(b"k", b"3:1 ...", once=Once(b"3:1", b"")))
    call(2, lambda: store.add(b"n", 20_003))
    call(3, lambda: store.txn([], [Get(b"k"), Put(b"k", b"3:3")], []))
    call(4, lambda: store.delete(b"k", once=once))
    call(5, lambda: store.delete(b"k", once=once))
    with pytest.raises(Rejected):
        call(6, lambda: store.put(b"k", b"3:6", expect=5))
    call(7, lambda: store.delete(b"k"))
    order = [(1, 3, 1), (2, 3, 2), (3, 3, 3), (4, 3, 4), (5, 3, 4), (6, 3, 6), (7, *NOBODY)]
    assert store.order == order
    copy = RecordedStore()
    copy.restore(store.snapshot())
    assert copy.executed(2) == order[2:]
    assert copy.get(b"n") == store.get(b"n")
    assert isinstance(copy, KeyValueStore)


@pytest.mark.parametrize("text", [b"", b"5", b"a:1", b"1:b", b"1:2x"])
def test_when_a_text_is_no_mark_then_it_is_nobodys(text: bytes) -> None:
    assert marked(text) == NOBODY
    assert marked(b"1:2 ..") == (1, 2)


def problem(code: int, word: str, **members: Any) -> httpx2.Response:
    body = {"status": code, "code": word, "detail": "", **members}
    headers = {"content-type": "application/problem+json", "x-rsm-timestamp": "9"}
    return httpx2.Response(code, json=body, headers=headers)


def written(code: int, tag: str, **more: str) -> httpx2.Response:
    shape = {"revision": 7, "created": 3, "version": 2}
    return httpx2.Response(code, json=shape, headers={"etag": tag, **more})


AT = {"x-rsm-timestamp": "9"}
GET = Request((0, 0), "get", (b"k",))
PUT = Request((1, 2), "put", (b"k", b"1:2", None, b"1:2"))


@pytest.mark.parametrize(
    ("request_", "answer", "ended", "reply"),
    [
        (PUT, problem(429, "overloaded"), Ended.REFUSED, b""),
        (PUT, problem(503, "no_primary"), Ended.REFUSED, b""),
        (PUT, problem(504, "outcome_unknown"), Ended.UNKNOWN, b""),
        (
            PUT,
            problem(412, "conflict", revision=7, expect=3),
            Ended.REJECTED,
            envelope.encode_reply(envelope.RejectedReply("conflict", {"revision": 7})),
        ),
        (GET, problem(404, "key_not_found"), Ended.OK, ok(None)),
        (
            GET,
            httpx2.Response(
                200,
                content=b"v",
                headers={"etag": '"7"', "x-rsm-created": "3", "x-rsm-version": "2", **AT},
            ),
            Ended.OK,
            ok((b"k", b"v", 7, 3, 2)),
        ),
        (PUT, written(200, '"7"', **AT), Ended.OK, ok((7, 3, 2))),
        (
            Request((1, 2), "delete", (b"k", None, b"1:2")),
            httpx2.Response(204, headers=AT),
            Ended.OK,
            ok(value=True),
        ),
    ],
)
def test_when_an_answer_comes_then_it_says_what_the_store_would(
    request_: Request, answer: httpx2.Response, ended: Ended, reply: bytes
) -> None:
    found = told(request_, answer)
    assert (found.ended, found.reply) == (ended, reply)
    assert found.ts == (9 if reply else 0)


@pytest.mark.parametrize(
    "answer",
    [
        problem(400, "bad_request"),
        problem(404, "not_found"),
        problem(404, "key_not_found"),
        httpx2.Response(200, text="nonsense", headers=AT),
        written(201, '"7"', **AT),
        written(200, '"6"', **AT),
        written(200, '"7"'),
        httpx2.Response(412, text="[", headers={"content-type": "application/problem+json", **AT}),
    ],
)
def test_when_an_answer_makes_no_sense_then_it_is_wrong(answer: httpx2.Response) -> None:
    assert told(PUT, answer).ended is Ended.FAILED


def test_when_a_condition_is_sent_then_it_is_a_header() -> None:
    sent = [http_of(Request((1, 2), "put", (b"a/b c", b"v", expect, None))) for expect in (None, 0, -1, 9)]
    assert [each.headers for each in sent] == [
        {},
        {"If-None-Match": "*"},
        {"If-Match": "*"},
        {"If-Match": '"9"'},
    ]
    assert {each.path for each in sent} == {"/v1/kv/a/b%20c"}


# -- plans, books, the command ---------------------------------------------------------------------


def test_when_a_round_is_over_http_then_the_faults_of_its_sites_are_the_same() -> None:
    plain, http = make_plan(5, 5, 30), make_plan(5, 5, 30, http=True)
    assert list(islice(plain.faults(), 50)) == list(islice(http.faults(), 50))
    struck = list(islice(http.gateway_faults(), 50))
    assert struck == list(islice(make_plan(5, 5, 30, http=True).gateway_faults(), 50))
    assert not struck[0].pause_s
    assert {bool(each.pause_s) for each in struck} == {True, False}
    assert {each.gateway for each in struck} == {0, 1}


def test_when_gateways_have_a_quota_then_it_is_to_be_met() -> None:
    tally = Tally()
    assert Quotas(kills=0, pauses=0, restarts=0).missing(tally) == {}
    quotas = Quotas(kills=0, pauses=0, restarts=0, gateways=2)
    assert quotas.missing(tally) == {GATEWAY: 2}
    assert quotas.wants(tally, Kind.SINGLE, 5)
    for _ in range(2):
        tally.killed(GATEWAY)
    assert quotas.missing(tally) == {}


def test_when_a_campaign_is_of_the_other_kind_then_it_is_not_gone_on_with(tmp_path: Path) -> None:
    Books.load(tmp_path, 5, 1, http=True).save(tmp_path)
    assert Books.load(tmp_path, 5, 1, http=True).http
    with pytest.raises(BenchError, match="its campaign is with --http"):
        Books.load(tmp_path, 5, 1)


def test_when_the_command_is_told_http_then_its_rounds_and_its_report_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def pretend(plan: Plan, _: Path, recordings: Path | None) -> Played:
        assert recordings == Path("recorded")
        plans.append(plan)
        kills = {role.value: 1 for role in Role} | {GATEWAY: 1}
        return Played(
            plan=plan,
            tally=Tally(kills=kills, pauses=1, gateway_pauses=3),
            checked=Checked(operations=100, repeated=7, watched=1234),
            problems=["slot 3 was lost"],
            seconds=1.0,
            directory=Path("kept"),
        )

    monkeypatch.setattr(rounds, "play", pretend)
    monkeypatch.chdir(tmp_path)
    words = ["chaos", "--http", "--kills", "1", "--pauses", "1", "--restarts", "0", "--record", "recorded"]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert done.exit_code == 1
    assert [plan.http for plan in plans] == [True]
    assert "gateway pauses 3" in done.output
    assert "1,234 events watched" in done.output
    assert "rsm chaos --http --replay 1 --sites 5" in done.output
    for row in ("gateway ", "gateways paused", "repeated over another gateway", "watch events checked"):
        assert row in done.output
    assert (tmp_path / "chaos-http").is_dir()


# -- real processes --------------------------------------------------------------------------------


def a_seed() -> int:
    """Of a round that begins with the kill of a site, and then a short pause."""
    for seed in range(100_000):
        kill, pause = islice(make_plan(seed, 3, 2.0).faults(), 2)
        if (
            kind_of(seed) is Kind.SINGLE
            and (kill.role, kill.pause) == (Role.TOKEN_SITE, False)
            and (pause.role, pause.pause) == (None, True)
            and pause.factor < 3
        ):
            return seed
    raise AssertionError("no such seed")


def test_when_sites_and_gateways_are_struck_then_http_is_linearizable_and_watches_have_no_gap(
    tmp_path: Path,
) -> None:
    plan = make_plan(a_seed(), 3, 60.0, http=True)
    done = play(msgspec.structs.replace(plan, faults_max=2), tmp_path)
    assert done.problems == []
    assert done.tally.kills[Role.TOKEN_SITE] == 1
    assert done.tally.kills[GATEWAY] >= 1
    assert done.tally.pauses == 1
    assert done.checked.operations > 100
    assert done.checked.watched > 50
    assert done.checked.repeated > 0
    assert list(tmp_path.iterdir()) == []


def test_when_nothing_was_executed_then_nothing_happened() -> None:
    assert replayed([]) == ([], {})
    put = good().operations[0]
    events, effects = replayed([Executed(4, 1, 1, put.method, put.arguments)])
    assert ([each.revision for each in events], effects) == ([4], {(1, 1): 4})
    assert name_of("get", (b"k",)) == NOBODY


def test_when_a_connection_loses_its_socket_before_a_request_goes_out_then_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def without_socket(*_: object) -> httpx2.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    async def main() -> None:
        async with httpx2.AsyncClient(transport=Transport()) as client:
            with pytest.raises(httpx2.ConnectError, match="getpeername"):
                await client.get("http://127.0.0.1:9/")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", without_socket)
    asyncio.run(main())
