"""Which errors there are: one table of codes, and what a group's errors become (RFC 9457).

::

    {"type": "urn:rsm:problem:conflict", "title": "The key is at another revision", "status": 412,
     "detail": "b is at revision 17", "code": "conflict", "revision": 17}

``code`` is stable, and what programs go by; ``title`` belongs to the code, ``detail`` to the case.
"""

import secrets
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ordering.errors import MessageTooLarge, NoPrimary, NotMember, Overloaded
from rsm.errors import ChainChanged, OutcomeUnknown, Refusal, Refused, Rejected
from rsm.logs import logger
from rsm.survey import OrderRefused

log = logger(__name__)

Headers: TypeAlias = list[tuple[bytes, bytes]]

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 1  # seconds


class Kind(NamedTuple):
    status: int
    title: str


KINDS: Final[dict[str, Kind]] = {
    "bad_request": Kind(400, "The request cannot be understood"),
    "future": Kind(400, "That revision is still to come"),
    "unauthenticated": Kind(401, "A token is needed"),
    "forbidden": Kind(403, "The token does not allow this"),
    "foreign_page": Kind(403, "Pages from elsewhere may not ask here"),
    "not_found": Kind(404, "There is nothing at this path"),
    "key_not_found": Kind(404, "The key is not there"),
    "lease_not_found": Kind(404, "There is no such lease"),
    "lock_not_found": Kind(404, "Nobody has that lock"),
    "member_not_found": Kind(404, "There is no such member"),
    "action_not_found": Kind(404, "There is no such action"),
    "method_not_allowed": Kind(405, "The path does not take this method"),
    "too_slow": Kind(408, "The request came too slowly"),
    "locked": Kind(409, "Somebody else has the lock"),
    "not_held": Kind(409, "That lease does not have the lock"),
    "lease_expired": Kind(409, "The lease has ended"),
    "not_a_number": Kind(409, "The value is no number"),
    "out_of_range": Kind(409, "The number would leave its 64 bits"),
    "member_runs": Kind(409, "The member runs, and would come back"),
    "order_refused": Kind(409, "A replica refuses what was ordered"),
    "no_log": Kind(409, "The replicas keep no log"),
    "action_aborted": Kind(409, "The action was aborted"),
    "action_exists": Kind(409, "There is another action of this id"),
    "action_changed": Kind(409, "Somebody else has added operations"),
    "action_decided": Kind(409, "The action is decided"),
    "compacted": Kind(410, "That much history is not retained"),
    "conflict": Kind(412, "The key is at another revision"),
    "too_large": Kind(413, "That is more than is allowed"),
    "unsupported_media_type": Kind(415, "The body is of a type that is not taken"),
    "key_reused": Kind(422, "The Idempotency-Key belongs to another request"),
    "invalid": Kind(422, "The body has another shape"),
    "overloaded": Kind(429, "There is too much to do"),
    "full": Kind(429, "There is no room for more of these"),
    "site_behind": Kind(429, "A site has too much to finish"),
    "headers_too_large": Kind(431, "The head of the request is too large"),
    "defect": Kind(500, "This is a defect of the gateway"),
    "no_primary": Kind(503, "No majority of the group can be reached"),
    "stopping": Kind(503, "The gateway stops"),
    "site_away": Kind(503, "A site is not there"),
    "no_supervisor": Kind(503, "The demo's supervisor does not answer"),
    "outcome_unknown": Kind(504, "Nobody can tell whether it was carried out"),
}
_RETRIED: Final = frozenset({"overloaded", "full", "site_behind", "no_primary", "stopping", "site_away"})


class Problem(Exception):
    """An answer that is an error. ``members`` stand beside the standard ones. ``retry_after`` counts where
    it is worth trying again."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Headers | None = None,
        retry_after: int = RETRY_AFTER,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.members = members
        self.retry_after = retry_after
        self._headers = headers or []

    @property
    def status(self) -> int:
        return KINDS[self.code].status

    def shape(self) -> dict[str, Any]:
        kind = KINDS[self.code]
        return {
            "type": f"urn:rsm:problem:{self.code}",
            "title": kind.title,
            "status": kind.status,
            "detail": self.detail,
            "code": self.code,
            **self.members,
        }

    def body(self) -> bytes:
        return msgspec.json.encode(self.shape())

    def headers(self) -> Headers:
        retry = [(b"retry-after", b"%d" % self.retry_after)] if self.code in _RETRIED else []
        return [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"cache-control", b"no-store"),
            *retry,
            *self._headers,
        ]


def wire_of(problem: Problem) -> tuple[bytes, bytes]:
    """The lines of its head, and its body."""
    body = problem.body()
    return lines_of([*problem.headers(), (b"content-length", b"%d" % len(body))]), body


def lines_of(headers: Headers) -> bytes:
    """As HTTP writes them."""
    return b"".join([b"%s: %s\r\n" % header for header in headers])


def where(timestamp: int, replica: str, view: str) -> Headers:
    """In the order, and from whom."""
    return [
        (b"x-rsm-timestamp", b"%d" % timestamp),
        (b"x-rsm-replica", replica.encode()),
        (b"x-rsm-view", view.encode()),
    ]


def problem_of(error: Exception) -> Problem:
    """What a failed call is to who has asked. Everything that is not foreseen is a defect, and logged."""
    match error:
        case Problem():
            return error
        case Rejected():
            return _rejection(error)
        case NoPrimary() | NotMember():
            return Problem("no_primary", f"{error}; try again")
        case Overloaded():
            return Problem("overloaded", f"the group takes no more calls now: {error}; try again")
        case OutcomeUnknown():
            return Problem(
                "outcome_unknown",
                f"{error}; look at the state, or repeat it with the Idempotency-Key it had",
            )
        case ChainChanged():
            return Problem("compacted", str(error))
        case OrderRefused():
            return Problem(error.code if error.code in KINDS else "order_refused", str(error))
        case TimeoutError():
            return Problem("no_primary", "no replica that has a majority answered in time; try again")
        case MessageTooLarge() | Refused(refusal=Refusal.TOO_LARGE):
            return Problem("too_large", str(error))
        case Refused(refusal=Refusal.NOT_READY | Refusal.SESSION_FULL | Refusal.SESSION_UNKNOWN):
            return Problem("overloaded", f"it was not carried out: {error}; try again")
        case _:
            return defect(error)


def _rejection(error: Rejected) -> Problem:
    """The machine's words; its detail stands beside them."""
    code = error.message
    if code not in KINDS:
        return defect(error)
    found = dict(error.detail) if isinstance(error.detail, dict) else {}
    told = {name: _plain(value) for name, value in found.items() if isinstance(name, str)}
    words = told.pop("words", None) or ", ".join(f"{name}: {value}" for name, value in told.items())
    members = {name: value for name, value in told.items() if name not in _TAKEN}
    headers = where(error.timestamp, error.replica, error.view) if error.timestamp else None
    return Problem(code, str(words or KINDS[code].title), headers=headers, **members)


_TAKEN: Final = frozenset({"type", "title", "status", "detail", "code", "headers"})


def _plain(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def defect(error: BaseException) -> Problem:
    """Say no more than a number to who has asked, and all of it to the log."""
    number = secrets.token_hex(4)
    log.error("a request met a defect", number=number, exc_info=error)
    return Problem("defect", f"report it with the number {number} and the log of that time", number=number)
