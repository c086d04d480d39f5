"""A name and JSON become a call: what the site's own program would have bound, or words that say why not."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from apps.actions.binding import BindAnswer, Binder, Bound, Described, JsonCall, NotBound
from apps.actions.operations import Operations

shop = Operations()


@shop.operation(keys=("order", "parts"))
def ship(
    _: None,
    order: int,
    parts: list[str],
    at: datetime | None = None,
    *,
    label: bytes = b"",
    fast: bool = False,
) -> int:
    """Send it."""
    raise AssertionError("nothing is carried out")


@shop.operation
def stop(_: None) -> None: ...


def bind(*calls: tuple[str, Any]) -> BindAnswer:
    question = msgspec.msgpack.encode([JsonCall(name, json.dumps(given).encode()) for name, given in calls])
    answer: BindAnswer = msgspec.msgpack.decode(asyncio.run(Binder(shop).bind(question)), type=BindAnswer)
    return answer


WHEN = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ([7, ["x", "y"]], ship(7, ["x", "y"])),
        ({"order": 7, "parts": []}, ship(7, [])),
        ([7, [], "2026-01-02T00:00:00Z"], ship(7, [], WHEN)),
        (
            {"fast": True, "parts": ["x"], "order": 1, "label": "/w=="},
            ship(1, ["x"], label=b"\xff", fast=True),
        ),
    ],
)
def test_when_arguments_come_as_json_then_they_bind_to_what_a_program_would_have_bound(
    given: Any, same: Any
) -> None:
    answer = bind(("ship", given), ("stop", []), ("stop", {}))
    assert isinstance(answer, Bound)
    assert (answer.calls[0].arguments, answer.calls[0].keys) == (same.arguments, same.keys)
    assert [call.keys for call in answer.calls[1:]] == [None, None]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("sink", [], "is no operation of this site; there are: ship, stop"),
        ("ship", [7], "missing required field `parts`"),
        ("ship", [7, [], None, "", True], "takes 3 arguments, was given 5"),
        ("ship", {"order": "7", "parts": []}, "Expected `int`, got `str` - at `$.order`"),
        ("ship", {"order": 7, "parts": [], "note": ""}, "unknown field `note`"),
        ("ship", {"order": 7, "parts": [], "label": "?"}, "Invalid base64 encoded string - at `$.label`"),
        ("stop", 7, "Expected `object | array`"),
        ("stop", ["\ud800"], ""),
    ],
)
def test_when_a_call_cannot_be_bound_then_the_first_of_them_and_the_reason_is_told(
    name: str, given: Any, words: str
) -> None:
    answer = bind(("stop", []), (name, given), ("sink", []))
    assert isinstance(answer, NotBound)
    assert answer.place == 1
    assert answer.is_known is (name != "sink")
    assert words.lower() in answer.words.lower()


def test_when_operations_are_described_then_schemas_and_words_are_told() -> None:
    said = asyncio.run(Binder(shop).describe(b""))
    sent, stopped = msgspec.msgpack.decode(said, type=list[Described])
    assert (sent.name, sent.words, sent.keys) == ("ship", "Send it.", ("order", "parts"))
    (schema,) = sent.arguments["$defs"].values()
    assert schema["required"] == ["order", "parts"]
    assert schema["properties"]["label"]["contentEncoding"] == "base64"
    assert schema["additionalProperties"] is False
    assert sent.result == {"type": "integer"}
    assert (stopped.words, stopped.keys, stopped.result) == ("", None, {"type": "null"})
