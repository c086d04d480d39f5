"""Samples in a recording: names that are promised, and figures that are those of the replica itself."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from ordering.recording import EventKind, read_recording
from ordering.simulator.plan import Plan
from ordering.simulator.recorder import SAMPLE_NS, RunRecorder
from ordering.simulator.run import simulate
from tests.rsm.machines import Counter
from tests.rsm.test_replica import group_of, play

PROMISED = {
    "datagrams_in", "datagrams_out", "bytes_in", "bytes_out", "submitted", "delivered", "passes", "waiting",
    "retransmitted", "nacks", "window_messages", "window_bytes", "buffered_slots", "backlog_bytes",
}  # fmt: skip
COUNTED = ("datagrams_in", "datagrams_out", "bytes_in", "bytes_out", "submitted", "delivered", "passes")


def samples_of(directory: Path) -> dict[bytes, list[dict[str, Any]]]:
    """By boot, in order."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for row in read_recording(directory).to_pylist():
        if row["event"] == EventKind.SAMPLE:
            told = {**json.loads(row["detail"]), "mono_ns": row["mono_ns"], "site": row["site"]}
            found.setdefault(row["boot"], []).append(told)
    return found


def check_growth(samples: list[dict[str, Any]]) -> None:
    for one, next_one in pairwise(samples):
        assert all(one[name] <= next_one[name] for name in COUNTED)


def test_when_replicas_record_then_their_samples_are_their_own_figures(tmp_path: Path) -> None:
    async def main() -> dict[int, int]:
        async with group_of(Counter, recording=tmp_path, recording_sample_s=0.05) as replicas:
            calls = 0
            while calls < 30 or min(map(len, samples_of(tmp_path).values()), default=0) < 4:
                await asyncio.gather(*(replica.proxy.add(1) for replica in replicas))
                calls += 3
            traffic = {replica.member.site: replica.status().traffic for replica in replicas}
            return {site: told.delivered for site, told in traffic.items() if told is not None}

    delivered = play(main())
    found = samples_of(tmp_path)
    assert len(found) == 3
    for samples in found.values():
        assert len(samples) >= 4
        check_growth(samples)
        last = samples[-1]
        assert last.keys() >= PROMISED | {"queued"}
        assert last["delivered"] > 0
        assert samples[0]["delivered"] <= delivered[last["site"]]
        assert last["datagrams_in"] > 0
        assert last["bytes_out"] > last["datagrams_out"] > 0
        assert last["passes"] > 0


def test_when_a_run_is_simulated_then_every_process_is_sampled_in_virtual_time(tmp_path: Path) -> None:
    report = simulate(Plan(seed=3, seconds=2), (RunRecorder(tmp_path),))
    assert not report.violations
    found = samples_of(tmp_path)
    assert len(found) >= 3
    for samples in found.values():
        check_growth(samples)
        places = [each["mono_ns"] // SAMPLE_NS for each in samples]
        assert len(set(places)) == len(places)
        assert samples[-1].keys() >= PROMISED
    longest = max(found.values(), key=len)
    assert len(longest) >= 15
    assert longest[-1]["delivered"] > 0
    sent = sum(samples[-1]["datagrams_out"] for samples in found.values())
    assert 0 < sent <= report.packets
