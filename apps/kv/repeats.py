"""Was this request carried out before, over whatever gateway, in whatever session?

What a request was answered is kept under the name that its sender gave it: for a while, and not more than so
many answers and bytes of them; the oldest go first. Refusals changed nothing, and are not kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from apps.kv.leases import MS
from apps.kv.types import Limits, Once
from rsm.errors import Rejected

T = TypeVar("T")

ONCE_BYTES_MAX: Final = 256  # of a name, and of a digest
REPEAT_BYTES: Final = 200  # of what is kept beside names, digests and answers
FORGOTTEN_MAX: Final = 10_000  # in one command: some milliseconds
_ENCODER: Final = msgspec.msgpack.Encoder()


class Repeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key: bytes
    digest: bytes
    command: str
    at_ns: int
    answer: bytes


class Repeats:
    def __init__(self) -> None:
        self.kept: OrderedDict[bytes, Repeat] = OrderedDict()  # the oldest first
        self.bytes = 0

    def load(self, repeats: Iterable[Repeat]) -> None:
        for repeat in repeats:
            self._keep(repeat)

    def carry_out(
        self, once: Once, command: str, kind: type[T], call: Callable[[], T], now_ns: int, limits: Limits
    ) -> T:
        """The first answer, if there was one; else that of ``call``, which is kept."""
        if not 1 <= len(once.key) <= ONCE_BYTES_MAX or len(once.digest) > ONCE_BYTES_MAX:
            raise Rejected("bad_request", {"once_bytes_max": ONCE_BYTES_MAX, "least": 1})
        known = self.kept.get(once.key)
        if known is not None and known.at_ns + limits.once_ms * MS > now_ns:
            if (known.digest, known.command) != (once.digest, command):
                raise Rejected("key_reused", {"key": once.key})
            return msgspec.msgpack.decode(known.answer, type=kind)
        answer = call()
        if known is not None:
            self._forget(known)
        self._keep(Repeat(once.key, once.digest, command, now_ns, _ENCODER.encode(answer)))
        self.trim(now_ns, limits)
        return answer

    def trim(self, now_ns: int, limits: Limits) -> None:
        """Forget the oldest, so many at a time; if there are more, commands that follow forget them."""
        for _ in range(min(len(self.kept), FORGOTTEN_MAX)):
            oldest = next(iter(self.kept.values()))
            if (
                oldest.at_ns + limits.once_ms * MS > now_ns
                and len(self.kept) <= limits.once_max
                and self.bytes <= limits.once_bytes_max
            ):
                return
            self._forget(oldest)

    def _keep(self, repeat: Repeat) -> None:
        self.kept[repeat.key] = repeat
        self.bytes += _size_of(repeat)

    def _forget(self, repeat: Repeat) -> None:
        del self.kept[repeat.key]
        self.bytes -= _size_of(repeat)


def _size_of(repeat: Repeat) -> int:
    return REPEAT_BYTES + len(repeat.key) + len(repeat.digest) + len(repeat.answer)
