"""Metrics of real replicas, scraped over HTTP and read as Prometheus does."""

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.ports import free_ports
from rsm.errors import CommandFailed
from rsm.figures import Figure, gauge, gauges
from rsm.histogram import Histogram
from rsm.replica import Replica
from tests.rsm.machines import Counter
from tests.rsm.test_durable import Cluster
from tests.rsm.test_replica import config, group_of, play

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def fetch(replica: Replica[Any], page: str, accept: str = "") -> tuple[int, str]:
    port = replica._pages[0].port

    def get() -> tuple[int, str]:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{page}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def scrape(replica: Replica[Any]) -> Samples:
    """By name and labels; those that all samples of the replica have are checked and left out."""
    code, text = await fetch(replica, "/metrics")
    assert code == 200
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("rsm_"):
                assert labels.pop("group") == replica.config.group
                assert labels.pop("site") == replica.address
            key = (sample.name, frozenset(labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_when_replicas_work_then_a_scrape_says_how_much_and_where_they_stand() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as (one, two, _):
            for _ in range(20):
                await one.proxy.add(1)
            with pytest.raises(CommandFailed):
                await one.proxy.break_down(1)
            last = one.executor.applied
            await two.when_applied(last)
            here, there = await scrape(one), await scrape(two)
            assert value(here, "rsm_command_duration_seconds_count") == 21
            assert value(there, "rsm_command_duration_seconds_count") == 0
            assert value(here, "rsm_command_duration_seconds_bucket", le="+Inf") == 21
            assert 0 < value(here, "rsm_command_duration_seconds_sum") < 60
            for samples in (here, there):
                assert value(samples, "rsm_standing", standing="serving") == 1
                assert value(samples, "rsm_standing", standing="halted") == 0
                assert value(samples, "rsm_ring_members") == value(samples, "rsm_voters") == 3
                assert value(samples, "rsm_in_ring") == 1
                assert value(samples, "rsm_applied_slot") >= last
                assert value(samples, "rsm_defects_total", method="break_down", error="KeyError") == 1
                assert value(samples, "rsm_view_changes_total") >= 1
                assert value(samples, "rsm_datagrams_received_total") > 0
                assert value(samples, "process_open_fds") > 0
                assert value(samples, "rsm_sessions") == 1
            assert value(here, "rsm_messages_submitted_total") >= 21
            assert {value(each, "rsm_handler") for each in (here, there)} == {0, 1}
            (info,) = [dict(labels) for name, labels in here if name == "rsm_replica_info"]
            assert (info["id"], info["machine"]) == (f"{one.member.site:x}", "Counter")

    play(main())


def test_when_work_goes_on_then_counters_grow_and_two_replicas_do_not_share_them() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as (one, two, _):
            await one.proxy.add(1)
            first = await scrape(one)
            await asyncio.gather(*(one.proxy.add(1) for _ in range(50)))
            second, other = await scrape(one), await scrape(two)
            name = "rsm_command_duration_seconds_count"
            assert value(second, name) - value(first, name) == 50
            assert value(other, name) == 0
            for key, before in first.items():
                if key[0].startswith("rsm_") and key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                    assert second[key] >= before, key

    play(main())


def test_when_a_scraper_prefers_openmetrics_then_it_gets_that() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as (one, *_):
            _, text = await fetch(one, "/metrics", "application/openmetrics-text;version=1.0.0")
            assert text.endswith("# EOF\n")

    play(main())


def test_health_is_good_only_while_the_replica_serves() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as (one, two, _):
            alone: Replica[Counter] = Replica(Counter, config(metrics="127.0.0.1:0"))
            await alone.open()
            assert await fetch(alone, "/healthz") == (503, "outside\n")
            alone.join((), (one.address,))
            await alone.ready()
            assert await fetch(alone, "/healthz") == (200, "serving\n")
            await alone.stop()
            two._fail(RuntimeError("broken"))
            assert await fetch(two, "/healthz") == (503, "halted\n")
            samples = await scrape(two)
            assert value(samples, "rsm_standing", standing="halted") == 1

    play(main())


def test_when_the_port_is_taken_then_the_replica_serves_without_metrics_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)

    async def main() -> None:
        async with group_of(Counter, metrics=f"127.0.0.1:{port}") as (one, two, three):
            assert [await each.proxy.get() for each in (one, two, three)] == [0, 0, 0]
            assert [each._pages[0].port for each in (one, two, three)] == [port, 0, 0]

    play(main())
    assert caplog.text.count("no metrics are served") == 2


def test_when_there_is_a_disk_then_syncs_log_and_snapshots_are_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path, metrics="127.0.0.1:0", snapshot_bytes=200) as cluster:
            one = cluster.replicas[0]
            for _ in range(30):
                await one.proxy.add(1)
            while not one._disk or not one._disk.stats.snapshots:
                await one.proxy.add(1)
            samples = await scrape(one)
            assert value(samples, "rsm_sync_duration_seconds_count") > 0
            assert value(samples, "rsm_sync_duration_seconds_sum") > 0
            assert value(samples, "rsm_snapshots_total") >= 1
            assert value(samples, "rsm_snapshot_bytes") > 0
            assert 0 <= value(samples, "rsm_snapshot_age_seconds") < 60
            assert value(samples, "rsm_log_bytes") > 0

    play(main())


def test_when_a_state_is_transferred_then_both_sides_count_it() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as replicas:
            await replicas[0].proxy.add(1)
            late: Replica[Counter] = Replica(Counter, config(metrics="127.0.0.1:0"))
            await late.open()
            late.join((), (replicas[0].address,))
            await late.ready()
            taken = await scrape(late)
            given = [await scrape(each) for each in replicas]
            await late.stop()
            assert value(taken, "rsm_transfers_total", event="taken") == 1
            assert sum(value(each, "rsm_transfers_total", event="given") for each in given) == 1
            size = value(taken, "rsm_transfer_bytes_total", event="taken")
            assert size == sum(value(each, "rsm_transfer_bytes_total", event="given") for each in given) > 0

    play(main())


def test_every_metric_is_documented_and_every_documented_one_exists(tmp_path: Path) -> None:
    async def main() -> set[str]:
        settings: dict[str, Any] = {
            "metrics": "127.0.0.1:0",
            "recording": tmp_path / "r",
            "snapshot_bytes": 100,
        }
        async with Cluster(tmp_path, **settings) as cluster:
            one = cluster.replicas[0]
            while not one._disk or not one._disk.stats.snapshots:
                await one.proxy.add(1)
            _, text = await fetch(one, "/metrics")
            return set(re.findall(r"^# TYPE (rsm_\w+) ", text, re.MULTILINE))

    served = play(main())
    assert served == {name for name in documented() if not name.startswith("rsm_actions")}


def documented() -> set[str]:
    return set(re.findall(r"^\| `(rsm_\w+)`", DOCS.read_text(), re.MULTILINE))


class Shop(Counter):
    def figures(self) -> Iterator[Figure]:
        yield gauge("shop_sum", "What was added up.", self.value)


def test_when_an_application_has_figures_of_its_own_then_they_are_shown_beside_the_others() -> None:
    async def main() -> None:
        async with group_of(Shop, 1, metrics="127.0.0.1:0") as (one,):
            await one.proxy.add(7)
            one.show_figures("left", lambda: [gauges("shop_tills", "Open.", "till", {"left": 1})])
            one.show_figures("right", lambda: [gauges("shop_tills", "Open.", "till", {"right": 2})])
            samples = await scrape(one)
            assert value(samples, "rsm_shop_sum") == 7
            assert [value(samples, "rsm_shop_tills", till=till) for till in ("left", "right")] == [1, 2]
            one.show_figures("right", None)
            assert ("rsm_shop_tills", frozenset({("till", "right")})) not in await scrape(one)

    play(main())


def test_when_figures_of_an_application_fail_then_the_rest_of_the_page_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Iterator[Figure]:
        raise LookupError("no such figure")

    async def main() -> None:
        async with group_of(Shop, 1, metrics="127.0.0.1:0") as (one,):
            one.show_figures("broken", fail)
            samples = await scrape(one)
            assert value(samples, "rsm_shop_sum") == 0
            assert value(samples, "rsm_standing", standing="serving") == 1
            assert "figures could not be made" in caplog.text

    play(main())


def test_when_a_machine_makes_up_errors_then_the_page_is_made_and_stays_small() -> None:
    async def main() -> None:
        async with group_of(Counter, metrics="127.0.0.1:0") as (one, *_):
            one.executor.defects["add: \ud800"] = 1
            for number in range(1_000):
                one.executor._failed("add", type(f"E{number}", (Exception,), {})())
            samples = await scrape(one)
            assert value(samples, "rsm_defects_total", method="add", error="\\ud800") == 1
            assert value(samples, "rsm_defects_total", method="others", error="others") == 901
            assert sum(name == "rsm_defects_total" for name, _ in samples) == 101

    play(main())


def test_a_histogram_counts_by_powers_of_two_and_ends_somewhere() -> None:
    histogram = Histogram()
    for ns, count in ((0, 1), (1, 2), (1023, 1), (1024, 1), (1 << 62, 1)):
        histogram.note(ns, count)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[10], histogram.counts[11]) == (
        1,
        2,
        1,
        1,
    )
    assert histogram.counts[-1] == 1
    assert histogram.count == 6
    assert histogram.sum_ns == 2 + 1023 + 1024 + (1 << 62)
