"""``/v1/kv/{key}``: without ASGI, and no parsing of values.

Most requests are these. Each is an ``Exchange`` of its connection: headers are looked at once, the key is cut
out of the path as it came, and a value goes from the socket to the group, and back, as it is. The call to the
group ends in a callback, and the answer is one write.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final, TypeVar

import msgspec

from api import parameters, schemas
from api.admission import Admission
from api.bodies import has_body, said_length, too_large, too_slow
from api.metrics import GONE, Metrics
from api.origins import Origins
from api.parameters import CONSISTENCY, LEASE, QOS, REVISION, TTL, Asked, bad, read_query
from api.problems import Headers, Problem, defect, lines_of, problem_of, where, wire_of
from api.protocol import BoundedProtocol, Exchange
from api.server import Scope
from api.settings import GatewaySettings
from api.store import Store
from api.tokens import Scope as Right
from api.tokens import Tokens
from apps.kv.store import KeyValueStore
from apps.kv.types import Deleted, Entry, Once, Written
from rsm.begun import BegunCommand, BegunQuery
from rsm.proxy import Consistency, Fresh, Result

B = TypeVar("B", bound=BegunCommand[Any] | BegunQuery[Any])

PREFIX: Final = b"/v1/kv/"
ROUTE: Final = "/v1/kv/{key}"
ORIGINS_MAX: Final = 256
ALLOWED: Final = "DELETE, GET, HEAD, PUT"
IDEMPOTENCY_MAX: Final = 255
_DIGEST_BYTES: Final = 16
_WANTED: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"expect",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"origin",
        b"transfer-encoding",
        b"x-rsm-timestamp",
    }
)
_PUT: Final = parameters.known(TTL, LEASE, QOS)
_GET: Final = parameters.known(REVISION, CONSISTENCY)
_DELETE: Final = parameters.known(QOS)
NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
_NOSNIFF_LINE: Final = lines_of([NOSNIFF])
_RAW: Final = b"content-type: application/octet-stream\r\n"
_JSON: Final = b"content-type: application/json\r\n"
_ENTRY: Final = b'%s%setag: "%d"\r\nx-rsm-created: %d\r\nx-rsm-version: %d\r\ncache-control: no-cache\r\n%s'
_WRITTEN: Final = b'%sx-rsm-qos: %s\r\netag: "%d"\r\n%s%scontent-length: %d\r\n'
_NO_STORE: Final = b"cache-control: no-store\r\n"
_LINEARIZABLE: Final = Consistency.LINEARIZABLE


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Those that mean something to us. One that stands there twice is a list, as HTTP has it."""
    return wanted_of(scope["headers"])


def wanted_of(headers: Headers) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _WANTED:
            found[name] = found[name] + b"," + value if name in found else value
    return found


def origin_of(told: Fresh[Any] | Result[Any]) -> Headers:
    """Where in the order, and from whom."""
    headers = where(told.timestamp, told.replica, told.view)
    if isinstance(told, Result):
        headers.append((b"x-rsm-qos", parameters.told_qos(told.qos).encode()))
    return headers


def age_of(fresh: Fresh[Any], consistency: Consistency) -> Headers:
    return [(b"x-rsm-age", b"%.3f" % fresh.age_s)] if consistency is Consistency.STALE else []


def once_of(headers: dict[bytes, bytes], asks: Any, body: bytes = b"") -> Once | None:
    """The name of a request that may come again. ``asks`` and the body are all that it asks for."""
    name = headers.get(b"idempotency-key")
    if name is None:
        return None
    if not 0 < len(name) <= IDEMPOTENCY_MAX:
        raise bad(f"Idempotency-Key: it has 1 to {IDEMPOTENCY_MAX} bytes")
    digest = blake2b(msgspec.msgpack.encode(asks), digest_size=_DIGEST_BYTES)
    digest.update(body)
    return Once(name, digest.digest())


def key_in(path: bytes, prefix: bytes) -> bytes:
    """What stands behind the prefix, as bytes."""
    if not path.startswith(prefix):
        raise Problem("not_found", "there is nothing at this path")
    key = parameters.percent_decoded(path[len(prefix) :])
    if not key:
        raise bad("the key is empty; it has at least one byte")
    return key


def after_in(headers: dict[bytes, bytes], consistency: Consistency) -> int | None:
    """The slot that a read may not miss."""
    after = headers.get(b"x-rsm-timestamp")
    wanted = None if after is None else parameters.after_of(after)
    return wanted if consistency is Consistency.SEQUENTIAL else None


class Keys:
    """What all exchanges for keys share. A read or a deletion begins at once, a put when its body is here."""

    prefix = PREFIX

    def __init__(
        self,
        store: Store,
        settings: GatewaySettings,
        tokens: Tokens | None,
        origins: Origins,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self.store = store
        self.settings = settings
        self.tokens = tokens
        self.origins = origins
        self.admission = admission
        self.metrics = metrics
        self._origins: dict[tuple[str, str], bytes] = {}

    def exchange(
        self,
        connection: BoundedProtocol,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
    ) -> Exchange:
        kind = _KINDS.get(method, _Other)
        return kind(self, connection, method.decode(), path, query, headers, keep_alive=keep_alive)

    def origin(self, told: Fresh[Any] | Result[Any]) -> bytes:
        """Where in the order, and from whom, as lines. There are few replicas and views."""
        known = self._origins.get((told.replica, told.view))
        if known is None:
            if len(self._origins) >= ORIGINS_MAX:
                self._origins.clear()
            known = self._origins[told.replica, told.view] = lines_of(origin_of(told)[1:3])
        return b"x-rsm-timestamp: %d\r\n%s" % (told.timestamp, known)


class KeyExchange(Exchange):
    """One request for one key, from its head to its answer::

        waiting ─▶ let in? ─▶ understood ─▶ (body) ─▶ called ─▶ answered

    No error is raised out of it, for the parser and the event loop have no use for one; and none is kept, for
    errors hold on to frames, and frames to whatever they have seen.
    """

    __slots__ = (
        "_began",
        "_begun",
        "_connection",
        "_headers",
        "_is_lost",
        "_keys",
        "_method",
        "_path",
        "_pending",
        "_pieces",
        "_place",
        "_problem",
        "_query",
        "_size",
    )
    right = Right.WRITE

    def __init__(
        self,
        keys: Keys,
        connection: BoundedProtocol,
        method: str,
        path: bytes,
        query: bytes,
        headers: Headers,
        *,
        keep_alive: bool,
    ) -> None:
        super().__init__(keep_alive=keep_alive)
        self._keys = keys
        self._connection = connection
        self._method = method
        self._path = path
        self._query = query
        self._headers = wanted_of(headers)
        self._pieces: list[bytes] = []
        self._size = 0
        self._began = 0.0  # when its turn came
        self._place = 0  # among those that are let in
        self._is_lost = False
        self._begun: BegunCommand[Any] | BegunQuery[Any] | None = None
        self._pending: asyncio.Future[Any] | None = None  # something else that is waited for
        self._problem: Problem | None = None  # that was there before its turn

    # -- the connection's side -------------------------------------------------------------------

    def begin(self) -> None:
        keys = self._keys
        self._began = perf_counter()
        try:
            if self._problem is not None:
                raise self._problem
            keys.origins.check(self._headers)
            if keys.tokens is not None:
                keys.tokens.check(self._headers.get(b"authorization", b""), self.right)
            standing = self._connection.standing
            self._place = keys.admission.enter(standing)
            if self._place:
                self._understand()
            else:
                self._wait_aside(keys.admission.refusal(standing), self._refused)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered, and logged if it is ours
            self.fail(error)

    def take(self, body: bytes) -> bool:
        """Nobody but a put wants one."""
        return False

    def end(self) -> None:
        pass

    def late(self) -> None:
        if self._begun is not None:
            self.fail(self._begun.late())

    def lost(self) -> None:
        """A call goes on, and its place is taken until it ends; the connection's clock has stopped."""
        self._is_lost = True
        if self._pending is not None:
            self._pending.cancel()
        elif self._begun is not None:
            self._connection.loop.call_later(self._keys.store.timeout, self.late)

    def broken(self, problem: Problem) -> None:
        """A call that was begun is answered by what comes of it."""
        if not self._began:
            self._problem = problem
        elif self.body_due:
            self.fail(problem)

    def fail(self, error: BaseException) -> None:
        """Answer with the problem that this is."""
        problem = problem_of(error) if isinstance(error, Exception) else defect(error)
        self._answer(problem.status, *wire_of(problem))

    # -- the steps -------------------------------------------------------------------------------

    @abstractmethod
    def _understand(self) -> None:
        """What is asked for; then it is begun, or waits for its body."""

    def _key_asked_for(self) -> bytes:
        key = key_in(self._path, PREFIX)
        most = self._keys.store.limits.key_bytes_max
        if len(key) > most:
            words = f"the key has {len(key)} bytes, more than {most}"
            raise Problem("too_large", words, key_bytes_max=most)
        return key

    def _wait_aside(
        self, work: Coroutine[Any, Any, Any], done: Callable[[asyncio.Future[Any]], None]
    ) -> None:
        self._pending = asyncio.ensure_future(work)
        self._pending.add_done_callback(done)

    def _refused(self, pending: asyncio.Future[Problem]) -> None:
        self._pending = None
        if pending.cancelled():
            self._left()
        else:
            self.fail(pending.exception() or pending.result())

    def _left(self) -> None:
        """Nobody is there any more."""
        self._is_lost = True
        self._answer(GONE, b"")

    def _wait_for(self, begun: B, told: Callable[[B], None]) -> None:
        """``told`` says the answer when it is here."""
        self._begun = begun
        begun.future.add_done_callback(partial(self._called, begun, told))
        if begun.has_clock:
            self._connection.wait_no_more()
        else:
            self._connection.wait_for_answer(self._keys.store.timeout)

    def _called(self, begun: B, told: Callable[[B], None], future: asyncio.Future[Any]) -> None:
        if self.response_complete:  # it was late
            return
        if future.cancelled():
            self.late()
            return
        why = future.exception()
        if why is not None:
            self.fail(why)
            return
        try:
            told(begun)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _answer(self, status: int, head: bytes, body: bytes = b"") -> None:
        if self.response_complete:  # what failed was to say it
            return
        keys = self._keys
        self._begun = None
        seconds = perf_counter() - self._began
        if self._place:
            keys.admission.leave(self._place, self._method if status < 400 else None, seconds)
        if self._is_lost:
            self.response_complete = True
            status = GONE
        keys.metrics.note(ROUTE, self._method, status, seconds)
        if not self._is_lost:
            shown = b"" if self._method == "HEAD" else body
            self._connection.respond(self, status, head + _NOSNIFF_LINE, shown)


class _Read(KeyExchange):
    __slots__ = ("_asked", "_consistency", "_key")
    right = Right.READ

    def _understand(self) -> None:
        store = self._keys.store
        self._key = self._key_asked_for()
        self._asked = asked = read_query(self._query, _GET)
        self._consistency = asked.get(CONSISTENCY) or _LINEARIZABLE
        after = after_in(self._headers, self._consistency)
        if after is None:
            self._ask(None)
        else:
            self._wait_aside(store.check_reached(after), partial(self._reached, after))

    def _reached(self, after: int, pending: asyncio.Future[None]) -> None:
        self._pending = None
        if self._is_lost or pending.cancelled():
            self._left()
            return
        why = pending.exception()
        if why is not None:
            self.fail(why)
            return
        try:
            self._ask(after)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _ask(self, after: int | None) -> None:
        calls = self._keys.store.asking(self._consistency, after)
        self._wait_for(calls.query(KeyValueStore.get, self._key, self._asked.get(REVISION)), self._told)

    def _told(self, begun: BegunQuery[Entry | None]) -> None:
        fresh = begun.result()
        entry, headers = fresh.value, self._headers
        if entry is None:
            told = origin_of(fresh) + age_of(fresh, self._consistency)
            code = "conflict" if b"if-match" in headers else "key_not_found"
            members = {"revision": 0} if b"if-match" in headers else {}
            raise Problem(code, "the key is not there", headers=told, **members)
        head = _ENTRY % (
            self._keys.origin(fresh),
            lines_of(age_of(fresh, self._consistency)),
            entry.revision,
            entry.created,
            entry.version,
            b"x-rsm-lease: %d\r\n" % entry.lease if entry.lease else b"",
        )
        if b"if-match" in headers or b"if-none-match" in headers:
            revision = b"%d" % entry.revision
            self._compare(revision, fresh)
            if _matches(headers.get(b"if-none-match"), "If-None-Match", revision):
                self._answer(304, head)
                return
        value = entry.value
        self._answer(200, b"%s%scontent-length: %d\r\n" % (head, _RAW, len(value)), value)

    def _compare(self, revision: bytes, fresh: Fresh[Any]) -> None:
        wanted = self._headers.get(b"if-match")
        if wanted is not None and not _matches(wanted, "If-Match", revision):
            told = origin_of(fresh) + age_of(fresh, self._consistency)
            at = revision.decode()
            raise Problem("conflict", f"the key is at revision {at}", headers=told, revision=int(revision))


class _Put(KeyExchange):
    __slots__ = ("_arrives_by", "_expect", "_key", "_lease", "_qos", "_ttl")

    def _understand(self) -> None:
        headers = self._headers
        self._key = self._key_asked_for()
        asked = read_query(self._query, _PUT)
        self._qos = _qos(asked)
        self._ttl, self._lease = asked.get(TTL), asked.get(LEASE)
        if self._ttl is not None and self._lease is not None:
            raise bad("ttl, lease: a key has one of them")
        self._expect = _condition(headers)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Problem("unsupported_media_type", "Content-Encoding: send the value as it is to be kept")
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise Problem("unsupported_media_type", "Transfer-Encoding: send the value chunked, and no more")
        most = self._keys.store.limits.value_bytes_max
        if max(said_length(headers), self._size) > most:
            raise too_large(most)
        if self.is_complete_request:
            self._put()
            return
        self._arrives_by = self._connection.loop.time() + self._keys.settings.body_s
        self.body_due = self._arrives_by + self._size / self._keys.settings.body_bytes_per_s_min
        if has_body(headers) and headers.get(b"expect", b"").lower() == b"100-continue":
            self._connection.ask_for_body()

    def take(self, body: bytes) -> bool:
        if self._began and not self.body_due:  # it is refused, and will be told so
            return False
        self._size += len(body)
        most = self._keys.store.limits.value_bytes_max
        if self._size > most:
            self._pieces.clear()
            if self.body_due:
                self.fail(too_large(most))
            return False
        self._pieces.append(body)
        if self.body_due:
            self.body_due = self._arrives_by + self._size / self._keys.settings.body_bytes_per_s_min
        return True

    def end(self) -> None:
        if self.body_due:
            try:
                self._put()
            except Exception as error:  # noqa: BLE001 - as above
                self.fail(error)

    def late(self) -> None:
        if self.body_due:
            self.fail(too_slow(self._keys.settings.body_bytes_per_s_min))
        else:
            super().late()

    def lost(self) -> None:
        super().lost()
        if self.body_due:
            self._left()

    def _put(self) -> None:
        self.body_due = 0.0
        pieces = self._pieces
        value = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        key, expect, ttl, lease = self._key, self._expect, self._ttl, self._lease
        once = once_of(self._headers, ("put", key, expect, ttl, lease), value)
        calls = self._keys.store.telling(self._qos)
        self._wait_for(calls.command(KeyValueStore.put, key, value, expect, ttl, lease, once), self._told)

    def _told(self, begun: BegunCommand[Written]) -> None:
        done = begun.result()
        found = done.value
        body = msgspec.json.encode(schemas.written(self._key, found))
        head = _WRITTEN % (
            self._keys.origin(done),
            parameters.told_qos(done.qos).encode(),
            found.revision,
            _JSON,
            _NO_STORE,
            len(body),
        )
        self._answer(201 if found.created == found.revision else 200, head, body)


class _Delete(KeyExchange):
    __slots__ = ()

    def _understand(self) -> None:
        key = self._key_asked_for()
        asked = read_query(self._query, _DELETE)
        expect = _condition(self._headers)
        once = once_of(self._headers, ("delete", key, expect))
        calls = self._keys.store.telling(_qos(asked))
        self._wait_for(calls.command(KeyValueStore.delete, key, expect, once), self._told)

    def _told(self, begun: BegunCommand[Deleted]) -> None:
        done = begun.result()
        if not done.value.found:
            raise Problem("key_not_found", "the key is not there", headers=origin_of(done))
        self._answer(204, lines_of(origin_of(done)) + _NO_STORE)


class _Other(KeyExchange):
    """Methods that a key does not take."""

    __slots__ = ()

    def _understand(self) -> None:
        allow = [(b"allow", ALLOWED.encode())]
        raise Problem("method_not_allowed", f"a key takes {ALLOWED}", headers=allow)


_KINDS: Final[dict[bytes, type[KeyExchange]]] = {
    b"GET": _Read,
    b"HEAD": _Read,
    b"PUT": _Put,
    b"DELETE": _Delete,
}


def _condition(headers: dict[bytes, bytes]) -> int | None:
    return parameters.expectation(headers.get(b"if-match"), headers.get(b"if-none-match"))


def _qos(asked: Asked) -> str:
    return asked.get(QOS) or "majority"


def _matches(header: bytes | None, name: str, revision: bytes) -> bool:
    if header is None:
        return False
    wanted = parameters.etags(header, name)
    return wanted is None or revision in wanted
