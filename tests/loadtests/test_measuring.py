"""What is measured and how it is shown: records, schedules, histograms, trends, faults, rings, reports."""

import asyncio
import os
import signal
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest

from bench.chaos.books import Checked
from bench.errors import BenchError
from cli import load_run
from cli.crew import Crew, NotStarted
from loadtests.faults import BACK_SECONDS, Fault, Mark, Strike, plan_faults, strike
from loadtests.judging import Verdict
from loadtests.latencies import Latencies, percentiles_ms, stalls, width_for
from loadtests.mix import weights_of
from loadtests.pace import SECOND_NS, Pace
from loadtests.records import BLOCK_RECORDS, Kind, Record, Writer, kind_of, read_records
from loadtests.report import PAGE, Result, Seen, result_of, write_report
from loadtests.runs import FAULTS, PROCESSES, RINGS, Left, LoadPlan, Told
from loadtests.trends import trend
from loadtests.watching import Lines, Ring, Rings, Sample, read_rings, sample

MS = 1_000_000


def record(
    number: int = 1,
    *,
    intended: int = 0,
    call: int = 0,
    back: int = 5 * MS,
    status: int = 200,
    method: str = "get",
) -> Record:
    return Record(7, number, b"run.1", "get", b"", intended, call, back, status, {}, b"")


# -- records ---------------------------------------------------------------------------------------


def test_when_records_are_written_then_they_are_read_again_in_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.ops")
    made = [record(number) for number in range(2 * BLOCK_RECORDS + 5)]
    for each in made:
        writer.write(each)
    writer.close()
    assert list(read_records(tmp_path / "a.ops")) == made


def test_when_many_records_are_written_then_few_are_held(tmp_path: Path) -> None:
    now = 0.0
    writer = Writer(tmp_path / "a.ops", lambda: now)
    for number in range(BLOCK_RECORDS - 1):
        writer.write(record(number))
    assert list(read_records(tmp_path / "a.ops")) == []
    writer.write(record())
    assert len(list(read_records(tmp_path / "a.ops"))) == BLOCK_RECORDS
    now = 2.0
    writer.write(record())
    assert len(list(read_records(tmp_path / "a.ops"))) == BLOCK_RECORDS + 1
    writer.close()


def test_when_a_file_of_records_is_cut_off_then_it_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.ops")
    writer.write(record())
    writer.close()
    whole = (tmp_path / "a.ops").read_bytes()
    (tmp_path / "a.ops").write_bytes(whole[:-3])
    with pytest.raises(BenchError, match="cut off"):
        list(read_records(tmp_path / "a.ops"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Kind.ANSWERED) for status in (200, 201, 204, 404, 409, 412)),
        *((status, Kind.PUSHED_BACK) for status in (429, 503)),
        *((status, Kind.UNKNOWN) for status in (0, 504)),
        *((status, Kind.UNEXPECTED) for status in (400, 422, 500, 302)),
        (-1, Kind.BROKEN_OFF),
    ],
)
def test_what_a_status_means(status: int, kind: Kind) -> None:
    assert kind_of(status) is kind


# -- schedules -------------------------------------------------------------------------------------


def test_when_an_answer_is_late_then_the_schedule_is_not_moved() -> None:
    pace = Pace(10, 0, 0.5)
    assert pace.wait_s(0) == 0.05
    assert pace.take(50 * MS) == 50 * MS
    assert pace.wait_s(450 * MS) == 0  # it took 400 ms
    assert [pace.take(450 * MS) for _ in range(3) if pace.wait_s(450 * MS) == 0] == [
        150 * MS,
        250 * MS,
        350 * MS,
    ]
    assert pace.wait_s(450 * MS) == 0
    assert pace.take(450 * MS) == 450 * MS
    assert pace.wait_s(451 * MS) == pytest.approx(0.099)


def test_when_a_request_follows_from_an_answer_then_it_could_not_begin_earlier_and_takes_its_place() -> None:
    pace = Pace(10, 0, 0)
    pace.wait_s(0)
    assert pace.take(0) == 0
    assert pace.take(30 * MS) == 30 * MS
    assert pace.next_ns == 200 * MS


def test_a_schedule_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Pace(0, 0, 0)


@pytest.mark.parametrize("text", ["", "read", "read=x", "read=-1", "read=1,read=2", "reed=1", "read=0,cas=0"])
def test_a_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        weights_of(text)


def test_a_mix_has_weights() -> None:
    assert weights_of("read=60, cas=40") == {"read": 60, "cas": 40}


# -- histograms ------------------------------------------------------------------------------------


def test_when_a_user_was_held_up_then_only_the_intended_start_tells() -> None:
    """Coordinated omission: one answer of a second, and nine requests that should have begun meanwhile."""
    latencies = Latencies(0, 3 * SECOND_NS)
    latencies.note(record(intended=0, call=0, back=1000 * MS))
    for number in range(1, 10):
        call = 1000 * MS + number * MS
        latencies.note(record(intended=number * 100 * MS, call=call, back=call + MS))
    (get, everything) = latencies.rows()
    assert (get.operation, everything.operation, get.answered) == ("get", "all", 10)
    assert get.service_ms["p50"] == pytest.approx(1, rel=0.01)
    assert get.intended_ms["p50"] == pytest.approx(505, rel=0.02)
    assert get.service_ms["max"] == pytest.approx(get.intended_ms["max"]) == pytest.approx(1000, rel=0.01)


def test_when_something_is_not_answered_then_it_counts_apart_and_not_as_a_wait() -> None:
    latencies = Latencies(0, 3 * SECOND_NS)
    for status in (200, 503, 503, 504, 500, -1):
        latencies.note(record(status=status))
    assert latencies.counts == {
        Kind.ANSWERED: 1,
        Kind.PUSHED_BACK: 2,
        Kind.UNKNOWN: 1,
        Kind.UNEXPECTED: 1,
        Kind.BROKEN_OFF: 1,
    }
    assert latencies.rows()[-1].answered == 1
    assert latencies.statuses == {503: 2, 504: 1, 500: 1, -1: 1}


def test_when_nothing_is_answered_for_a_while_then_that_is_a_stall() -> None:
    latencies = Latencies(0, 20 * SECOND_NS)
    for second in [*range(5), *range(9, 15)]:
        for part in (0, 500):
            at = second * SECOND_NS + part * MS
            latencies.note(record(intended=at, call=at, back=at + MS))
    assert stalls(latencies) == [(5.0, 9.0)]
    assert latencies.seconds == pytest.approx(14.5, abs=0.01)
    assert all(each.counts[Kind.ANSWERED] in {0, 2} for each in latencies.whole())


def test_there_are_never_more_slices_than_can_be_shown() -> None:
    assert [width_for(seconds) for seconds in (3, 120, 121, 1800, 86_400)] == [1, 1, 2, 15, 600]


def test_no_waits_have_no_percentiles() -> None:
    assert percentiles_ms(Latencies(0, 1).slices[0].waits.service) == {}


# -- trends ----------------------------------------------------------------------------------------


def flat(points: Sequence[tuple[float, float]], run_s: float) -> bool | None:
    found = trend("memory", "MB", points, run_s, share=0.1, least=5.0)
    assert found is not None
    return found.flat


def test_what_grows_is_told_from_what_is_flat_and_what_is_too_short_to_tell() -> None:
    rng = Random(1)
    noisy = [(float(at), 100 + rng.uniform(-8, 8)) for at in range(600)]
    assert flat(noisy, 600) is True
    assert flat([(at, value + at * 0.1) for at, value in noisy], 600) is False
    assert flat([(at, value - at * 0.1) for at, value in noisy], 600) is True
    assert flat(noisy, 100) is None
    assert trend("", "", noisy[:5], 600, share=0.1, least=5.0) is None


def test_when_it_grows_only_while_it_warms_up_then_it_is_flat() -> None:
    assert flat([(float(at), min(at, 200) * 1.0) for at in range(601)], 600) is True


def test_when_what_is_retained_is_not_full_then_growth_is_no_verdict_and_counts_only_behind_that() -> None:
    growing = [(float(at), min(at, 400) * 1.0) for at in range(601)]
    assert flat(growing, 600) is False
    for full_s, told in ((None, "still filling up"), (400.0, "flat"), (500.0, "too short to tell")):
        found = trend("memory", "MB", growing, 600, share=0.1, least=5.0, full_s=full_s)
        assert found is not None
        assert found.words == told


def test_since_when_a_store_has_all_it_retains() -> None:
    latencies = Latencies(0, 10 * SECOND_NS)
    for second in range(10):
        at = second * SECOND_NS
        for arguments in (b"\xa1k", b"\xc0"):
            made = msgspec.structs.replace(record(call=at, intended=at, back=at + MS), method="put")
            latencies.note(msgspec.structs.replace(made, arguments=arguments))
            latencies.note(msgspec.structs.replace(made, arguments=arguments, status=412))
    assert latencies.full_s(5, 1) == pytest.approx(2.5)
    assert latencies.full_s(5, 5) == pytest.approx(4.5)
    assert latencies.full_s(21, 1) is None
    assert latencies.full_s(1, 11) is None


def test_when_faults_make_spikes_then_they_do_not_turn_the_slope() -> None:
    spikes = [(float(at), 1000.0 if at % 7 == 0 else 10.0) for at in range(600)]
    assert flat([*spikes, *((float(at), 1000.0) for at in range(590, 600))], 600) is True


# -- faults ----------------------------------------------------------------------------------------


class FakeCrew:
    def __init__(self) -> None:
        self.done: list[str] = []

    async def kill(self, *names: str) -> None:
        self.done += [f"kill {name}" for name in names]

    async def start(self, *names: str) -> None:
        self.done += [f"start {name}" for name in names]

    async def end(self, name: str) -> None:
        self.done.append(f"end {name}")

    def pause(self, name: str) -> None:
        self.done.append(f"pause {name}")

    def resume(self, name: str) -> None:
        self.done.append(f"resume {name}")


def test_faults_come_in_turn_and_strike_all_replicas_in_the_end() -> None:
    planned = list(islice(plan_faults(["one", "two", "three"], Random(1)), 30))
    assert all({each.fault for each in planned[at : at + 3]} == set(Fault) for at in range(0, 30, 3))
    assert {each.who for each in planned} == {"one", "two", "three"}
    assert planned == list(islice(plan_faults(["one", "two", "three"], Random(1)), 30))


@pytest.mark.parametrize("run_time_s", [10.0, 30.0, 60.0, 1800.0])
def test_when_a_run_is_short_then_all_kinds_of_faults_have_their_time_in_it(run_time_s: float) -> None:
    for seed in range(50):
        planned = list(islice(plan_faults(["one"], Random(seed), run_time_s), len(Fault)))
        needed_s = sum(each.wait_s + each.down_s + BACK_SECONDS for each in planned)
        assert needed_s <= 0.7 * run_time_s, seed


def test_when_a_replica_is_struck_then_it_is_brought_back_and_marked() -> None:
    crew, marks = FakeCrew(), list[Mark]()
    plan = [Strike(0.01, fault, "one", 0.02) for fault in (Fault.KILL, Fault.PAUSE, Fault.RESTART)]
    asyncio.run(strike(crew, iter(plan), None, marks.append))
    assert crew.done == ["kill one", "start one", "pause one", "resume one", "end one", "start one"]
    assert [mark.fault for mark in marks] == [Fault.KILL, Fault.PAUSE, Fault.RESTART]
    assert all(mark.back_ns - mark.began_ns >= 20 * MS for mark in marks)
    assert all(one.back_ns <= two.began_ns for one, two in pairwise(marks))


def test_when_the_run_is_about_to_end_then_nobody_is_struck_any_more() -> None:
    crew = FakeCrew()
    plan = [Strike(0.0, Fault.PAUSE, "one", 0.0), Strike(10.0, Fault.KILL, "one", 0.0)]
    asyncio.run(strike(crew, iter(plan), 0.2, lambda _: None))
    assert crew.done == ["pause one", "resume one"]


def test_when_striking_is_cancelled_then_who_is_paused_goes_on() -> None:
    crew = FakeCrew()

    async def main() -> None:
        plan = iter([Strike(0.0, Fault.PAUSE, "one", 60.0)])
        task = asyncio.ensure_future(strike(crew, plan, None, lambda _: None))
        while "pause one" not in crew.done:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert crew.done == ["pause one", "resume one"]


# -- rings and processes ---------------------------------------------------------------------------


def view(name: str, at_s: float, members: int) -> dict[str, object]:
    ring = [f"site {number}" for number in range(members)]
    return {"view": name, "slot": 1, "at_s": at_s, "ring": ring, "electorate": ring, "why": "so"}


def test_a_view_is_noted_once_and_again_if_somebody_had_it_earlier(tmp_path: Path) -> None:
    rings, notes = Rings(), Lines(tmp_path / RINGS)
    for views in (
        [view("1.0", 1000.0, 3)],
        [view("1.0", 1000.0, 3), view("2.0", 1010.0, 2)],
        [view("1.0", 1000.0, 3), view("2.0", 1005.0, 2)],
        [view("1.0", 1004.0, 3), view("2.0", 1009.0, 2)],
    ):
        notes.write_all(rings.take({"views": views}))
    notes.close()
    found = read_rings(tmp_path / RINGS)
    assert [ring.view for ring in found] == ["1.0", "2.0"]
    assert (found[1].at_ns - found[0].at_ns) / 1e9 == pytest.approx(5.0, abs=0.1)
    assert len((tmp_path / RINGS).read_bytes().splitlines()) == 3


def test_a_process_is_measured_and_one_that_is_gone_is_left_out() -> None:
    found = sample({"we": os.getpid(), "nobody": 2**22 + 1})
    assert [each.who for each in found] == ["we"]
    assert found[0].resident_bytes > 1 << 20
    assert found[0].descriptors > 2


# -- the report ------------------------------------------------------------------------------------


def planned(report: Path) -> LoadPlan:
    return LoadPlan(
        run="load-1",
        endpoint="http://127.0.0.1:1",
        users=3,
        spawn_rate=1.0,
        run_time_s=10.0,
        shape="steps",
        mix="",
        rate=1.0,
        groups=1,
        value_bytes=100,
        faults=True,
        sites=3,
        web_port=None,
        workers=1,
        seed=1,
        report=report,
    )


def seen(plan: LoadPlan, *statuses: int) -> Latencies:
    plan.records.mkdir(exist_ok=True)
    latencies = Latencies(0, 10 * SECOND_NS)
    for second in range(10):
        for status in (200, *statuses):
            at = second * SECOND_NS
            latencies.note(record(intended=at, call=at + MS, back=at + 5 * MS, status=status))
    return latencies


def note_faults(plan: LoadPlan, count: int = 1) -> None:
    notes = Lines(plan.records / FAULTS)
    notes.write_all(
        Mark(Fault.KILL, "replica 1", number * SECOND_NS, (number + 1) * SECOND_NS) for number in range(count)
    )
    notes.close()
    rings = Lines(plan.records / RINGS)
    rings.write_all(
        [Ring(0, "1.0", ["a", "b", "c"], 3, "first"), Ring(SECOND_NS, "2.0", ["a", "b"], 3, "gone")]
    )
    rings.close()
    processes = Lines(plan.records / PROCESSES)
    processes.write_all(Sample(at * SECOND_NS, "gateway", 1, 10**8, 40) for at in range(10))
    processes.close()


def test_when_a_run_was_right_then_the_page_says_so_with_plots_and_figures(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    latencies = seen(plan, 503)
    note_faults(plan, 20)
    verdict = Verdict(checked=Checked(operations=10, refused=10))
    result = result_of(plan, latencies, verdict, Seen.read(plan.records))
    write_report(result, latencies, Seen.read(plan.records))
    assert result.good
    assert result.words == "RIGHT: 0 wrong of 20 requests"
    page = (tmp_path / PAGE).read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "kill replica 1" in page
    assert result.view_changes == 1
    assert result.faults == {Fault.KILL: 20}


@pytest.mark.parametrize(
    ("statuses", "faults", "verdict", "words"),
    [
        ((504,), True, Verdict(), "RIGHT: 0 wrong of 0 requests; 10 of unknown outcome under faults"),
        ((504,), False, Verdict(), "FAILED: 0 wrong of 0 requests, but 10 failed"),
        ((500,), True, Verdict(), "FAILED: 0 wrong of 0 requests, but 10 failed"),
        ((-1,), False, Verdict(), "RIGHT"),
        ((), True, Verdict(wrong=["get(<b>)"]), "WRONG: 1 or more"),
        ((), True, Verdict(unsure=["the audit lost its place"]), "NOT JUDGED: the audit lost its place"),
    ],
)
def test_what_a_run_comes_to(
    tmp_path: Path, statuses: tuple[int, ...], faults: bool, verdict: Verdict, words: str
) -> None:
    plan = planned(tmp_path)
    latencies = seen(plan, *statuses)
    if faults:
        note_faults(plan)
    result = result_of(plan, latencies, verdict, Seen.read(plan.records))
    assert result.words.startswith(words)
    assert result.good is words.startswith("RIGHT")


def test_when_a_run_was_wrong_then_the_page_has_what_was_as_text(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    latencies, nothing = seen(plan), Seen([], [], [])
    result = result_of(plan, latencies, Verdict(wrong=["get(<b>)"]), nothing)
    write_report(result, latencies, nothing)
    page = (tmp_path / PAGE).read_text()
    assert "get(&lt;b&gt;)" in page
    assert "<b>)" not in page
    again = msgspec.json.decode(
        (tmp_path / "result.json").read_bytes(), type=Result, dec_hook=lambda k, t: k(t)
    )
    assert again == result


def test_when_a_run_is_kept_then_it_can_be_judged_where_it_has_been_moved_to(tmp_path: Path) -> None:
    plan = planned(tmp_path / "one")
    plan.records.mkdir(parents=True)
    Left(plan=plan, told=Told(began_ns=1, ended_ns=2, end_revision=3)).save()
    (tmp_path / "one").rename(tmp_path / "two")
    left = Left.load(tmp_path / "two")
    assert left.plan.records == tmp_path / "two" / "records"
    assert left.told.end_revision == 3
    with pytest.raises(BenchError, match="--keep"):
        Left.load(tmp_path / "one")


def test_when_a_replica_does_not_come_back_from_a_fault_then_the_load_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_back(*_: object) -> None:
        raise NotStarted("replica 2 did not start")

    users = tmp_path / "users.py"
    users.write_text("from locust import User\nclass Idle(User):\n    pass\n")
    words = (
        "-f",
        str(users),
        "--headless",
        "--run-time",
        "10m",
        "--autostart",
        "--host",
        "http://127.0.0.1:1",
    )
    monkeypatch.setattr(load_run, "strike", not_back)
    monkeypatch.setattr(load_run, "locust_words", lambda _: words)
    plan = planned(tmp_path)
    plan.records.mkdir()
    crew = Crew(tmp_path / "crew", 3, 1, durable=True)
    run = load_run._Run(plan, crew, "", lambda _: None)
    with pytest.raises(NotStarted):
        asyncio.run(run._load())
    assert run.locust is not None
    assert run.locust.returncode == -signal.SIGKILL
