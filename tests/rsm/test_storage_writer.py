"""The thread that writes: one transaction for all that waits, one wake-up for all its answers."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from ordering.records import Ledger, Record
from rsm.storage import StorageError, StorageFailed, StorageMisuse, Store, Writer, WriterFull
from rsm.storage.writer import LOOKS_MAX
from tests.rsm.storage_kit import BEGAN, GROUP, blocks, ledger_of, opened

DIGEST = b"d" * 16


class Host:
    """Collects answers, and counts how often the loop was woken for them."""

    def __init__(self, directory: Path, waiting_max: int = 64) -> None:
        self.store = Store.open(directory, group=GROUP)
        self.store.restore()
        self.loop = asyncio.get_running_loop()
        self.answers: list[tuple[int, StorageError | None]] = []
        self.saved: list[tuple[int, StorageError | None]] = []
        self._news = asyncio.Event()
        self.gate = threading.Event()
        self.writes: list[int] = []
        write = self.store.write

        def gated(records: tuple[Record, ...]) -> None:
            assert self.gate.wait(30)
            self.writes.append(len(records))
            write(records)

        self.store.write = gated  # type: ignore[method-assign]
        self.writer = Writer(self.store, self.loop, self.on_done, waiting_max=waiting_max)

    def on_done(self, seq: int, error: StorageError | None) -> None:
        self.answers.append((seq, error))
        self._news.set()

    def on_saved(self, ts: int, error: StorageError | None) -> None:
        self.saved.append((ts, error))
        self._news.set()

    async def taken(self) -> None:
        """Until the thread has taken what waits, and stands at the gate with it."""
        async with asyncio.timeout(60):
            while self.writer._waiting:
                await asyncio.sleep(0)

    async def until(self, answers: int, saved: int = 0) -> None:
        async with asyncio.timeout(60):
            while len(self.answers) < answers or len(self.saved) < saved:
                self._news.clear()
                await self._news.wait()


def ledger_in(directory: Path) -> Ledger:
    with opened(directory) as store:
        return store.restore().ledger


def test_when_writes_wait_together_then_they_become_one_transaction(tmp_path: Path) -> None:
    async def run() -> None:
        host = Host(tmp_path)
        host.writer.submit(1, (BEGAN,))
        await host.taken()
        for number in range(10):
            host.writer.submit(number + 2, (blocks(1 + 2 * number, 1),))
        host.gate.set()
        await host.until(11)
        host.writer.close()
        assert host.answers == [(seq, None) for seq in range(1, 12)]
        assert host.writes == [1, 10]
        assert host.writer.commits == 2

    asyncio.run(run())
    assert vars(ledger_in(tmp_path)) == vars(ledger_of([(BEGAN, *(blocks(1 + 2 * n, 1) for n in range(10)))]))


def test_when_a_transaction_is_done_then_the_loop_is_woken_once_for_all_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        host = Host(tmp_path)
        woken = []
        call = host.loop.call_soon_threadsafe

        def counting(*args: object) -> object:
            woken.append(args)
            return call(*args)  # type: ignore[arg-type]

        host.writer.submit(1, (BEGAN,))
        await host.taken()
        monkeypatch.setattr(host.loop, "call_soon_threadsafe", counting)
        for number in range(10):
            host.writer.submit(number + 2, (blocks(1 + 2 * number, 1),))
        host.gate.set()
        await host.until(11)
        assert len(woken) == 2
        host.writer.close()

    asyncio.run(run())


def test_when_too_many_wait_then_the_next_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        host = Host(tmp_path, waiting_max=3)
        host.writer.submit(1, (BEGAN,))
        await host.taken()
        for number in range(3):
            host.writer.submit(number + 2, (blocks(1 + 2 * number, 1),))
        with pytest.raises(WriterFull, match="3 writes wait"):
            host.writer.submit(5, (blocks(7, 1),))
        host.gate.set()
        await host.until(4)
        host.writer.submit(5, (blocks(7, 1),))
        await host.until(5)
        host.writer.close()

    asyncio.run(run())
    assert ledger_in(tmp_path).end == 8


def test_when_it_is_closed_then_the_log_is_written_first_and_no_snapshot_is_waited_for(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        host = Host(tmp_path)
        host.gate.set()
        host.writer.submit(1, (BEGAN,))
        host.writer.save_snapshot(0, repeat(b"x"), DIGEST, host.on_saved)  # without end
        host.writer.submit(2, (blocks(1, 1),))
        host.writer.close()
        host.writer.close()
        with pytest.raises(StorageMisuse, match="closed"):
            host.writer.submit(3, ())
        with pytest.raises(StorageMisuse, match="closed"):
            host.writer.save_snapshot(0, [], DIGEST, host.on_saved)
        await host.until(2, saved=1)
        assert host.answers == [(1, None), (2, None)]
        ((ts, error),) = host.saved
        assert ts == 0
        assert "not complete when the disk was closed" in str(error)

    asyncio.run(run())
    assert ledger_in(tmp_path).end == 2
    with opened(tmp_path) as store:
        assert store.restore().snapshot is None


def test_when_a_write_fails_then_all_that_wait_and_all_later_ones_get_the_error(tmp_path: Path) -> None:
    async def run() -> None:
        host = Host(tmp_path)
        host.gate.set()
        host.writer.submit(1, (BEGAN,))
        await host.until(1)
        host.gate.clear()
        host.writer.submit(2, (blocks(9, 1),))  # does not follow
        await host.taken()
        host.writer.submit(3, (blocks(1, 1),))
        host.writer.save_snapshot(1, [b"x"], DIGEST, host.on_saved)
        host.gate.set()
        await host.until(3, saved=1)
        host.writer.submit(4, (blocks(1, 1),))
        await host.until(4)
        host.writer.close()
        assert [seq for seq, _ in host.answers] == [1, 2, 3, 4]
        assert host.answers[0][1] is None
        errors = [error for _, error in (*host.answers[1:], *host.saved)]
        assert all(isinstance(error, StorageFailed) for error in errors)
        assert len({str(error) for error in errors}) == 1

    asyncio.run(run())
    assert vars(ledger_in(tmp_path)) == vars(ledger_of([(BEGAN,)]))


def test_when_a_snapshot_is_being_saved_then_the_log_is_written_between_its_chunks(tmp_path: Path) -> None:
    async def run() -> None:
        host = Host(tmp_path)
        host.gate.set()
        taken = threading.Semaphore(0)
        wanted = threading.Semaphore(0)

        def chunks() -> Iterator[bytes]:
            for _ in range(5):
                taken.release()
                assert wanted.acquire(timeout=30)
                yield b"chunk"

        host.writer.submit(0, (BEGAN,))
        await host.until(1)
        host.writer.save_snapshot(7, chunks(), DIGEST, host.on_saved)
        with pytest.raises(WriterFull, match="being saved already"):
            host.writer.save_snapshot(8, [], DIGEST, host.on_saved)
        for number in range(5):
            assert await asyncio.to_thread(taken.acquire, timeout=30)
            host.writer.submit(number + 1, (blocks(1 + 2 * number, 1),))
            wanted.release()
            await host.until(number + 2)
            assert not host.saved
        await host.until(6, saved=1)
        host.writer.close()
        assert host.saved == [(7, None)]

    asyncio.run(run())
    with opened(tmp_path) as store:
        found = store.restore()
        assert found.snapshot is not None
        assert found.snapshot.chunks == 5
        assert found.ledger.end == 10


def test_when_the_application_cannot_make_its_snapshot_then_only_that_fails(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ArithmeticError("too hard")

    async def run() -> None:
        host = Host(tmp_path)
        host.gate.set()
        host.writer.save_snapshot(1, broken(), DIGEST, host.on_saved)
        await host.until(0, saved=1)
        host.writer.submit(1, (BEGAN,))
        host.writer.save_snapshot(2, [b"y"], DIGEST, host.on_saved)
        await host.until(1, saved=2)
        host.writer.save_snapshot(1, [b"older"], DIGEST, host.on_saved)
        await host.until(1, saved=3)
        host.writer.submit(2, (blocks(1, 1),))
        await host.until(2)
        host.writer.close()
        assert "too hard" in str(host.saved[0][1])
        assert host.saved[1] == (2, None)
        assert isinstance(host.saved[2][1], StorageMisuse)
        assert host.answers == [(1, None), (2, None)]

    asyncio.run(run())


def test_when_the_loop_is_gone_then_the_thread_ends_all_the_same(tmp_path: Path) -> None:
    async def run() -> Host:
        host = Host(tmp_path)
        host.writer.submit(1, (BEGAN,))
        return host

    host = asyncio.run(run())
    host.gate.set()
    host.writer.close()
    assert vars(ledger_in(tmp_path)) == vars(ledger_of([(BEGAN,)]))


def test_when_somebody_looks_then_the_log_is_read_between_writes_so_many_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(tmp_path)
        found: list[list[int]] = []

        def look(store: Store) -> None:
            for since, most, size in ((0, 10, 1 << 20), (2, 10, 1 << 20), (0, 1, 1 << 20), (0, 10, 1)):
                found.append([entry.order.ts for entry in store.blocks(since, most, size)])

        host.writer.submit(1, (BEGAN, blocks(1, 4)))
        await host.taken()
        for _ in range(LOOKS_MAX):
            host.writer.look(look)
        with pytest.raises(WriterFull, match="readers wait"):
            host.writer.look(look)
        host.gate.set()
        await host.until(1)
        await asyncio.to_thread(host.writer.close)
        slots = [1, 3, 5, 7]  # of blocks that have two each
        assert found == [slots, slots[1:], slots[:1], slots[:1]] * LOOKS_MAX
        with pytest.raises(StorageMisuse):
            host.writer.look(look)

    asyncio.run(main())
