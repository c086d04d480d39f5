"""The way of the command line to a group over HTTP: which endpoint, whose token, and when to try again.

What may be repeated is repeated until `--timeout`: reads, and commands, which all carry an `Idempotency-Key`
and are therefore carried out once. So a gateway that is restarted, or a group that has lost a replica, costs
a moment and no error. Who gives up says which it is: not carried out, or unknown.
"""

import asyncio
import inspect
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import stamina
import stamina.instrumentation
import typer

from cli.showing import UNKNOWN, WRONG, refuse

REFUSED: Final = 1
UNSERVED: Final = 5
HERE: Final = "http://127.0.0.1:8080"
EVENT_BYTES_MAX: Final = 16 << 20
SILENCE_SECONDS: Final = 30.0  # a stream says something every 10 s
RETRY_AFTER_MAX: Final = 60.0
PAUSE_SECONDS: Final = 0.2
FIELDS_SHOWN: Final = 3
OPENED: Final = "opened"
READS: Final = frozenset({"GET", "HEAD"})

P = ParamSpec("P")
T = TypeVar("T")
Fields = Mapping[str, str | bytes | int | None]

ADVICE: Final = {
    "conflict": "read it again, and repeat with the revision it has now",
    "key_not_found": "rsm kv ls shows which keys there are",
    "lease_not_found": "rsm leases ls shows which there are",
    "lease_expired": "grant another one: rsm leases grant TTL",
    "lock_not_found": "rsm locks ls shows which are held",
    "locked": "wait for it with --wait, or see who holds it: rsm locks get NAME",
    "not_held": "rsm locks get NAME shows who holds it",
    "member_runs": "stop it first, or say --force",
    "member_not_found": "rsm members shows who there is",
    "future": "give a revision that was there, or none",
    "compacted": "begin behind a later revision, or without --since",
    "unauthenticated": "give a token, by --token or RSM_TOKEN; rsm token new makes one",
    "forbidden": "use a token with the scope it names; rsm token new makes one",
    "too_large": "docs/kv.md has the limits",
    "not_found": "is this endpoint a gateway of rsm, and of this version?",
    "no_primary": "a majority of the replicas must run: rsm status shows who does",
    "overloaded": "repeat it later, or give it longer: --timeout",
    "full": "delete what is not needed, or raise the limit",
    "defect": "this is a bug; the gateway's log has it under that number",
}
CALLED_WRONGLY: Final = frozenset(
    {"bad_request", "invalid", "too_large", "unsupported_media_type", "headers_too_large", "not_found",
     "method_not_allowed", "key_reused", "member_not_found"}
)  # fmt: skip


class Problem(msgspec.Struct, frozen=True):
    """What an answer says that is no success (RFC 9457)."""

    status: int
    code: str
    words: str
    more: dict[str, Any] = {}
    wait: float | None = None

    @classmethod
    def of(cls, answer: httpx2.Response) -> "Problem":
        said: dict[str, Any] = {}
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            said = msgspec.json.decode(answer.content, type=dict[str, Any])
        title, detail = str(said.get("title", answer.reason_phrase)), str(said.get("detail", ""))
        words = detail if title.lower() in detail.lower() else ": ".join(filter(None, (title, detail)))
        wrong = [f"{each['place']}: {each['words']}" for each in said.get("errors", ())[:FIELDS_SHOWN]]
        words = "; ".join([words, *(each for each in wrong if each not in words)])
        wait = answer.headers.get("retry-after", "")
        return cls(
            answer.status_code,
            str(said.get("code", "")),
            words,
            said,
            min(float(wait), RETRY_AFTER_MAX) if wait.isdecimal() else None,
        )

    @property
    def line(self) -> str:
        """In a line, with what to do next."""
        named = f"{self.code or self.status}: {self.words}"
        return "; ".join(filter(None, (named, ADVICE.get(self.code))))


class Failure(Exception):
    """It did not succeed, as ``code`` says; ``words`` is for a person."""

    def __init__(self, words: str, code: int, problem: Problem | None = None) -> None:
        super().__init__(words)
        self.words, self.code, self.problem = words, code, problem


def _code_of(problem: Problem, method: str) -> int:
    """Of an answer that another try would not change."""
    if problem.status >= 500 and method not in READS:
        return UNKNOWN
    return WRONG if problem.code in CALLED_WRONGLY else REFUSED


class Unserved(Failure):
    """Nobody there, or nobody who serves at present; ``sent``: it may have been carried out all the same;
    ``stay``: it would be the same at every endpoint; ``final``: and later, too."""

    def __init__(
        self,
        words: str,
        *,
        sent: bool = False,
        wait: float | None = None,
        stay: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(words, UNSERVED)
        self.sent, self.wait, self.stay, self.final = sent, wait, stay, final


class Access(msgspec.Struct, frozen=True):
    """Whom to ask, and how."""

    endpoints: tuple[str, ...]
    token: str = ""
    ca: Path | None = None
    timeout: float = 10.0


class Gateways:
    """Answers of a group, from whichever endpoint gives one."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._at = 0
        verify = ssl.create_default_context(cafile=None if access.ca is None else str(access.ca))
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._client = httpx2.AsyncClient(verify=verify, headers=headers, trust_env=False, timeout=None)
        stamina.instrumentation.set_on_retry_hooks([])  # stdout belongs to what was asked for

    async def __aenter__(self) -> "Gateways":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    @property
    def endpoint(self) -> str:
        return self.access.endpoints[self._at % len(self.access.endpoints)]

    async def ask(
        self,
        method: str,
        path: str,
        *,
        fields: Fields | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        once: str | None = "",
    ) -> httpx2.Response:
        """An answer that says success, else ``Failure``. A command gets an Idempotency-Key, ``once`` or a new
        one: all its tries are one request. None: a second time changes nothing anyway."""
        named = dict(headers or {})
        if method not in READS:
            named["Idempotency-Key"] = once or secrets.token_hex(16)

        async def attempt(tries: "_Tries") -> httpx2.Response:
            request = self._request(method, path, fields, named, body)
            return await self._send(request, tries)

        if method in READS:
            return await self._until(attempt)
        if once is None:
            return await self._until(attempt, "look, or repeat it: a second time changes nothing")
        words = f"look, or repeat the same with --once {named['Idempotency-Key']}: it is carried out once"
        return await self._until(attempt, words)

    async def events(self, path: str, fields: Fields) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """A stream of events that goes on at another endpoint, behind the last id, when one breaks off. It
        fails when nobody has been there for `--timeout`. Each beginning of it is an event ``OPENED``."""
        last = ""

        async def attempt(tries: "_Tries") -> httpx2.Response:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
            begin = {**fields, "since": None} if last else fields
            return await self._send(self._request("GET", path, begin, headers, None), tries, stream=True)

        while True:
            answer = await self._until(attempt)
            try:
                yield httpx2.ServerSentEvent(event=OPENED)
                async for event in httpx2.EventSource(answer, max_event_size=EVENT_BYTES_MAX):
                    last = event.id or last
                    yield event
            except httpx2.TransportError:
                pass  # whatever broke it: the next one goes on behind the last id
            finally:
                await answer.aclose()
            self._at += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _until(self, work: Callable[["_Tries"], Awaitable[T]], unknown: str = "") -> T:
        """Again and again, at one endpoint after the other, as long as there is time. ``unknown``: what to do
        if nobody can tell whether a command was carried out."""
        tries = _Tries(len(self.access.endpoints))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.access.timeout):
                async for attempt in stamina.retry_context(
                    on=tries.again,
                    attempts=None,
                    timeout=None,
                    wait_initial=0.1,
                    wait_max=1.0,
                    wait_jitter=0.1,
                ):
                    with attempt:
                        return await work(tries)
        raise tries.given_up(self.access.timeout, unknown)

    def _request(
        self, method: str, path: str, fields: Fields | None, headers: Mapping[str, str], body: bytes | None
    ) -> httpx2.Request:
        share = self.access.timeout / len(self.access.endpoints)  # or who is paused would have all of it
        bounds = httpx2.Timeout(share, read=SILENCE_SECONDS if "Accept" in headers else share)
        url = self.endpoint + path + query_of(fields or {})
        return self._client.build_request(method, url, headers=headers, content=body, timeout=bounds)

    async def _send(
        self, request: httpx2.Request, tries: "_Tries", *, stream: bool = False
    ) -> httpx2.Response:
        endpoint = self.endpoint
        tries.under_way(endpoint)
        try:
            answer = await self._client.send(request, stream=stream)
            if not answer.is_success:
                await answer.aread()
                await answer.aclose()
        except httpx2.TransportError as error:
            self._at += 1
            raise _unserved(endpoint, error) from None
        tries.answered()
        if answer.is_success:
            return answer
        problem = Problem.of(answer)
        if problem.status not in {429, 503, 504}:
            raise Failure(problem.line, _code_of(problem, request.method), problem)
        if problem.status == 429:
            raise Unserved(f"{endpoint}: {problem.line}", wait=problem.wait, stay=True)
        self._at += 1
        raise Unserved(f"{endpoint}: {problem.line}", sent=problem.status == 504, wait=problem.wait)


class _Tries:
    """What has become of a request so far."""

    def __init__(self, endpoints: int) -> None:
        self._left = self._endpoints = endpoints
        self._pending = ""
        self._may_be_done = False
        self._last: Unserved | None = None

    def under_way(self, endpoint: str) -> None:
        self._pending = endpoint

    def answered(self) -> None:
        self._pending = ""

    def again(self, error: Exception) -> bool | float:
        """Whether to try again, and when: at once at an endpoint that was not asked yet."""
        if not isinstance(error, Unserved) or error.final:
            return False
        self._pending = ""
        self._last = error
        self._may_be_done |= error.sent
        self._left -= 1
        if self._left > 0 and not error.stay:
            return 0.0
        self._left = self._endpoints
        return True if error.wait is None else error.wait

    def given_up(self, timeout: float, unknown: str) -> Failure:
        words = self._last.words if self._last is not None else f"{self._pending}: no answer"
        if unknown and (self._may_be_done or self._pending):
            return Failure(f"outcome unknown after {timeout:g} s: {words}; {unknown}", UNKNOWN)
        return Failure(f"not within {timeout:g} s: {words}", UNSERVED)


def _unserved(endpoint: str, error: httpx2.TransportError) -> Unserved:
    words = str(error) or type(error).__name__
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return Unserved(f"{endpoint}: {words}; give another --endpoint", final=True)
    if "CERTIFICATE" in words or "SSL" in words:
        return Unserved(f"{endpoint}: {words}; name who signed it with --ca", final=True)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return Unserved(f"{endpoint}: {words}; does a gateway run there? see --endpoint, RSM_ENDPOINT")
    return Unserved(f"{endpoint}: no answer: {words}", sent=True)


def path_of(place: str, name: bytes) -> str:
    """Slashes belong to a name as they are; a dot alone would be taken for a directory."""
    return f"{place}/{quote(name, safe='/').replace('.', '%2E')}"


def query_of(fields: Fields) -> str:
    """The part of a URL behind the question mark; bytes are what keys are made of."""
    pairs = [f"{name}={quote(_raw(value), safe='')}" for name, value in fields.items() if value is not None]
    return "?" + "&".join(pairs) if pairs else ""


def _raw(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


# -- options -------------------------------------------------------------------------------------

Endpoint = Annotated[
    list[str] | None,
    typer.Option(
        envvar="RSM_ENDPOINT",
        help="URL of a gateway; several, with commas or repeated: tries the next.",
        show_default=HERE,
        rich_help_panel="Connection",
    ),
]
Token = Annotated[
    str,
    typer.Option(
        envvar="RSM_TOKEN",
        help="Who asks; a variable is not seen by others.",
        show_default=False,
        rich_help_panel="Connection",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(envvar="RSM_CA", help="Who signed its certificate, PEM.", rich_help_panel="Connection"),
]
Timeout = Annotated[
    float, typer.Option(min=0.01, help="Seconds, all tries together.", rich_help_panel="Connection")
]
TIMEOUT: Final = 10.0
_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "endpoint": (Endpoint, None),
    "token": (Token, ""),
    "ca": (Authority, None),
    "timeout": (Timeout, TIMEOUT),
}


def over_http(command: Callable[Concatenate[Access, P], None]) -> Callable[..., None]:
    """A command that is told ``Access`` first gets `--endpoint`, `--token`, `--ca` and `--timeout`, and what
    it raises becomes a line and an exit code."""

    def called(**given: Any) -> None:
        access = access_of(*(given.pop(name) for name in _OPTIONS))
        with_codes(lambda: command(access, **given))  # type: ignore[call-arg]

    ours = list(inspect.signature(command).parameters.values())[1:]
    theirs = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {each.name: each.annotation for each in (*ours, *theirs)}
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in ours), *theirs]
    )
    return called


def access_of(endpoint: list[str] | None, token: str, ca: Path | None, timeout: float) -> Access:
    named = [part.strip() for each in endpoint or [HERE] for part in each.split(",") if part.strip()]
    found = []
    for each in named or [HERE]:
        url = (each if "://" in each else f"http://{each}").rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            refuse(f"--endpoint: {each!r} must be a URL, as {HERE}")
        found.append(url)
    if ca is not None and not ca.is_file():
        refuse(f"--ca: {ca}: there is no such file")
    return Access(tuple(found), token, ca, timeout)


def with_codes(work: Callable[[], T]) -> T:
    try:
        return work()
    except Failure as failure:
        refuse(failure.words, failure.code)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def asked(access: Access, work: Callable[[Gateways], Coroutine[Any, Any, T]]) -> T:
    """Run what needs an event loop."""

    async def main() -> T:
        async with Gateways(access) as gateways:
            return await work(gateways)

    return asyncio.run(main())
