"""``/v1/kv/{key}``: straight ASGI, no parsing of values.

Most requests are these. There is no object for the request: headers are looked at once, the key is cut out
of the path as it came, and a value goes from the socket to the group, and back, as it is.
"""

from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from api import parameters, schemas
from api.bodies import read_body
from api.parameters import CONSISTENCY, LEASE, QOS, REVISION, TTL, Asked, bad, read_query
from api.problems import Headers, Problem, where
from api.server import Receive, Scope
from api.settings import GatewaySettings
from api.store import Store
from apps.kv.types import Once
from rsm.proxy import Consistency, Fresh, Result

PREFIX: Final = b"/v1/kv/"
ALLOWED: Final = "DELETE, GET, HEAD, PUT"
IDEMPOTENCY_MAX: Final = 255
_DIGEST_BYTES: Final = 16
_WANTED: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"transfer-encoding",
        b"x-rsm-timestamp",
    }
)
_PUT: Final = parameters.known(TTL, LEASE, QOS)
_GET: Final = parameters.known(REVISION, CONSISTENCY)
_DELETE: Final = parameters.known(QOS)
_RAW: Final = (b"content-type", b"application/octet-stream")
_JSON: Final = (b"content-type", b"application/json")
_REVALIDATE: Final = (b"cache-control", b"no-cache")
_NO_STORE: Final = (b"cache-control", b"no-store")
_LINEARIZABLE: Final = Consistency.LINEARIZABLE


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: bytes = b""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Those that mean something to us. One that stands there twice is a list, as HTTP has it."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
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
    """Answers requests for one key."""

    def __init__(self, store: Store, settings: GatewaySettings) -> None:
        self._store = store
        self._settings = settings
        self._get = {each: store.reading(each).get for each in Consistency}
        self._methods = {"GET": self._read, "HEAD": self._read, "PUT": self._put, "DELETE": self._delete}

    async def answer(self, scope: Scope, receive: Receive, headers: dict[bytes, bytes]) -> Answer:
        method = self._methods.get(scope["method"])
        if method is None:
            allow = [(b"allow", ALLOWED.encode())]
            raise Problem("method_not_allowed", f"a key takes {ALLOWED}", headers=allow)
        key = key_in(scope["raw_path"], PREFIX)
        most = self._store.limits.key_bytes_max
        if len(key) > most:
            raise Problem("too_large", f"the key has {len(key)} bytes, more than {most}", key_bytes_max=most)
        return await method(key, scope, receive, headers)

    async def _read(self, key: bytes, scope: Scope, _: Receive, headers: dict[bytes, bytes]) -> Answer:
        asked = read_query(scope["query_string"], _GET)
        consistency = asked.get(CONSISTENCY) or _LINEARIZABLE
        if consistency is _LINEARIZABLE:
            self._store.check_primary()
        after = after_in(headers, consistency)
        get = self._get[consistency]
        if after is not None:
            await self._store.check_reached(after)
            get = self._store.reading(consistency, after).get
        fresh = await get(key, asked.get(REVISION))
        told = origin_of(fresh) + age_of(fresh, consistency)
        entry = fresh.value
        if entry is None:
            if b"if-match" in headers:
                raise Problem("conflict", "the key is not there", headers=told, revision=0)
            raise Problem("key_not_found", "the key is not there", headers=told)
        revision = b"%d" % entry.revision
        head: Headers = [
            *told,
            (b"etag", b'"%s"' % revision),
            (b"x-rsm-created", b"%d" % entry.created),
            (b"x-rsm-version", b"%d" % entry.version),
            _REVALIDATE,
        ]
        if entry.lease:
            head.append((b"x-rsm-lease", b"%d" % entry.lease))
        if b"if-match" in headers or b"if-none-match" in headers:
            self._compare(revision, headers, told)
            if _matches(headers.get(b"if-none-match"), "If-None-Match", revision):
                return Answer(304, head)
        head += [_RAW, (b"content-length", b"%d" % len(entry.value))]
        return Answer(200, head, b"" if scope["method"] == "HEAD" else entry.value)

    def _compare(self, revision: bytes, headers: dict[bytes, bytes], told: Headers) -> None:
        wanted = headers.get(b"if-match")
        if wanted is not None and not _matches(wanted, "If-Match", revision):
            at = revision.decode()
            raise Problem("conflict", f"the key is at revision {at}", headers=told, revision=int(revision))

    async def _put(self, key: bytes, scope: Scope, receive: Receive, headers: dict[bytes, bytes]) -> Answer:
        asked = read_query(scope["query_string"], _PUT)
        ttl, lease = asked.get(TTL), asked.get(LEASE)
        if ttl is not None and lease is not None:
            raise bad("ttl, lease: a key has one of them")
        expect = _condition(headers)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Problem("unsupported_media_type", "Content-Encoding: send the value as it is to be kept")
        value = await read_body(receive, headers, self._store.limits.value_bytes_max, self._settings)
        once = once_of(headers, ("put", key, expect, ttl, lease), value)
        done = await self._store.writing(_qos(asked)).put(key, value, expect, ttl, lease, once)
        found = done.value
        body = msgspec.json.encode(schemas.written(key, found))
        head = [
            *origin_of(done),
            (b"etag", b'"%d"' % found.revision),
            _JSON,
            _NO_STORE,
            (b"content-length", b"%d" % len(body)),
        ]
        return Answer(201 if found.created == found.revision else 200, head, body)

    async def _delete(self, key: bytes, scope: Scope, _: Receive, headers: dict[bytes, bytes]) -> Answer:
        asked = read_query(scope["query_string"], _DELETE)
        expect = _condition(headers)
        once = once_of(headers, ("delete", key, expect))
        done = await self._store.writing(_qos(asked)).delete(key, expect, once)
        if not done.value.found:
            raise Problem("key_not_found", "the key is not there", headers=origin_of(done))
        return Answer(204, [*origin_of(done), _NO_STORE])


def _condition(headers: dict[bytes, bytes]) -> int | None:
    return parameters.expectation(headers.get(b"if-match"), headers.get(b"if-none-match"))


def _qos(asked: Asked) -> str:
    return asked.get(QOS) or "majority"


def _matches(header: bytes | None, name: str, revision: bytes) -> bool:
    if header is None:
        return False
    wanted = parameters.etags(header, name)
    return wanted is None or revision in wanted
