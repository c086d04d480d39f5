"""What of actions is counted, for metrics (``docs/metrics.md``)."""

from collections.abc import Iterator, Mapping, Sized
from typing import Final

import msgspec

from apps.actions.records import Seat
from apps.actions.types import State
from rsm.figures import Durations, Figure, counters, gauge, gauges, histogram
from rsm.histogram import BUCKETS

STEPS: Final = ("prepare", "commit", "abort")


class Counts(msgspec.Struct):
    """Since the group began; part of the ledger's state, so that it is the same everywhere."""

    committed: int = 0
    aborted: int = 0
    yes: int = 0
    no: int = 0
    took: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)  # by powers of two nanoseconds
    took_ns: int = 0

    def note_vote(self, *, yes: bool) -> None:
        if yes:
            self.yes += 1
        else:
            self.no += 1

    def note_decision(self, state: State, ns: int | None) -> None:
        """``ns`` of the group's time, from the request on; None if it was not requested."""
        if state is State.COMMITTED:
            self.committed += 1
        else:
            self.aborted += 1
        if ns is not None:
            self.took[min(ns.bit_length(), BUCKETS - 1)] += 1
            self.took_ns += ns


def of_ledger(
    by_state: Mapping[State, Sized], seats: Mapping[str, Seat], counts: Counts, size: int
) -> Iterator[Figure]:
    """The same at every replica that has executed the same."""
    states = {state.value: len(actions) for state, actions in by_state.items()}
    yield gauges("actions", "Actions that the ledger knows, by how they stand.", "state", states)
    yield gauge("actions_bytes", "Of those that are not over.", size)
    decided = {("committed",): counts.committed, ("aborted",): counts.aborted}
    yield counters("actions_decided", "Decisions since the group began.", ("outcome",), decided)
    votes = {("yes",): counts.yes, ("no",): counts.no}
    yield counters("actions_votes", "Votes that counted.", ("vote",), votes)
    words = "From the request to the decision, in the group's time."
    took = Durations(tuple(counts.took), counts.took_ns)
    yield histogram("actions_decision_duration_seconds", words, took)
    here = {name: int(seat.is_here) for name, seat in seats.items()}
    yield gauges("actions_site_here", "Whether the site is registered.", "name", here)
    unfinished = {name: seat.unfinished for name, seat in seats.items()}
    words = "Committed actions that the site has not applied, as far as is known."
    yield gauges("actions_site_unfinished", words, "name", unfinished)


class SiteCounts:
    """Of one manager, since it was made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._done = dict.fromkeys(STEPS, 0)
        self._failed = dict.fromkeys(STEPS, 0)

    def note(self, step: str, error: str) -> None:
        (self._failed if error else self._done)[step] += 1

    def figures(self, *, in_doubt: int, under_way: int) -> Iterator[Figure]:
        steps = {}
        for step in STEPS:
            steps[self._name, step, "done"] = self._done[step]
            steps[self._name, step, "failed"] = self._failed[step]
        words = "What the site's database was asked to do; a preparation that failed is a vote no."
        yield counters("actions_site_steps", words, ("name", "step", "result"), steps)
        yield gauges("actions_site_under_way", "Of these, now.", "name", {self._name: under_way})
        words = "Units that only an operator can decide."
        yield gauges("actions_site_in_doubt", words, "name", {self._name: in_doubt})
