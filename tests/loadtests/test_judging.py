"""What the judge must find, and what it must not."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench.chaos.http.store import mark
from bench.chaos.http.watching import Broke, Got, Line, Opened
from loadtests import judging
from loadtests.judging import Verdict, judge
from loadtests.records import Record
from tests.loadtests.stories import NUMBER, OTHER, Story, write_run


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SEARCH_SECONDS", 0.2)


def judged(
    tmp_path: Path, story: Story, audit: Sequence[Line] | None = None, end: int | None = None, **watches: Any
) -> Verdict:
    write_run(tmp_path, story.records, story.audit() if audit is None else audit)
    for name, lines in watches.items():
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        (tmp_path / f"watch-run.1-0-1-{name}.jsonl").write_bytes(text)
    seen: list[Record] = []
    verdict = judge(tmp_path, story.next if end is None else end, seen.append, lambda *_: None)
    assert len(seen) == len(story.records)
    return verdict


def wrong(tmp_path: Path, story: Story, audit: Sequence[Line] | None = None, **watches: Any) -> str:
    return "\n".join(judged(tmp_path, story, audit, **watches).wrong)


def good() -> Story:
    story = Story()
    first = story.put()
    story.get()
    story.put(expect=first)
    story.put(expect=first)
    story.add()
    story.add(once=False)
    story.again(5)
    story.get(NUMBER)
    story.delete()
    story.get()
    story.put(OTHER)
    story.delete(OTHER, expect=1)
    return story


def test_when_everything_was_right_then_nothing_is_said_and_everything_is_counted(tmp_path: Path) -> None:
    story = good()
    assert [record.status for record in story.records].count(412) == 2
    verdict = judged(tmp_path, story)
    assert verdict.wrong == verdict.unsure == []
    checked = verdict.checked
    assert (checked.operations, checked.acknowledged, checked.repeated) == (12, 12, 1)
    assert checked.watched == 6
    assert checked.searched >= 1
    assert checked.gave_up == 0


# -- lies ------------------------------------------------------------------------------------------


def test_when_a_write_is_acknowledged_and_lost_then_the_audit_misses_it(tmp_path: Path) -> None:
    story = good()
    audit = [line for line in story.audit() if not (isinstance(line, Got) and line.revision == 3)]
    assert "came where put b'run.1/a' at 3 was to come" in wrong(tmp_path, story, audit)


def test_when_the_last_write_is_lost_then_the_end_of_the_audit_tells(tmp_path: Path) -> None:
    story = Story()
    story.put()
    story.put()
    assert "came before the events of 2" in wrong(tmp_path, story, story.audit()[:-1])


def test_when_an_update_is_lost_between_two_others_then_its_condition_is_found_broken(tmp_path: Path) -> None:
    story = Story()
    first = story.put()
    story.put(expect=first)
    number = story.put(expect=first)
    created = {"revision": number, "created": first, "version": 2}
    story.change(
        number, status=200, headers={"x-rsm-timestamp": "3", "etag": '"3"'}, body=msgspec.json.encode(created)
    )
    found = wrong(tmp_path, story)
    assert "one machine gives Rejected('conflict'" in found
    assert "no order explains put(" in found


def test_when_a_read_is_stale_then_it_is_found_with_and_without_timestamps(tmp_path: Path) -> None:
    story = Story()
    story.put()
    old = story.records[story.get() - 1]
    story.put()
    late = story.get()
    story.change(late, headers={**old.headers, "x-rsm-timestamp": str(late)}, body=old.body)
    found = wrong(tmp_path, story)
    assert f"read at slot {late}; one machine gives" in found
    assert "no order explains get(" in found


def test_when_a_stale_read_tells_its_old_timestamp_then_time_convicts_it(tmp_path: Path) -> None:
    story = Story()
    story.put()
    old = story.records[story.get() - 1]
    story.put(OTHER)
    late = story.get()
    story.change(late, headers=old.headers, body=old.body)
    found = wrong(tmp_path, story)
    assert "has timestamp 2; when it was called, one with 3 had returned" in found


def test_when_a_request_was_carried_out_twice_then_it_is_found(tmp_path: Path) -> None:
    story = Story()
    number = story.add(once=False)
    story.again(number)
    story.records.pop()  # it was sent once
    assert "was executed more often than it was sent, which was 1 times" in wrong(tmp_path, story)


def test_when_a_repeated_request_was_carried_out_again_then_its_answers_and_the_audit_tell(
    tmp_path: Path,
) -> None:
    """The store forgot its Idempotency-Key."""
    story = Story()
    number = story.add()
    story.machine.store = Story().machine.store
    story.again(number)
    second = {"value": 20_002, "revision": 2}
    story.change(2, body=msgspec.json.encode(second))
    audit: list[Line] = [
        *(Opened(0, -1), Got("ready", 0)),
        Got("put", 1, 1, NUMBER, b"10001", 1, 1),
        Got("put", 2, 2, NUMBER, b"20002", 1, 2),
    ]
    found = wrong(tmp_path, story, audit)
    assert "and was told something else" in found
    assert "never happened" in found


def test_when_something_refused_was_carried_out_then_it_is_found(tmp_path: Path) -> None:
    story = Story()
    story.put()
    story.change(
        1, status=503, headers={"content-type": "application/problem+json"}, body=b'{"code": "no_primary"}'
    )
    assert "its caller was told that it was refused: 503 no_primary" in wrong(tmp_path, story)


def test_when_a_change_is_nobodys_then_it_is_found(tmp_path: Path) -> None:
    story = Story()
    story.put()
    story.put(OTHER)
    del story.records[0]
    assert "nobody has sent request 1 of client 1" in wrong(tmp_path, story)


@pytest.mark.parametrize("status", [500, 400, 302])
def test_when_a_status_is_not_of_the_contract_then_it_is_wrong(tmp_path: Path, status: int) -> None:
    story = Story()
    story.put()
    story.get()
    story.change(2, status=status, headers={}, body=b"?")
    assert f"HTTP {status}" in wrong(tmp_path, story)


def test_when_a_watcher_misses_an_event_then_it_is_found(tmp_path: Path) -> None:
    story = good()
    whole = story.audit()
    gap = [line for line in whole if not (isinstance(line, Got) and line.revision == 3)]
    assert wrong(tmp_path, story, two=whole) == ""
    found = wrong(tmp_path, story, one=gap, two=whole)
    assert "watch-run.1-0-1-one" in found
    assert "watch-run.1-0-1-two" not in found


# -- what nobody knows -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 504, -1])
def test_when_an_unknown_write_took_effect_then_the_audit_gives_it_its_place(
    tmp_path: Path, status: int
) -> None:
    story = good()
    story.lose(1, status)
    story.lose(5, status)
    story.lose(9, status)
    verdict = judged(tmp_path, story)
    assert verdict.wrong == []
    assert verdict.checked.unknown == 3


def test_when_an_unknown_write_never_took_effect_then_that_is_right(tmp_path: Path) -> None:
    story = Story()
    story.put()
    story.records.append(msgspec.structs.replace(story.records[0], request=2, status=0, headers={}, body=b""))
    arguments = story.records[0].arguments.replace(mark((1, 1)), mark((1, 2)))
    story.change(2, arguments=arguments)
    verdict = judged(tmp_path, story, end=1)
    assert verdict.wrong == []
    assert verdict.checked.unknown == 1


def test_when_the_audit_breaks_off_and_goes_on_then_nothing_is_missed_or_counted_twice(
    tmp_path: Path,
) -> None:
    story = good()
    lines = story.audit()
    audit = [*lines[:5], Broke("the end"), Opened(0, 5), *lines[5:]]
    assert isinstance(lines[4], Got)
    assert lines[4].id == 5
    assert wrong(tmp_path, story, audit) == ""
    skipped = [*lines[:5], Broke("the end"), Opened(0, 6), *lines[6:]]
    assert "went on behind 6, having reached 5" in wrong(tmp_path, story, skipped)


def test_when_the_audit_is_not_whole_then_the_judge_says_that_it_cannot_tell(tmp_path: Path) -> None:
    story = good()
    assert "did not come to the end" in judged(tmp_path, story, end=0).unsure[0]
    audit = [*story.audit(), Broke("HTTP 410 compacted")]
    assert "lost its place" in judged(tmp_path, story, audit).unsure[0]


# -- much of it ------------------------------------------------------------------------------------


def busy(requests: int) -> Story:
    story = Story()
    for number in range(requests):
        group = b"run.%d" % (number % 7)
        if number % 3:
            story.put(group + b"/a")
        else:
            story.get(group + b"/a")
    return story


def test_when_there_are_many_parts_then_a_lie_in_one_is_found_and_the_others_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "PART_BYTES", 3000)
    story = busy(1500)
    steps: list[tuple[int, int]] = []
    write_run(tmp_path, story.records, story.audit())
    verdict = judge(tmp_path, story.next, lambda _: None, lambda *step: steps.append(step))
    assert verdict.wrong == []
    assert verdict.checked.operations == 1500
    assert steps[-1][0] == steps[-1][1] > 3
    assert verdict.checked.searched > 7
    late = next(record for record in reversed(story.records) if record.method == "get")
    story.change(late.request, body=mark((1, 2)))
    assert f"request {late.request}]" in wrong(tmp_path, story)


def test_when_a_sample_begins_in_the_middle_then_it_begins_with_the_state_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count()  # at the clock: a hundred, however busy this machine is
    monkeypatch.setattr(judging, "time", SimpleNamespace(monotonic=lambda: next(looks) * 0.002))
    monkeypatch.setattr(judging, "WINDOW", 5)
    verdict = judged(tmp_path, busy(500))
    assert verdict.wrong == []
    assert verdict.checked.searched > 50
    assert verdict.checked.gave_up == 0


def test_when_a_lie_is_within_a_sample_then_the_search_finds_it_without_timestamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "WINDOW", 5)
    story = busy(70)
    reads = [record.request for record in story.records if record.method == "get" and record.status == 200]
    for number in reads:
        story.change(number, body=b"9:9")
    assert "no order explains get(" in wrong(tmp_path, story)
