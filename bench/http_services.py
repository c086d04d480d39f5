"""Who is asked over HTTP: our gateway before three replicas, or a bare server, each as programs of their own.

A service says where it listens, which programs it consists of, and how a put and a get are spelled there.
"""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import msgspec

from bench.errors import BenchError
from bench.http_load import Address
from bench.machine import Mode
from bench.ports import free_ports
from bench.programs import Program, programs, wait_until

HOST: Final = "127.0.0.1"
REPLICAS: Final = 3
KEYS: Final = 10_000
MACHINE: Final = "apps.kv:KeyValueStore"
_ROOT: Final = Path(__file__).parents[1]
_READY_SECONDS: Final = 60.0  # cold interpreters on a busy machine
_ASK_SECONDS: Final = 5.0
_SEED: Final = 7


class Kind(StrEnum):
    """``STALE``: gets that may be behind. ``MIXED``: puts and linearizable gets in turn."""

    PUT = "put"
    GET = "get"
    STALE = "stale"
    MIXED = "mixed"


class Dialect(Protocol):
    """Whole requests, as bytes."""

    def put(self, key: bytes, value: bytes) -> bytes: ...

    def get(self, key: bytes, *, stale: bool) -> bytes: ...


class Service(msgspec.Struct, kw_only=True):
    name: str
    dialect: Dialect
    addresses: tuple[Address, ...]
    programs: list[Program]


def key_of(number: int) -> bytes:
    return b"bench/%08d" % number


def requests_of(dialect: Dialect, kind: Kind, size: int, keys: int = KEYS) -> tuple[bytes, ...]:
    """As many as there are keys, in an order that is random and always the same. Values differ, and are text
    that no server can make shorter."""
    rng = Random(_SEED)
    order = list(range(keys))
    rng.shuffle(order)
    asked: list[bytes] = []
    for place, number in enumerate(order):
        key = key_of(number)
        if kind is Kind.PUT or (kind is Kind.MIXED and place % 2):
            asked.append(dialect.put(key, value_of(rng, size)))
        else:
            asked.append(dialect.get(key, stale=kind is Kind.STALE))
    return tuple(asked)


def value_of(rng: Random, size: int) -> bytes:
    return rng.randbytes((size + 1) // 2).hex().encode()[:size]


def request(method: str, target: str, body: bytes = b"", *, headers: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {target} HTTP/1.1\r\nHost: {HOST}\r\n{headers}{length}\r\n".encode() + body


def ask(address: Address, method: str, target: str, body: bytes | None = None) -> tuple[int, Any]:
    """One request on a connection of its own; 0 while nobody listens."""
    connection = http.client.HTTPConnection(*address, timeout=_ASK_SECONDS)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        said = answer.read()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
    try:
        return answer.status, msgspec.json.decode(said)
    except msgspec.DecodeError:
        return answer.status, None


def answers(address: Address, target: str) -> bool:
    return ask(address, "GET", target)[0] == 200


# -- ours ----------------------------------------------------------------------------------------


class Ours:
    def put(self, key: bytes, value: bytes) -> bytes:
        return request("PUT", f"/v1/kv/{key.decode()}", value)

    def get(self, key: bytes, *, stale: bool) -> bytes:
        return request("GET", f"/v1/kv/{key.decode()}" + ("?consistency=stale" if stale else ""))


def rsm(*words: str) -> list[str]:
    """Our own command line, from this source tree, whatever else is installed."""
    return [sys.executable, "-m", "cli.main", *words]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(_ROOT)}


@contextmanager
def store(mode: Mode, directory: Path, gateways: int = 1) -> Iterator[Service]:
    """Three replicas of the key-value store and a gateway, ready to serve."""
    sites = ",".join(f"{HOST}:{port}" for port in free_ports(REPLICAS))
    made = subprocess.run(
        rsm("init", str(directory), "--sites", sites, "--group", "bench", f"--{mode.value}", "--no-metrics"),
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=_READY_SECONDS,
        check=False,
    )
    if made.returncode:
        raise BenchError(f"rsm init: {made.stderr.strip()}")
    with programs() as running:
        configs = [str(directory / f"site-{number}.toml") for number in range(1, REPLICAS + 1)]
        for number, config in enumerate(configs, 1):
            words = rsm("replica", "--config", config, "--machine", MACHINE, "--log-level", "warning")
            running.append(Program(f"replica {number}", words, directory, environment()))
        for replica in running:
            ready = partial(replica.says, "ready:")
            wait_until(running, ready, _READY_SECONDS, f"{replica.name}: not ready")
        addresses = tuple((HOST, port) for port in free_ports(gateways))
        for number, (host, port) in enumerate(addresses, 1):
            words = rsm("gateway", "--config", configs[0], "--bind", f"{host}:{port}")
            name = "gateway" if gateways == 1 else f"gateway {number}"
            running.append(Program(name, words, directory, environment()))
        for gateway, address in zip(running[REPLICAS:], addresses, strict=True):
            ready = partial(answers, address, "/readyz")
            wait_until(running, ready, _READY_SECONDS, f"{gateway.name}: not ready")
        yield Service(name=f"rsm {mode.value}", dialect=Ours(), addresses=addresses, programs=running)


# -- bare ----------------------------------------------------------------------------------------


@contextmanager
def bare(directory: Path) -> Iterator[Service]:
    """The HTTP server that the gateway runs on, with an application that does nothing: its ceiling."""
    (port,) = free_ports(1)
    words = [sys.executable, "-m", "uvicorn", "bench.http_bare:application", "--port", str(port)]
    words += ["--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "60"]
    with programs() as running:
        server = Program("bare server", words, directory, environment())
        running.append(server)
        ready = partial(answers, (HOST, port), "/")
        wait_until(running, ready, _READY_SECONDS, f"{server.name}: not ready")
        yield Service(name="bare server", dialect=Ours(), addresses=((HOST, port),), programs=running)
