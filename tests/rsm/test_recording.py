"""Recordings of real replicas: what the rows say is what happened, and nothing of it holds up the ring."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from bench.ports import free_ports
from cli.replica import write_group
from ordering.driver import run
from ordering.effects import Accepted, CallsTaken, Deliver, Delivery, InstallView, LevelReached, Retract
from ordering.packets import Batch
from ordering.qos import MAJORITY, Level
from ordering.recording import SCHEMA, EventKind, Recorder, read_recording
from ordering.views import Member, SiteId, View, ViewId
from rsm import envelope
from rsm import recording as recording_module
from rsm.calls import Calls
from rsm.client import Client, ClientConfig
from rsm.envelope import Language
from rsm.errors import OutcomeUnknown
from rsm.executor import Executor
from rsm.methods import Catalogue
from rsm.recording import NOBODY, Noted, Recording, columns
from rsm.replica import Replica
from rsm.state_machine import StateMachine
from tests.rsm.machines import Counter
from tests.rsm.test_replica import config, group_of, play

ROOT = Path(__file__).parents[2]
SECONDS = 60
ME = Member(SiteId((1 << 64) - 1), (1 << 128) - 1, "a:1")
Row = dict[str, Any]


class NoCalls(Calls):
    """Nothing of ours is under way."""

    def __init__(self) -> None:
        self._sent = {}


def executor_of(machine: type[StateMachine]) -> Executor:
    catalogue = Catalogue(machine)
    return Executor(machine(), catalogue, Language(catalogue))


def rows_of(directory: Path) -> list[Row]:
    rows: list[Row] = read_recording(directory).to_pylist()
    return rows


def of(rows: list[Row], *events: EventKind) -> list[Row]:
    return [row for row in rows if row["event"] in events]


# -- an audit, from the rows alone ---------------------------------------------------------------


def order_at(rows: list[Row]) -> dict[tuple[int, int], tuple[int, int]]:
    """What stands at each slot of a chain: source and number. One content, whoever tells it."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for row in of(rows, EventKind.DELIVERED):
        for offset in range(row["count"]):
            slot = (row["chain"], row["first_ts"] + offset)
            what = (row["source"], row["first_seq"] + offset)
            assert found.setdefault(slot, what) == what, f"two contents at {slot}"
    return found


def check_boots(rows: list[Row]) -> None:
    """Each boot delivers rising slots, and each message once."""
    last: dict[bytes, int] = defaultdict(int)
    seen: dict[bytes, set[tuple[int, int]]] = defaultdict(set)
    for row in of(rows, EventKind.DELIVERED):
        boot = row["boot"]
        assert row["first_ts"] > last[boot]
        last[boot] = row["first_ts"] + row["count"] - 1
        messages = {(row["source"], row["first_seq"] + offset) for offset in range(row["count"])}
        assert not messages & seen[boot]
        seen[boot] |= messages


def digests_at(rows: list[Row]) -> dict[tuple[int, int], list[bytes]]:
    """Of the state behind each slot, by every site that tells one."""
    found: dict[tuple[int, int], dict[int, bytes]] = defaultdict(dict)
    for row in of(rows, EventKind.APPLIED, EventKind.RESTORED):
        if row["chain"]:
            found[row["chain"], row["first_ts"]][row["site"]] = row["digest"]
    return {slot: list(told.values()) for slot, told in found.items()}


def start(site: Path) -> "subprocess.Popen[str]":
    words = ["replica", "--config", str(site), "--machine", "tests.rsm.machines:Counter"]
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def wait_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")


async def add_until(client_config: ClientConfig, done: threading.Event) -> int:
    """Call again and again; how many calls were answered."""
    answered = 0
    async with Client(Counter, client_config) as counter:
        while not done.is_set():
            results = await asyncio.gather(*(counter.add(1) for _ in range(20)), return_exceptions=True)
            answered += sum(isinstance(each, int) for each in results)
            for error in results:
                if isinstance(error, BaseException) and not isinstance(error, OutcomeUnknown | TimeoutError):
                    raise error
    return answered


def test_when_real_replicas_are_killed_under_load_then_their_rows_alone_show_order_and_agreement(
    tmp_path: Path,
) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    directory, recorded = tmp_path / "g", tmp_path / "recorded"
    write_group(directory, addresses, "audited", durable=True, metrics=False)
    sites = [directory / f"site-{number}.toml" for number in (1, 2, 3)]
    for site in sites:
        site.write_text(site.read_text() + f'recording = "{recorded}"\n')
    running = [start(site) for site in sites]
    done = threading.Event()
    answers: list[int] = []
    try:
        for process in running:
            wait_ready(process)
        client = ClientConfig(group="audited", replicas=tuple(addresses), key_file=directory / "group.key")
        load = threading.Thread(target=lambda: answers.append(run(add_until(client, done))))
        load.start()
        wait_rows(recorded, 60)
        running[2].kill()
        running[2].communicate(timeout=SECONDS)
        running[2] = start(sites[2])
        wait_ready(running[2])
        wait_rows(recorded, 60)
        done.set()
        load.join(SECONDS)
        for process in running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(SECONDS) for process in running] == [0, 0, 0]
    finally:
        done.set()
        for process in running:
            if process.poll() is None:
                process.kill()
            process.communicate()
    audit(rows_of(recorded), answers[0])


def wait_rows(directory: Path, more: int) -> None:
    """Until so many more replies were recorded."""
    until = time.monotonic() + SECONDS
    before = len(of(rows_of(directory), EventKind.REPLIED)) if directory.exists() else 0
    while time.monotonic() < until:
        if directory.exists() and len(of(rows_of(directory), EventKind.REPLIED)) >= before + more:
            return
        time.sleep(0.05)
    raise AssertionError("too little was recorded")


def audit(rows: list[Row], answered: int) -> None:
    order = order_at(rows)
    check_boots(rows)
    sites = {row["site"] for row in rows}
    assert len(sites) == 3
    starts = [(row["site"], row["detail"]) for row in of(rows, EventKind.STARTED)]
    assert len(starts) == 4, "three, and the one that came back from its disk"
    assert [how for _, how in starts].count("disk") == 1
    compared = [told for told in digests_at(rows).values() if len(told) > 1]
    assert len(compared) >= 3
    for told in compared:
        assert len(set(told)) == 1
    replied = of(rows, EventKind.REPLIED)
    for row in replied:  # nobody is answered what is not in the order
        for offset in range(row["count"]):
            assert order[row["chain"], row["first_ts"] + offset][0] == row["source"]
    assert sum(row["count"] for row in replied if row["detail"] == "handler") >= answered > 0
    views = of(rows, EventKind.VIEW)
    assert {row["epoch"] for row in views} >= {1, 2}
    by_view = {(row["chain"], row["epoch"], row["revision"], row["first_ts"], row["detail"]) for row in views}
    assert len(by_view) == len({key[:3] for key in by_view}), "one view id, one place and one content"
    assert not of(rows, EventKind.GAP)


def test_when_replicas_of_one_process_are_recorded_then_submissions_name_their_requests(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with group_of(Counter, recording=tmp_path) as replicas:
            for replica in replicas:
                await asyncio.gather(*(replica.proxy.add(1) for _ in range(300)))
            async with replicas[0].lock("door"):
                pass
            last = max(replica.executor.applied for replica in replicas)
            await asyncio.gather(*(replica.when_applied(last) for replica in replicas))

    play(main())
    rows = rows_of(tmp_path)
    order_at(rows)
    check_boots(rows)
    assert {row["schema_version"] for row in rows} == {1}
    submitted = of(rows, EventKind.SUBMITTED)
    named = [row for row in submitted if row["session"] is not None]
    assert sum(row["count"] for row in named) >= 900
    assert all(row["first_request"] >= 1 and row["source"] == row["site"] for row in named)
    delivered = of(rows, EventKind.DELIVERED)
    for site in {row["site"] for row in rows}:
        told = sum(row["count"] for row in delivered if row["site"] == site)
        assert told >= 900
        assert len([row for row in delivered if row["site"] == site]) < told / 3, "a row is a range"
    told = [each for each in digests_at(rows).values() if len(each) == 3]
    assert told
    assert all(len(set(each)) == 1 for each in told)
    assert {row["detail"] for row in of(rows, EventKind.LOCK)} >= {"granted door"}
    offset = {row["wall_ns"] - row["mono_ns"] for row in rows}
    assert max(offset) - min(offset) < 1e9


def test_when_a_state_is_taken_over_then_the_row_names_the_donor(tmp_path: Path) -> None:
    async def main() -> tuple[int, set[int]]:
        async with group_of(Counter) as replicas:
            await replicas[0].proxy.add(1)
            late: Replica[Counter] = Replica(Counter, config(recording=tmp_path))
            await late.open()
            late.join((), (replicas[0].address,))
            await late.ready()
            site = late.member.site
            await late.stop()
            return site, {replica.member.site for replica in replicas}

    site, donors = play(main())
    rows = rows_of(tmp_path)
    (restored,) = of(rows, EventKind.RESTORED)
    assert restored["site"] == site
    assert restored["source"] in donors
    assert len(restored["digest"]) == 4
    assert of(rows, EventKind.STARTED)[0]["detail"] == "joiner"


# -- a slow disk, a broken one -------------------------------------------------------------------


def test_when_the_writer_is_behind_then_rows_are_dropped_and_a_gap_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = threading.Event(), threading.Event()
    write = Recorder.write

    def slowly(self: Recorder, batch: pa.RecordBatch) -> None:
        asked.set()
        assert released.wait(SECONDS)
        write(self, batch)

    monkeypatch.setattr(Recorder, "write", slowly)
    monkeypatch.setattr(recording_module, "ROWS_WAITING_MAX", 40)

    async def main() -> tuple[int, float]:
        async with group_of(Counter) as replicas:
            kept = Recording(tmp_path, "slow", bytes_max=1 << 30, rows_waiting_max=40, flush_seconds=0.01)
            replicas[0]._watch.recording = kept
            kept.begin(replicas[0].member, "founder")
            kept.start()
            await asyncio.to_thread(asked.wait, SECONDS)
            began = time.monotonic()
            for _ in range(200):
                await replicas[0].proxy.add(1)
            took = time.monotonic() - began
            assert kept.waiting == 40
            assert kept.dropped > 100
            status = replicas[0].status().recording
            assert status is not None
            assert (status.dropped, status.error) == (kept.dropped, "")
            released.set()
            while kept.waiting:
                await asyncio.sleep(0.01)
            await replicas[0].proxy.add(1)
            return kept.dropped, took

    dropped, took = play(main())
    assert took < SECONDS / 2, "the ring waited for the writer"
    rows = rows_of(tmp_path)
    (gap,) = of(rows, EventKind.GAP)
    assert gap["count"] == dropped
    place = rows.index(gap)
    assert place >= 40
    assert rows[place + 1]["event"] in {EventKind.SUBMITTED, EventKind.DELIVERED}
    assert rows[place - 1]["mono_ns"] <= gap["mono_ns"] < rows[place + 1]["mono_ns"]


def test_when_rows_are_missing_at_the_end_then_the_last_row_says_so(tmp_path: Path) -> None:
    kept = Recording(tmp_path, "full", bytes_max=1 << 30, rows_waiting_max=2)
    for _ in range(5):
        kept.begin(ME, "founder")
    kept.start()
    kept.finish()
    assert [row["event"] for row in rows_of(tmp_path)] == ["started", "started", "gap"]
    assert rows_of(tmp_path)[-1]["count"] == 3


def test_when_the_disk_fails_then_the_recording_ends_and_the_replica_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with group_of(Counter, recording=tmp_path) as (one, two, _):
            await one.proxy.add(1)
            monkeypatch.setattr(Recorder, "write", full)
            kept = one._watch.recording
            assert kept is not None
            while kept.error is None:
                await one.proxy.add(1)
                await asyncio.sleep(0.01)
            status = one.status().recording
            assert status is not None
            assert "No space left" in status.error
            for _ in range(20):
                await one.proxy.add(1)
            assert kept.waiting == 0
            assert await two.proxy.get() > 20

    play(main())
    assert "the recording stopped" in caplog.text


def test_when_there_is_no_place_to_record_then_the_replica_serves_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()

    async def main() -> None:
        async with group_of(Counter, recording=blocked / "below") as (one, *_):
            assert await one.proxy.add(1) == 1
            status = one.status().recording
            assert status is not None
            assert status.error

    play(main())


def test_when_a_name_is_in_use_then_only_the_recording_ends(tmp_path: Path) -> None:
    first = Recorder(tmp_path, "one")
    second = Recording(tmp_path, "one", bytes_max=1 << 30)
    second.begin(ME, "founder")
    second.start()
    second.finish()
    assert second.error is not None
    assert "somebody else records as one" in second.error
    first.close()
    assert rows_of(tmp_path) == []


def test_when_a_row_cannot_be_noted_then_only_the_recording_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise KeyError("a defect")

    async def main() -> None:
        async with group_of(Counter, recording=tmp_path) as (one, two, _):
            await one.proxy.add(1)
            monkeypatch.setattr(Recording, "_deliver", defect)
            assert await one.proxy.add(1) == 2
            assert await two.proxy.add(1) == 3
            kept = one._watch.recording
            assert kept is not None
            assert kept.error is not None
            assert "a defect" in kept.error

    play(main())


def test_when_a_writer_died_or_the_disk_was_full_then_its_successor_takes_up_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    kept = Recording(tmp_path, "again", bytes_max=1 << 30)
    kept.begin(ME, "founder")
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "_write_closed", full)
        kept.start()
        kept.finish()
    assert kept.error is not None
    (tmp_path / "again-000001.tmp").write_bytes(b"half a file")
    (tmp_path / "another-000001.tmp").touch()
    following = Recording(tmp_path, "again", bytes_max=1 << 30)
    following.begin(ME, "disk")
    following.start()
    following.finish()
    assert [row["detail"] for row in rows_of(tmp_path)] == ["founder", "disk"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again-000001.parquet",
        "again-000002.parquet",
        "another-000001.tmp",
    ]


# -- files and rows ------------------------------------------------------------------------------


def test_when_recordings_grow_then_the_oldest_files_go_and_the_newest_stays(tmp_path: Path) -> None:
    limit = 12_000
    kept = Recording(tmp_path, "long", bytes_max=limit, flush_seconds=0.001, rows_per_file=50)
    kept.start()
    last = 0
    for number in range(1, 2_001):
        kept.begin(Member(ME.site, number, ME.address), "founder")
        last = number
        if number % 50 == 0:
            while kept.waiting:
                time.sleep(0.001)
    kept.finish()
    files = sorted(tmp_path.glob("*.parquet"))
    assert 1 < len(files) < 40
    assert sum(os.path.getsize(file) for file in files) <= limit
    boots = [int.from_bytes(row["boot"], "big") for row in rows_of(tmp_path)]
    assert boots[-1] == last
    assert boots == list(range(boots[0], last + 1)), "what is kept is whole"


def test_when_callers_outside_ask_then_what_this_site_submits_for_them_is_a_row_with_the_first_call(
    tmp_path: Path,
) -> None:
    kept = Recording(tmp_path, "callers", bytes_max=1 << 30)
    kept.begin(ME, "founder")
    catalogue = Catalogue(Counter)
    call = Language(catalogue).encode(41, 6, 5, catalogue.command("add").bind((1,), {}))
    for first, message in ((3, call), (5, envelope.OPEN), (7, b"what no machine knows")):
        batch = Batch(ME.site, ME.boot, first, MAJORITY, (message, call))
        kept.hear([CallsTaken(batch)], NoCalls())
    kept.start()
    kept.finish()
    told = [
        (row["source"], row["first_seq"], row["count"], row["session"], row["first_request"])
        for row in rows_of(tmp_path)
        if row["event"] == "submitted"
    ]
    assert told == [
        (ME.site, 3, 2, 41, 6),
        (ME.site, 5, 2, None, None),
        (ME.site, 7, 2, None, None),
    ]


def test_when_slots_of_a_fork_come_before_its_view_then_they_are_rows_of_the_fork(tmp_path: Path) -> None:
    kept = Recording(tmp_path, "forked", bytes_max=1 << 30)
    kept.begin(ME, "founder")
    old, new = (View(ViewId(epoch, 0), (ME,), (ME.site,), (ME.site,)) for epoch in (1, 2))

    def deliver(ts: int, chain: int) -> Deliver:
        made = Delivery(ts, SiteId(7), ts, MAJORITY, Level.MAJORITY, (b"x",))
        return Deliver(old.id, (made,), chain)

    kept.hear(
        [InstallView(9, 77, old), deliver(10, 77), deliver(11, 78), InstallView(12, 78, new)], NoCalls()
    )
    kept.start()
    kept.finish()
    told = [(row["event"], row["chain"], row["first_ts"]) for row in rows_of(tmp_path)]
    assert told == [
        ("started", 0, None),
        ("view", 77, 9),
        ("delivered", 77, 10),
        ("delivered", 78, 11),
        ("view", 78, 12),
    ]


def test_when_deliveries_of_one_source_follow_each_other_then_they_are_one_row(tmp_path: Path) -> None:
    kept = Recording(tmp_path, "ranges", bytes_max=1 << 30)
    kept.begin(ME, "founder")
    view = View(ViewId(3, 1), (ME,), (ME.site,), (ME.site,))

    def delivery(ts: int, seq: int, count: int, source: int = 7) -> Delivery:
        return Delivery(ts, SiteId(source), seq, MAJORITY, Level.MAJORITY, (b"x",) * count)

    several = (
        delivery(10, 1, 5),
        delivery(15, 6, 3),
        delivery(19, 9, 1),
        delivery(20, 10, 1, 8),
        delivery(21, 11, 1, 8),
    )
    calls = NoCalls()
    kept.hear([InstallView(9, 77, view), Deliver(view.id, several), LevelReached(21, 20)], calls)
    kept.hear([Accepted(3, 2, MAJORITY), Retract(18)], calls)
    executor = executor_of(Counter)
    executor.group.applied = 35
    kept.executed(delivery(22, 32, 6), executor, 0)  # the state had it before
    kept.executed(msgspec.structs.replace(delivery(30, 40, 6), owed=(0, 1, 4)), executor, 0)
    executor.group.applied = 41
    kept.executed(msgspec.structs.replace(delivery(36, 46, 6), owed=(1, 2)), executor, 6)
    kept.reached(35)
    kept.reached(35)
    kept.start()
    kept.finish()
    rows = rows_of(tmp_path)
    told = [(row["event"], row["first_ts"], row["count"], row["source"], row["first_seq"]) for row in rows]
    assert told == [
        ("started", None, None, None, None),
        ("view", 9, None, None, None),
        ("delivered", 10, 8, 7, 1),
        ("delivered", 19, 1, 7, 9),
        ("delivered", 20, 2, 8, 10),
        ("submitted", None, 2, ME.site, 3),
        ("retracted", 19, None, None, None),
        ("applied", 35, None, None, None),
        ("replied", 30, 1, 7, 40),
        ("replied", 31, 1, 7, 41),
        ("replied", 34, 1, 7, 44),
        ("replied", 36, 6, 7, 46),
        ("replied", 37, 2, 7, 47),
        ("held", 35, None, None, None),
        ("level", 21, None, None, None),
        ("applied", 41, None, None, None),
    ]
    assert {row["chain"] for row in rows[1:]} == {77}
    assert {(row["epoch"], row["revision"]) for row in rows[1:]} == {(3, 1)}


def test_columns_hold_the_largest_numbers_and_several_tellers() -> None:
    big = NOBODY._replace(chain=(1 << 64) - 1, site=(1 << 64) - 1, boot=b"\xff" * 16)
    row: Noted = (NOBODY, 0, 1, 2, 3, 4, 5, 6, 7, MAJORITY, 8, 9, b"d", "words")
    other: Noted = (big, 1, (1 << 62), *(None,) * 11)
    batch = columns([row, other], 1_000)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    first, second = batch.to_pylist()
    assert (first["chain"], first["qos"], first["wall_ns"], first["detail"]) == (
        0,
        "majority",
        1_001,
        "words",
    )
    assert (second["site"], second["boot"], second["qos"]) == ((1 << 64) - 1, b"\xff" * 16, None)
