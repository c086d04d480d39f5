"""What metrics tell of actions."""

import asyncio
from pathlib import Path

import pytest

from apps.actions.errors import ActionAborted, ParticipantError
from tests.apps.actions.bank import credit, debit
from tests.apps.actions.kit import Group, at, new
from tests.apps.actions.sites import banks, carry_out, until
from tests.rsm.test_metrics import documented, scrape, value
from tests.rsm.test_replica import play


def test_when_actions_are_carried_out_then_metrics_tell_how_they_ended_and_where(tmp_path: Path) -> None:
    async def main() -> None:
        async with banks(tmp_path, offers=False, metrics="127.0.0.1:0") as made:
            manager, replica = made.managers["a"], made.replicas[0]
            for _ in range(3):
                await carry_out(manager.action(), a=debit("a", 1), b=credit("b", 1))
            with pytest.raises(ActionAborted):
                await carry_out(manager.action(), a=debit("a", 1000))
            made.participants["b"].errors["commit"] = ParticipantError("the disk is full")
            await carry_out(manager.action("stuck"), b=credit("b", 1))
            await until(lambda: made.managers["b"]._pauses)
            await made.stop("c")
            found = await scrape(replica)
            for state, count in (
                ("open", 0),
                ("waiting", 0),
                ("voting", 0),
                ("committed", 4),
                ("aborted", 1),
            ):
                assert value(found, "rsm_actions", state=state) == count
            assert value(found, "rsm_actions_bytes") > 0
            for outcome, count in (("committed", 4), ("aborted", 1)):
                assert value(found, "rsm_actions_decided_total", outcome=outcome) == count
            for vote, count in (("yes", 7), ("no", 1)):
                assert value(found, "rsm_actions_votes_total", vote=vote) == count
            assert value(found, "rsm_actions_decision_duration_seconds_count") == 5
            assert value(found, "rsm_actions_decision_duration_seconds_sum") > 0
            assert [value(found, "rsm_actions_site_here", name=name) for name in "abc"] == [1, 1, 0]
            assert value(found, "rsm_actions_site_unfinished", name="b") >= 1
            steps = "rsm_actions_site_steps_total"
            assert value(found, steps, name="a", step="prepare", result="done") == 3
            assert value(found, steps, name="a", step="prepare", result="failed") == 1
            there = await scrape(made.replicas[1])
            assert value(there, steps, name="b", step="commit", result="failed") >= 1
            assert value(there, "rsm_actions_site_in_doubt", name="b") == 0
            assert value(there, "rsm_actions_site_under_way", name="b") <= 1
            gone = await scrape(made.replicas[2])
            assert not any(name == steps for name, _ in gone)
            assert shown(found) == {name for name in documented() if name.startswith("rsm_actions")}
            made.participants["b"].errors.clear()
            await asyncio.wait_for(manager.finished("stuck"), 20)

    def shown(found: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> set[str]:
        endings = ("_bucket", "_count", "_sum", "_created")
        names = {name for name, _ in found if name.startswith("rsm_actions")}
        for ending in endings:
            names = {name.removesuffix(ending) for name in names}
        return names

    play(main())


def test_when_an_action_is_never_requested_then_its_end_has_no_duration() -> None:
    group = Group()
    group.call(group.ledger.open, new("open", at("a", "x")))
    group.call(group.ledger.abort, "open", "enough")
    group.request("quick", at("a", "x"))
    group.wait(3)
    group.vote("quick", "a")
    counts = group.ledger._counts
    assert (counts.committed, counts.aborted, sum(counts.took), counts.took_ns) == (1, 1, 1, 3_000_000)
    assert group.restored()._counts == counts
