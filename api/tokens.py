"""Who may do what? A file of tokens, of which only hashes are kept.

::

    # name   scopes       sha256 of the token
    alice    read,write   2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b

``make_token`` gives a line like that and the token, which nobody can read out of the file again. A file that
is changed while a gateway runs counts within a second; one that cannot be read changes nothing.
"""

import hmac
import secrets
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from api.problems import Problem
from ordering.errors import ConfigurationError
from rsm.logs import logger

log = logger(__name__)

TOKENS_MAX: Final = 1000
LOOK_SECONDS: Final = 1.0
_PREFIX: Final = "rsm_"
_NAME_MAX: Final = 100


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Token(NamedTuple):
    name: str
    scopes: frozenset[Scope]
    digest: bytes


def make_token(name: str, scopes: Iterable[Scope]) -> tuple[str, str]:
    """A new token, and the line of the file that lets it in."""
    token = _PREFIX + secrets.token_urlsafe(32)
    wanted = ",".join(dict.fromkeys(scopes))
    line = f"{name} {wanted} {sha256(token.encode()).hexdigest()}"
    _read_line(line, "the new token")
    return token, line


def read_tokens(path: Path) -> list[Token]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"tokens: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"tokens: {path}: is no text") from None
    numbered = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    found = [_read_line(line, f"tokens: {path}, line {number}") for number, line in numbered if line]
    if not found:
        raise ConfigurationError(f"tokens: {path}: there is none; make one with `rsm token new`")
    if len(found) > TOKENS_MAX:
        raise ConfigurationError(f"tokens: {path}: {len(found)}, more than {TOKENS_MAX}")
    return found


def _read_line(line: str, place: str) -> Token:
    words = line.split()
    if len(words) != 3 or len(words[0]) > _NAME_MAX:
        raise ConfigurationError(f"{place}: write a name without blanks, scopes, and a sha256 in hex")
    name, scopes, digest = words
    try:
        allowed = frozenset(Scope(scope) for scope in scopes.split(","))
        hashed = bytes.fromhex(digest)
    except ValueError as error:
        known = ", ".join(Scope)
        raise ConfigurationError(f"{place}: {error}; scopes are {known}, joined by commas") from None
    if len(hashed) != sha256().digest_size:
        raise ConfigurationError(f"{place}: {digest!r} is no sha256 in hex")
    return Token(name, allowed, hashed)


class Tokens:
    """Those of one file, as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_tokens(path)
        self._stamp = self._look()
        self._looked = monotonic()

    def check(self, authorization: bytes, wanted: Scope) -> None:
        """Raises the problem that it is if the header is not there, or does not allow this."""
        kind, _, presented = authorization.partition(b" ")
        challenge = [(b"www-authenticate", b'Bearer realm="rsm"')]
        if kind.lower() != b"bearer" or not presented:
            raise Problem("unauthenticated", "send Authorization: Bearer and a token", headers=challenge)
        token = self.find(presented.strip())
        if token is None:
            raise Problem("unauthenticated", "this token is not known", headers=challenge)
        if wanted not in token.scopes:
            raise Problem("forbidden", f"this needs the scope {wanted}", scope=wanted)

    def find(self, presented: bytes) -> Token | None:
        """Every token is compared, and each in the same time, whichever it is."""
        self._refresh()
        digest = sha256(presented).digest()
        found = None
        for token in self._known:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _look(self) -> tuple[int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size

    def _refresh(self) -> None:
        now = monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._known = read_tokens(self._path)
                log.info("the file of tokens was read again", tokens=len(self._known))
        except (OSError, ConfigurationError) as error:
            log.error("the file of tokens cannot be read; those before it stay", error=str(error))
