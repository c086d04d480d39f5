"""What a group's errors become."""

import json

import pytest

from api.parameters import EVERYTHING, Span, cursor_at, duration_ms, span_of_prefix
from api.problems import KINDS, Problem, problem_of
from ordering.errors import MessageTooLarge, NoPrimary, NotMember, Overloaded
from rsm.errors import ChainChanged, CommandFailed, InvalidCall, OutcomeUnknown, Refusal, Refused, Rejected
from rsm.survey import OrderRefused


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoPrimary("cut off"), 503, "no_primary"),
        (NotMember("stopped"), 503, "no_primary"),
        (TimeoutError(), 503, "no_primary"),
        (Overloaded("full"), 429, "overloaded"),
        (Refused(Refusal.SESSION_FULL, "too many"), 429, "overloaded"),
        (Refused(Refusal.NOT_READY, "not yet"), 429, "overloaded"),
        (Refused(Refusal.TOO_LARGE, "too large"), 413, "too_large"),
        (MessageTooLarge("too large"), 413, "too_large"),
        (OutcomeUnknown("no answer"), 504, "outcome_unknown"),
        (ChainChanged("another chain"), 410, "compacted"),
        (Rejected("conflict", {"revision": 3}), 412, "conflict"),
        (Rejected("lease_expired"), 409, "lease_expired"),
        (Rejected("nonsense", {}), 500, "defect"),
        (CommandFailed("KeyError", "x"), 500, "defect"),
        (Refused(Refusal.UNREADABLE, "x"), 500, "defect"),
        (InvalidCall("x"), 500, "defect"),
        (ValueError("x"), 500, "defect"),
        (OrderRefused("member_runs", "it runs"), 409, "member_runs"),
        (OrderRefused("member_not_found", "who?"), 404, "member_not_found"),
        (OrderRefused("no_primary", "nobody"), 503, "no_primary"),
        (OrderRefused("refused", "not now"), 409, "order_refused"),
        (Problem("locked", "x"), 409, "locked"),
    ],
)
def test_when_a_call_fails_then_it_is_this_problem(error: Exception, status: int, code: str) -> None:
    found = problem_of(error)
    assert (found.status, found.code) == (status, code)
    shape = json.loads(found.body())
    assert shape["type"] == f"urn:rsm:problem:{code}"
    assert shape["title"] == KINDS[code].title
    assert shape["detail"]
    assert ((b"retry-after", b"1") in found.headers()) == (status in {429, 503})


def test_when_the_machine_tells_details_then_they_stand_beside_the_rest_and_replace_nothing_of_it() -> None:
    detail = {"key": b"\xff", "revision": 3, "status": 200, "code": "fine", "type": "x"}
    shape = json.loads(problem_of(Rejected("conflict", detail)).body())
    assert shape["key"] == "\\xff"
    assert shape["revision"] == 3
    assert (shape["status"], shape["code"]) == (412, "conflict")


@pytest.mark.parametrize(
    ("prefix", "span"),
    [
        (b"", EVERYTHING),
        (b"a", Span(b"a", b"b")),
        (b"a\xff", Span(b"a\xff", b"b")),
        (b"\xff\xff", Span(b"\xff\xff", None)),
        (b"\x00", Span(b"\x00", b"\x01")),
    ],
)
def test_when_a_prefix_is_asked_for_then_it_is_this_range(prefix: bytes, span: Span) -> None:
    assert span_of_prefix(prefix) == span
    assert span.has(prefix)
    assert span.has(prefix + b"\xff" * 10)


def test_when_a_time_is_read_then_it_is_in_milliseconds() -> None:
    read = [duration_ms(text) for text in (b"1ms", b"30s", b"5m", b"2h", b"1d")]
    assert read == [1, 30_000, 300_000, 7_200_000, 86_400_000]
    for text in (
        b"",
        b"1",
        b"s",
        b"0s",
        b"-1s",
        b"1.5s",
        b"1 s",
        b"1S",
        b"999999999999d",
        "\uff11s".encode(),
    ):
        with pytest.raises(ValueError, match="is no time"):
            duration_ms(text)


def test_when_a_page_ends_then_its_cursor_fits_into_a_url() -> None:
    assert cursor_at(bytes(range(256))).replace("-", "").replace("_", "").replace("=", "").isalnum()
