"""What all users have: a number, a pace, keys, requests with names, and a record of each.

A class of users is a subclass of ``StoreUser`` with tasks that call ``get put delete add listing txn``. These
send one request, come back later if they are told to, repeat what nobody knows the outcome of, and return the
answer. What a request writes carries the name of the request, by which the checker knows it again.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import gevent
import msgspec
from locust import FastHttpUser
from locust.contrib.fasthttp import ResponseContextManager
from locust.env import Environment

from apps.kv.types import Compare, Operation
from bench.chaos.http.draws import COUNTER, REGISTERS, Request
from bench.chaos.http.requests import http_of
from bench.chaos.http.store import CLIENTS_MAX, NOBODY, Name, Shown, delta_of, group_of, mark
from loadtests.pace import Pace
from loadtests.records import BROKEN_OFF, SUFFIX, Kind, Record, Writer, kept, kind_of
from rsm.methods import Catalogue

WORKER_CLIENTS: Final = 1000
TRIES_MAX: Final = 20
AGAIN_SHARE: Final = 0.05  # of repeatable requests that went well: sent once more, to see one effect
WAIT_S: Final = (0.05, 10.0)  # least and most of what Retry-After is believed
_METHODS: Final = Catalogue(Shown)
LABELS: Final = {
    "get": "/v1/kv/[key]",
    "put": "/v1/kv/[key]",
    "delete": "/v1/kv/[key]",
    "add": "/v1/counters/[key]",
    "listing": "/v1/kv?prefix=[prefix]",
    "txn": "/v1/txn",
}


# -- what the users of a process share -----------------------------------------------------------


class Identity:
    """A client's number, and that of its last request. Who comes later goes on with the numbers."""

    def __init__(self, client: int) -> None:
        self.client = client
        self._requests = 0

    def next(self) -> Name:
        self._requests += 1
        return self.client, self._requests


class Run:
    """One run in one process. ``directory``: where records go; without one there are none."""

    def __init__(
        self,
        name: str,
        directory: Path | None,
        *,
        rate: float,
        groups: int,
        value_bytes: int,
        worker: int = 0,
    ) -> None:
        if not 0 <= worker < CLIENTS_MAX // WORKER_CLIENTS - 1:
            raise ValueError(f"worker {worker}: there is room for {CLIENTS_MAX // WORKER_CLIENTS - 1}")
        self.name = name
        self.directory = directory
        self.rate = rate
        self.groups = groups
        self.value_bytes = value_bytes
        self._worker = worker
        self._made = 0
        self._streams = 0
        self._free: list[Identity] = []
        self.writer = None if directory is None else Writer(directory / f"{worker}-{os.getpid()}{SUFFIX}")

    def enter(self) -> Identity:
        if self._free:
            return self._free.pop()
        if self._made == WORKER_CLIENTS:
            raise ValueError(f"a process has room for {WORKER_CLIENTS} users; use more workers")
        self._made += 1
        return Identity(self._worker * WORKER_CLIENTS + self._made)

    def leave(self, identity: Identity) -> None:
        self._free.append(identity)

    def record(self, record: Record) -> None:
        if self.writer is not None:
            self.writer.write(record)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def watch_file(self, group: bytes) -> Path | None:
        """Of one watcher from its first stream to its last."""
        if self.directory is None:
            return None
        self._streams += 1
        return self.directory / f"watch-{group.decode()}-{self._worker}-{os.getpid()}-{self._streams}.jsonl"


class Current:
    """The run that users of this process belong to."""

    run: Run


def _token() -> dict[str, str]:
    token = os.environ.get("RSM_TOKEN", "")
    return {"Authorization": f"Bearer {token}"} if token else {}


# -- one user ------------------------------------------------------------------------------------


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> Kind:
        return kind_of(self.status)

    @property
    def revision(self) -> int:
        """Of the key that was read or written; 0: it is not there."""
        return int(self.headers.get("etag", '"0"').strip('"')) if 200 <= self.status < 300 else 0


class StoreUser(FastHttpUser):
    """Subclass it, and give it tasks."""

    abstract = True
    network_timeout = 10.0
    connection_timeout = 10.0
    default_headers = _token()

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        _send_once(self.client.client.clientpool)

    def on_start(self) -> None:
        self.run_of = Current.run
        self.identity = self.run_of.enter()
        self.rng = Random(f"{self.run_of.name} {self.identity.client}")
        self.pace = Pace(self.run_of.rate, time.monotonic_ns(), self.rng.random())
        gevent.sleep(self.pace.wait_s(time.monotonic_ns()))

    def on_stop(self) -> None:
        self.run_of.leave(self.identity)

    def wait_time(self) -> float:
        return self.pace.wait_s(time.monotonic_ns())

    # -- keys ------------------------------------------------------------------------------------

    def group(self, most: int | None = None) -> bytes:
        """Keys that transactions go between. Low numbers come more often; only the first ``most``."""
        groups = self.run_of.groups if most is None else min(most, self.run_of.groups)
        return b"%s.%d" % (self.run_of.name.encode(), int(groups * self.rng.random() ** 2))

    def register(self, group: bytes) -> bytes:
        return group + b"/" + self.rng.choice(REGISTERS)

    @staticmethod
    def counter(group: bytes) -> bytes:
        return group + b"/" + COUNTER

    def value(self, name: Name) -> bytes:
        """Whose it is, when it was made, and something to fill it."""
        head = b"%s %d " % (mark(name), time.monotonic_ns())
        return head + b"." * max(self.run_of.value_bytes - len(head), 0)

    # -- requests --------------------------------------------------------------------------------

    def get(self, key: bytes) -> Answer:
        return self.ask(Request(NOBODY, "get", (key,)), self.identity.next())

    def listing(self, group: bytes) -> Answer:
        return self.ask(Request(NOBODY, "listing", (group + b"/",)), self.identity.next())

    def put(self, key: bytes, expect: int | None = None) -> Answer:
        name = self.identity.next()
        return self.ask(Request(name, "put", (key, self.value(name), expect, self.once(name))), name)

    def delete(self, key: bytes, expect: int | None = None) -> Answer:
        """With a key to repeat it under, always: nothing else names it."""
        name = self.identity.next()
        return self.ask(Request(name, "delete", (key, expect, self.key_of(name))), name)

    def add(self, key: bytes) -> Answer:
        """A number that is the request's own: each sum tells what went into it."""
        name = self.identity.next()
        return self.ask(Request(name, "add", (key, delta_of(name), self.once(name))), name)

    def txn(
        self,
        name: Name,
        compare: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
    ) -> Answer:
        """Each branch must write something of this name (``value``, ``delta_of``)."""
        arguments = (list(compare), list(then), list(otherwise), self.once(name))
        return self.ask(Request(name, "txn", arguments), name)

    def once(self, name: Name) -> bytes | None:
        """Half of all requests may be repeated."""
        return self.key_of(name) if self.rng.random() < 0.5 else None

    def key_of(self, name: Name) -> bytes:
        """Under which a request may be repeated; the store remembers those of other runs too."""
        return b"%s %s" % (mark(name), self.run_of.name.encode())

    def ask(self, request: Request, name: Name) -> Answer:
        """Until it is answered, or nothing more may be done about it."""
        intended_ns = self.pace.take(time.monotonic_ns())
        # What a delete found is not told, so of two nobody knows which one did it.
        repeatable = not request.changes or (request.once is not None and request.method != "delete")
        answer = self._try(request, name, intended_ns)
        for _ in range(TRIES_MAX):
            if answer.kind is not Kind.PUSHED_BACK and not (answer.kind is Kind.UNKNOWN and repeatable):
                break
            answer = self._try(request, self.identity.next(), intended_ns)
        if request.once is not None and answer.status < 300 and self.rng.random() < AGAIN_SHARE:
            self._try(request, self.identity.next(), time.monotonic_ns(), " again")
        return answer

    def _try(self, request: Request, name: Name, intended_ns: int, suffix: str = "") -> Answer:
        sent = http_of(request)
        found = _METHODS.query(request.method) if not request.changes else _METHODS.command(request.method)
        arguments = msgspec.msgpack.encode(found.bind(request.arguments, {}))
        wait_s = 0.0
        with self._recorded(request, name, arguments, intended_ns) as told:
            label = LABELS[request.method] + suffix
            body: Any = sent.body  # bytes go as they are, whatever its annotation says
            with self.client.request(
                sent.method, sent.path, name=label, data=body, headers=sent.headers, catch_response=True
            ) as response:
                told.append(self._told(response))
                wait_s = self._report(response, label)
        if wait_s:
            gevent.sleep(wait_s)
        return told[-1]

    @contextmanager
    def _recorded(
        self, request: Request, name: Name, arguments: bytes, intended_ns: int
    ) -> Iterator[list[Answer]]:
        """Also of one that is broken off because the user is to go: it may or may not be carried out."""
        told: list[Answer] = []
        call_ns = time.monotonic_ns()
        try:
            yield told
        finally:
            answer = told[-1] if told else Answer(BROKEN_OFF, {}, b"")
            self.run_of.record(
                Record(
                    *name,
                    group=group_of(request.method, request.arguments),
                    method=request.method,
                    arguments=arguments,
                    intended_ns=intended_ns,
                    call_ns=call_ns,
                    return_ns=time.monotonic_ns(),
                    status=answer.status,
                    headers=answer.headers,
                    body=answer.body,
                )
            )

    @staticmethod
    def _told(response: ResponseContextManager) -> Answer:
        status = response.status_code
        if not status or response.headers is None:
            return Answer(0, {}, b"")
        return Answer(status, kept(response.headers), bytes(response.content or b""))

    @staticmethod
    def _report(response: ResponseContextManager, label: str) -> float:
        """Tell locust. How long to wait before it is tried again."""
        status = response.status_code
        match kind_of(status):
            case Kind.ANSWERED:
                response.success()
            case Kind.PUSHED_BACK:
                response.request_meta["name"] = f"{label} pushed back {status}"
                response.success()
                least, most = WAIT_S
                return min(max(_seconds(response.headers or {}), least), most)
            case Kind.UNKNOWN:
                why = getattr(response, "error", None)
                response.failure(f"outcome unknown: {status or type(why).__name__}")
                return WAIT_S[0]
            case _:
                response.failure(f"HTTP {status}")
        return 0.0


def _send_once(pool: Any) -> None:
    """The client sends PUT and DELETE again by itself when a connection breaks, as often as its pool has
    connections. A try that nobody has recorded cannot be judged, so there are none: ``ask`` tries again."""
    get_client = pool.get_client

    def get_client_once(url: Any) -> Any:
        client = get_client(url)
        client._connection_pool.size = -1
        return client

    pool.get_client = get_client_once


def _seconds(headers: Any) -> float:
    try:
        return float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0
