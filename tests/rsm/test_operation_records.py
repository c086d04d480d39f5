"""What callers saw is recorded as they saw it, and no call waits for that."""

import asyncio
import threading
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from ordering.recording import EventKind, TableRecorder, read_recording
from rsm.client import Client, ClientConfig
from rsm.errors import CommandFailed, OutcomeUnknown, Rejected
from rsm.operation_records import FOLDER, SCHEMA, OperationRecords, clock_name
from rsm.proxy import Consistency
from tests.rsm.machines import Counter
from tests.rsm.test_replica import group_of, play

SECONDS = 30
Row = dict[str, Any]


def operations_in(directory: Path) -> list[Row]:
    rows: list[Row] = read_recording(directory / FOLDER, SCHEMA).to_pylist()
    return rows


def client_config(replicas: list[Any], **changes: Any) -> ClientConfig:
    addresses = tuple(replica.address for replica in replicas)
    return ClientConfig(group="tested", replicas=addresses, insecure=True, **changes)


def digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def test_when_a_client_records_then_its_rows_are_what_it_saw_in_the_order_of_the_group(
    tmp_path: Path,
) -> None:
    async def main() -> tuple[int, list[Any]]:
        async with group_of(Counter) as replicas:
            client = Client(Counter, client_config(replicas, recording=tmp_path, recording_name="shop"))
            async with client as counter:
                told = counter.with_details()
                seen: list[Any] = [await told.add(1) for _ in range(5)]
                seen.append(await told.get())
                with pytest.raises(CommandFailed):
                    await counter.break_down(1)
                await counter.with_options(consistency=Consistency.STALE).get()
            return replicas[0].executor.group.chain, seen

    chain, seen = play(main())
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["shop-000001.parquet"]
    rows = operations_in(tmp_path)
    adds = [row for row in rows if row["operation"] == "add"]
    assert [row["ts"] for row in adds] == [each.timestamp for each in seen[:5]]
    assert [row["request"] for row in adds] == [1, 2, 3, 4, 5]
    assert len({row["client"] for row in adds}) == 1
    assert {row["kind"] for row in adds} == {"command"}
    assert {row["argument"] for row in adds} == {digest(msgspec.msgpack.encode(["add", 1]))}
    assert len({row["reply"] for row in adds}) == 5
    query, stale = (row for row in rows if row["operation"] == "get")
    assert (query["kind"], query["ts"], stale["kind"]) == ("query", seen[5].timestamp, "stale")
    assert query["client"] == stale["client"] != adds[0]["client"]
    (failed,) = (row for row in rows if row["operation"] == "break_down")
    assert failed["outcome"] == "failed"
    assert failed["ts"] > adds[-1]["ts"]
    assert {row["outcome"] for row in (*adds, query, stale)} == {"ok"}
    assert {row["chain"] for row in rows} == {chain}
    assert {row["clock"] for row in rows} == {clock_name()}
    for one, other in pairwise(rows):  # it has called one by one
        assert one["call_ns"] < one["return_ns"] <= other["call_ns"]


def test_when_calls_of_a_replica_are_recorded_then_they_fit_the_events_of_that_replica(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with group_of(Counter, recording=tmp_path) as replicas:
            for replica in replicas:
                await asyncio.gather(*(replica.proxy.add(1) for _ in range(50)))
                assert await replica.proxy.get() > 0

    play(main())
    rows = operations_in(tmp_path)
    commands = [row for row in rows if row["kind"] == "command"]
    assert len({(row["client"], row["request"]) for row in commands}) == len(commands) == 150
    assert len({row["ts"] for row in commands}) == 150
    submitted = [
        row for row in read_recording(tmp_path).to_pylist()
        if row["event"] == EventKind.SUBMITTED and row["session"] is not None
    ]  # fmt: skip
    assert {row["session"] for row in submitted} == {row["client"] for row in commands}
    queries = [row for row in rows if row["kind"] == "query"]
    assert len(queries) == 3
    for query in queries:  # nothing that was answered before is missed
        before = [row["ts"] for row in commands if row["return_ns"] <= query["call_ns"]]
        assert query["ts"] >= max(before)


def test_when_nobody_answers_then_the_outcome_is_unknown_and_has_no_slot(tmp_path: Path) -> None:
    async def main() -> None:
        async with group_of(Counter) as replicas:
            config = client_config(replicas, recording=tmp_path, timeout=0.3)
            async with Client(Counter, config) as counter:
                await counter.add(1)
                for replica in replicas:
                    replica._driver.close()
                with pytest.raises(OutcomeUnknown):
                    await counter.add(1)
                with pytest.raises(TimeoutError):
                    await counter.get()

    play(main())
    first, command, query = operations_in(tmp_path)
    assert first["outcome"] == "ok"
    assert (command["outcome"], command["ts"], command["reply"]) == ("unknown", None, None)
    assert (command["client"], command["request"]) == (first["client"], 2)
    assert (query["kind"], query["outcome"], query["ts"]) == ("query", "unknown", None)


def test_when_the_writer_is_behind_then_calls_go_on_and_a_gap_says_how_many_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = threading.Event(), threading.Event()
    write = TableRecorder.write

    def slowly(self: TableRecorder, batch: pa.RecordBatch) -> None:
        asked.set()
        assert released.wait(SECONDS)
        write(self, batch)

    monkeypatch.setattr(TableRecorder, "write", slowly)

    async def main() -> int:
        async with group_of(Counter) as replicas:
            one = replicas[0]
            kept = OperationRecords(tmp_path, "slow", lambda: 7, rows_waiting_max=10, flush_seconds=0.01)
            kept.start()
            one._calls.operations = kept
            await one.proxy.add(1)
            await asyncio.to_thread(asked.wait, SECONDS)
            for _ in range(60):
                await one.proxy.add(1)
            assert (kept.waiting, kept.dropped) == (10, 50)
            released.set()
            while kept.waiting:
                await asyncio.sleep(0.01)
            await one.proxy.add(1)
            await asyncio.to_thread(kept.finish)
            return kept.dropped

    dropped = play(main())
    rows = operations_in(tmp_path)
    (gap,) = (row for row in rows if row["kind"] == "gap")
    assert gap["request"] == dropped
    assert len(rows) == 1 + 10 + 1 + 1


def test_when_the_machine_rejects_then_the_row_says_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with group_of(Counter, recording=tmp_path) as (one, *_):
            with pytest.raises(Rejected):
                await one.proxy.subtract(5)

    play(main())
    (row,) = operations_in(tmp_path)
    assert row["outcome"] == "rejected"
    assert row["ts"] is not None
