"""Users of the key-value store, for locust.

    locust --config loadtests/locust.conf                        the web page, against a store on port 8080
    locust --config loadtests/locust.conf --headless -t 30s      without it
    locust ... ReadMostly CasContention                          only these

`rsm load` runs this with a store of its own, and judges every answer.
"""

import secrets
import time
from pathlib import Path
from typing import Any

import gevent
import msgspec
from geventhttpclient.response import HTTPConnectionClosed
from locust import LoadTestShape, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner

from apps.kv.types import ABSENT, Add, Compare, Delete, Get, Operation, Put
from bench.chaos.http.draws import REGISTERS
from bench.chaos.http.store import delta_of
from bench.chaos.http.watching import EVENTS, Broke, Got, Line, Opened, Parser
from loadtests.mix import weights_of
from loadtests.shapes import SHAPES, users_at
from loadtests.users import Current, Run, StoreUser

__all__ = ["CasContention", "ReadMostly", "Shape", "Transactions", "WatchFanOut", "WriteHeavy"]

HOT_GROUPS = 2
WATCHED_GROUPS = 4
STREAM_SECONDS = 3.0


class ReadMostly(StoreUser):
    """Most of what most services do."""

    weight = 50

    @task(90)
    def read(self) -> None:
        group = self.group()
        self.get(self.rng.choice((self.register(group), self.counter(group))))

    @task(3)
    def look_around(self) -> None:
        self.listing(self.group())

    @task(7)
    def write(self) -> None:
        self.put(self.register(self.group()))


class WriteHeavy(StoreUser):
    weight = 20

    @task(6)
    def write(self) -> None:
        self.put(self.register(self.group()))

    @task(2)
    def count(self) -> None:
        self.add(self.counter(self.group()))

    @task(1)
    def remove(self) -> None:
        self.delete(self.register(self.group()))

    @task(1)
    def read(self) -> None:
        self.get(self.register(self.group()))


class CasContention(StoreUser):
    """Everybody changes the same few keys, each what it has seen: most are told 412."""

    weight = 10

    @task(4)
    def change(self) -> None:
        key = self.register(self.group(HOT_GROUPS))
        seen = self.get(key)
        self.put(key, expect=seen.revision or ABSENT)

    @task(1)
    def remove(self) -> None:
        key = self.register(self.group(HOT_GROUPS))
        seen = self.get(key)
        if seen.revision:
            self.delete(key, expect=seen.revision)


class Transactions(StoreUser):
    """Several keys of a group at once, on conditions that hold sometimes."""

    weight = 10

    @task
    def transact(self) -> None:
        group = self.group(HOT_GROUPS * 4)
        first, second, third = (group + b"/" + each for each in self.rng.sample(REGISTERS, 3))
        counter = self.counter(group)
        name = self.identity.next()
        value = self.value(name)
        conditions: tuple[list[Compare], ...] = (
            [],
            [Compare(first, "exists", "=", True)],
            [Compare(first, "exists", "=", False)],
            [Compare(counter, "version", ">", 5), Compare(first, "exists", "=", True)],
        )
        then: list[Operation] = [
            Put(first, value),
            Add(counter, delta_of(name)),
            self.rng.choice((Delete(second), Put(second, value))),
            Get(third),
        ]
        self.txn(name, self.rng.choice(conditions), then, [Get(first), Get(counter), Put(third, value)])


class WatchFanOut(StoreUser):
    """Follows a group of keys; leaves every few seconds, and goes on behind the last event it has seen."""

    weight = 10

    def on_start(self) -> None:
        super().on_start()
        self.watched = self.group(WATCHED_GROUPS)
        self.last = -1
        path = self.run_of.watch_file(self.watched)
        self.notes = None if path is None else path.open("ab")

    def on_stop(self) -> None:
        if self.notes is not None:
            self.notes.close()
        super().on_stop()

    @task
    def watch(self) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.last >= 0:
            headers["Last-Event-ID"] = str(self.last)
        path = f"/v1/watch?prefix={self.watched.decode()}/"
        with self.client.get(
            path, name="/v1/watch?prefix=[prefix]", headers=headers, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                self._note(Broke(f"HTTP {response.status_code}"))
                gevent.sleep(self._report(response, "/v1/watch?prefix=[prefix]") or 1.0)
                return
            response.success()
            stream = response._response
        assert stream is not None
        self._note(Opened(0, self.last))
        why = "enough"
        try:
            with gevent.Timeout(STREAM_SECONDS, False):
                self._follow(stream)
                why = "the end"
        except (OSError, HTTPConnectionClosed) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            stream.release()
            self._note(Broke(why))

    def _follow(self, stream: Any) -> None:
        parser = Parser()
        while line := stream.readline(b"\n"):
            event = parser.feed(line.decode().rstrip("\n"))
            if event is None:
                continue
            self._note(event)
            if event.id:
                self.last = event.id
            if event.kind in EVENTS and event.value is not None:
                self._delivered(event)

    def _delivered(self, event: Got) -> None:
        """From when the value was made to here; counters do not say."""
        assert event.value is not None
        made_ns = event.value.split(b" ")[1:2]
        if made_ns and made_ns[0].isdigit():
            self.environment.events.request.fire(
                request_type="WATCH",
                name="event delivered",
                response_time=(time.monotonic_ns() - int(made_ns[0])) / 1e6,
                response_length=len(event.value),
                exception=None,
                context={},
            )

    def _note(self, line: Line) -> None:
        if self.notes is not None:
            self.notes.write(msgspec.json.encode(line) + b"\n")


USERS = {
    "read": ReadMostly,
    "write": WriteHeavy,
    "cas": CasContention,
    "txn": Transactions,
    "watch": WatchFanOut,
}


# -- locust --------------------------------------------------------------------------------------


class Shape(LoadTestShape):
    """The one that ``--shape`` names."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        users = users_at(options.shape, self.get_run_time(), options.run_time, options.num_users or 1)
        return None if users is None else (users, options.spawn_rate or 1.0)


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--shape", choices=sorted(SHAPES), default="constant", help="How users come and go")
    parser.add_argument("--mix", default="", help="Weights of users, as read=60,write=40; others: none")
    parser.add_argument("--rate", type=float, default=10.0, help="Requests a user means to send a second")
    parser.add_argument("--groups", type=int, default=64, help="Of four keys each; the first are hotter")
    parser.add_argument("--value-bytes", type=int, default=100, help="Size of values")
    parser.add_argument("--run-name", default="", include_in_web_ui=False, help="Keys begin with it")
    parser.add_argument("--records", default="", include_in_web_ui=False, help="Directory for records")


@events.init.add_listener
def weigh(environment: Environment, **_: Any) -> None:
    """Those that are not in the mix do not come at all."""
    mix = environment.parsed_options.mix if environment.parsed_options else ""
    if not mix:
        return
    weights = weights_of(mix, USERS)
    for name, user in USERS.items():
        user.weight = weights.get(name, 0)
    environment.user_classes = [user for name, user in USERS.items() if weights.get(name, 0)]


@events.test_start.add_listener
def begin(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    assert options is not None
    if hasattr(Current, "run"):  # begun once more from the web page: numbers of requests go on
        Current.run.rate = options.rate
        return
    Current.run = Run(
        options.run_name or f"load-{secrets.token_hex(4)}",
        Path(options.records) if options.records else None,
        rate=options.rate,
        groups=options.groups,
        value_bytes=options.value_bytes,
        worker=getattr(environment.runner, "worker_index", 0),
    )


@events.quitting.add_listener
def end(**_: Any) -> None:
    """All users are gone: what they noted is whole."""
    if hasattr(Current, "run"):
        Current.run.close()
