"""Runs that never were: requests one after the other on one machine, as over HTTP, and their audit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from apps.kv.types import Event
from bench.chaos.http.store import Shown, group_of, mark
from bench.chaos.http.watching import Got, Line, Opened
from loadtests.judging import AUDIT
from loadtests.records import Record, Writer
from rsm import envelope
from rsm.linearizability import Model
from rsm.state_machine import Context

MODEL = Model(Shown)
KEY, OTHER, NUMBER = b"run.1/a", b"run.1/b", b"run.1/n"
BETWEEN_NS = 10_000_000


class Story:
    """Each request has a slot and ten milliseconds of its own, of which it takes five."""

    def __init__(self) -> None:
        self.machine = Shown()
        self.machine.context = Context()
        self.records: list[Record] = []

    @property
    def next(self) -> int:
        return len(self.records) + 1

    def do(self, method: str, *arguments: Any) -> int:
        """The number of the request, which is its slot."""
        number = self.next
        self.machine.context.timestamp = number
        bound = (MODEL.catalogue.queries | MODEL.catalogue.commands)[method].bind(arguments, {})
        reply = msgspec.msgpack.decode(MODEL.call(self.machine, method, bound), type=envelope.Reply)
        status, headers, body = answered(method, arguments, reply)
        self.records.append(
            Record(
                client=1,
                request=number,
                group=group_of(method, arguments),
                method=method,
                arguments=msgspec.msgpack.encode(bound),
                intended_ns=number * BETWEEN_NS,
                call_ns=number * BETWEEN_NS,
                return_ns=number * BETWEEN_NS + BETWEEN_NS // 2,
                status=status,
                headers={"x-rsm-timestamp": str(number), **headers},
                body=body,
            )
        )
        return number

    def put(self, key: bytes = KEY, expect: int | None = None) -> int:
        value = mark((1, self.next))
        return self.do("put", key, value, expect, value)

    def get(self, key: bytes = KEY) -> int:
        return self.do("get", key)

    def add(self, *, once: bool = True) -> int:
        name = (1, self.next)
        return self.do("add", NUMBER, name[1] * 10_000 + 1, mark(name) if once else None)

    def delete(self, key: bytes = KEY, expect: int | None = None) -> int:
        return self.do("delete", key, expect, mark((1, self.next)))

    def again(self, number: int) -> int:
        first = self.records[number - 1]
        return self.do(first.method, *msgspec.structs.astuple(MODEL.bind(first.method, first.arguments)))

    def change(self, number: int, **changes: Any) -> None:
        self.records[number - 1] = msgspec.structs.replace(self.records[number - 1], **changes)

    def lose(self, number: int, status: int = 0) -> None:
        """Nobody was told what became of it."""
        self.change(number, status=status, headers={}, body=b"")

    def audit(self) -> list[Line]:
        events: list[Event] = []
        while page := self.machine.store.changes(events[-1].revision if events else 0).events:
            events += page
        last = {event.revision: place for place, event in enumerate(events)}
        lines: list[Line] = [Opened(0, -1), Got("ready", 0)]
        for place, event in enumerate(events):
            kind = "delete" if event.value is None else "put"
            number = event.revision if last[event.revision] == place else 0
            lines.append(
                Got(kind, number, event.revision, event.key, event.value, event.created, event.version)
            )
        return lines


def answered(method: str, arguments: Sequence[Any], reply: Any) -> tuple[int, dict[str, str], bytes]:
    """As the gateway has it."""
    if isinstance(reply, envelope.RejectedReply):
        detail = reply.detail if isinstance(reply.detail, dict) else {}
        body = msgspec.json.encode({"code": reply.message, **detail})
        return 412, {"content-type": "application/problem+json"}, body
    value = msgspec.msgpack.decode(reply.value)
    missing = (404, {"content-type": "application/problem+json"}, b'{"code": "key_not_found"}')
    match method:
        case "put":
            revision, created, version = value
            body = msgspec.json.encode({"revision": revision, "created": created, "version": version})
            return 201 if revision == created else 200, {"etag": f'"{revision}"'}, body
        case "get" if value is None:
            return missing
        case "get":
            _, found, revision, created, version = value
            named = {"x-rsm-created": str(created), "x-rsm-version": str(version)}
            return 200, {"etag": f'"{revision}"', **named}, found
        case "delete":
            return (204, {}, b"") if value else missing
        case "add":
            return 200, {}, msgspec.json.encode({"value": value[0], "revision": value[1]})
        case _:
            raise AssertionError(f"{method}: no story tells this")


def write_run(directory: Path, records: Sequence[Record], audit: Sequence[Line]) -> None:
    path = directory / "0-1.ops"
    path.unlink(missing_ok=True)
    writer = Writer(path)
    for record in records:
        writer.write(record)
    writer.close()
    (directory / AUDIT).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in audit))
