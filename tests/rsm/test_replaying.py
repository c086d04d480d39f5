"""The state that a directory gives without its replica, and the same log in words."""

import asyncio
import io
from pathlib import Path

import msgspec
import pytest

from cli.log import _Reader
from ordering.packets import Batch, Order, Run
from ordering.qos import MAJORITY
from ordering.records import Entries, Entry, Ledger
from ordering.views import SiteId
from rsm.config import ReplicaConfig
from rsm.envelope import Close, Language, Unread, encode
from rsm.errors import StateLost
from rsm.logbook import blocks
from rsm.methods import Catalogue
from rsm.replaying import replay
from rsm.state_machine import StateMachine
from rsm.storage.looking import looking
from tests.rsm.machines import Counter, Echo, Grid, Old
from tests.rsm.storage_kit import BEGAN, BOOT, GROUP, install, restored
from tests.rsm.storage_kit import blocks as some_blocks
from tests.rsm.test_durable import Cluster, play


@pytest.mark.parametrize("snapshot_bytes", [2_000, 1 << 20], ids=["with a snapshot", "without one"])
def test_when_a_log_is_replayed_then_the_state_is_the_replicas(tmp_path: Path, snapshot_bytes: int) -> None:
    async def main() -> dict[int, tuple[int, int, int]]:
        found = {}
        async with Cluster(tmp_path, snapshot_bytes=snapshot_bytes) as cluster:
            for number in range(10):
                await asyncio.gather(*(cluster.replicas[number % 3].proxy.add(1) for _ in range(20)))
            await cluster.stop(2)
            await cluster.replicas[0].proxy.add(1)
            await cluster.start(2)
            await cluster.ready()
            await asyncio.gather(*(replica.proxy.get() for replica in cluster.replicas.values()))
            for site, replica in list(cluster.replicas.items()):
                await cluster.stop(site)
                executor = replica.executor
                assert isinstance(executor.machine, Counter)
                found[site] = (executor.applied, executor.group.digest, executor.machine.value)
        return found

    for site, (applied, digest, value) in play(main()).items():
        with looking(tmp_path / f"site-{site}") as look:
            assert (look.snapshot is None) == (snapshot_bytes > 2_000)
            executor = replay(Counter, None if look.snapshot is None else look.chunks(), look.ledger)
            assert executor.applied >= applied
            assert isinstance(executor.machine, Counter)
            assert (executor.group.digest, executor.machine.value) == (digest, value) == (digest, 201)
            if look.ledger.base is not None:
                with pytest.raises(StateLost, match="take the state of another"):
                    replay(Counter, None, look.ledger)


# -- in words ------------------------------------------------------------------------------------


def told(machine: type[StateMachine], *messages: bytes) -> list[tuple[str, str, object]]:
    ledger = Ledger()
    order = Order(1, 1, SiteId(1), SiteId(1), (Run(SiteId(1), 1, len(messages)),), time=10**18)
    ledger.apply((BEGAN, Entries((Entry(order, (Batch(SiteId(1), BOOT, 1, MAJORITY, messages),)),))))
    (block,) = blocks(ledger, 0, None, Catalogue(machine))
    assert block.messages is not None
    assert [each.slot for each in block.messages] == list(range(2, 2 + len(messages)))
    assert msgspec.json.encode(block)
    return [(each.kind, each.method, each.arguments) for each in block.messages]


def test_when_messages_are_told_then_each_kind_has_its_words() -> None:
    counter = Language(Catalogue(Counter))
    add = Catalogue(Counter).command("add").bind((5,), {})
    subtract = Catalogue(Counter).command("subtract").bind((5,), {})
    get = Catalogue(Counter).query("get").bind((), {})
    assert told(
        Counter, counter.encode(7, 1, 0, add), counter.encode_query(get), encode(Close(7)), b"\xff"
    ) == [
        ("command", "add", {"n": 5}),
        ("query", "get", {}),
        ("close", "", None),
        ("unreadable", "", None),
    ]
    # A machine that has no such command shows what is there.
    assert told(Old, counter.encode(7, 1, 0, subtract)) == [("command", "", ["subtract", 5])]
    echo = Language(Catalogue(Echo))
    assert told(Echo, echo.encode(7, 1, 0, b"\x00\xff")) == [("command", "apply", ["AP8="])]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"\x81\xc0\x01", "{None: 1}"),
        (b"\x81\x91\x01\x02", "{(1,): 2}"),
        (b"\x81\x81\x01\x02\x03", "8181010203"),  # a key that is a map
        (b"\xa1\xff", "a1ff"),  # a text in no encoding of ours
    ],
)
def test_when_somebody_has_sent_what_is_no_command_then_the_log_is_told_all_the_same(
    sent: bytes, shown: str
) -> None:
    message = encode(Unread(7, 1, 0, msgspec.Raw(sent)))
    assert told(Counter, message) == [("command", "", shown)]


def test_when_an_argument_has_no_place_in_json_then_it_is_told_in_words() -> None:
    catalogue = Catalogue(Grid)
    message = Language(catalogue).encode(7, 1, 0, catalogue.command("put").bind(({(1, 2): 3},), {}))
    assert told(Grid, message) == [("command", "put", "{'cells': {(1, 2): 3}}")]


def test_when_a_view_change_erases_what_was_shown_then_following_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ReplicaConfig(
        group=GROUP, insecure=True, mode="durable", data=tmp_path, founders=("127.0.0.1:7401",)
    )
    target = io.StringIO()
    reader = _Reader(config, None, "jsonl", target)

    def shown() -> list[tuple[int, int]]:
        lines = [msgspec.json.decode(line) for line in target.getvalue().splitlines()]
        target.seek(0)
        target.truncate()
        return [(line["slot"], line["epoch"]) for line in lines]

    with restored(tmp_path) as store:
        store.write((BEGAN, some_blocks(1, 4)))
        reader.look(2)
        assert shown() == [(5, 1), (7, 1)]
        store.write((some_blocks(9, 1),))
        reader.look(None)
        assert shown() == [(9, 1)]
        store.write((install(2, 7), some_blocks(8, 1, epoch=2)))
        reader.look(None)
        assert shown() == [(7, 2), (8, 2)]
        assert "slots from 7 on were erased by a view change" in capsys.readouterr().err
        reader.look(None)
        assert shown() == []
