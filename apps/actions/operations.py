"""Which operations are there, and how does a call become bytes?

::

    bank = Operations()

    @bank.operation(keys=("account",))
    def debit(connection: Connection, account: str, amount: int) -> int:
        ...

    debit("alice", 10)      # a bound operation: nothing is carried out, arguments are validated

An operation is a plain function. Its first parameter is what the participant works on, a connection say; the
others are its arguments, typed by their annotations like those of a machine's command (``rsm.methods``). It
is carried out more than once: in attempts and when it prepares, all of which are undone, and when it is
committed. So it must depend on nothing but the database and its arguments, change nothing but the database,
and neither commit nor roll back. To refuse it raises ``Rejected``.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast, overload

import msgspec

from apps.actions.errors import OperationDefect, OperationFailed, ResultChanged
from apps.actions.types import Operation
from rsm.errors import InvalidCall, Rejected
from rsm.methods import Typed

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

SEEN_BYTES: Final = 16
# Sets are encoded in an order that does not depend on the process.
_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")


def seen_of(result: bytes) -> bytes:
    """The digest of an encoded result."""
    return blake2b(result, digest_size=SEEN_BYTES).digest()


class BoundOperation(Generic[R_co]):
    """A call, as it goes to a site."""

    def __init__(
        self, method: "OperationType[..., R_co]", arguments: bytes, keys: tuple[str, ...] | None
    ) -> None:
        self.name = method.name
        self.arguments = arguments
        self.keys = keys
        self._method = method

    def at(self, site: str, seen: bytes = b"") -> Operation:
        return Operation(site, self.name, self.arguments, self.keys, seen)

    def result(self, encoded: bytes) -> R_co:
        """What the site has answered."""
        try:
            return cast(R_co, self._method.decode_result(encoded))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise OperationFailed(
                self.name, type(error).__name__, f"the site's result is not what is expected here: {error}"
            ) from None

    def __repr__(self) -> str:
        return f"<operation {shown(self.name, self.arguments)}>"


class OperationType(Typed, Generic[P, R_co]):
    """An operation by its name. ``keys``: which arguments name what it touches, None for everything."""

    defect = OperationDefect

    def __init__(self, function: Callable[..., R_co], keys: Sequence[str] | None) -> None:
        super().__init__(function.__name__, function.__name__, function)
        self.keys = None if keys is None else tuple(keys)
        names = [field[0] for field in self.fields]
        for key in self.keys or ():
            if key not in names:
                there = ", ".join(names) or "none"
                raise OperationDefect(f"{self.title}: keys: {key} is no argument; there are: {there}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> BoundOperation[R_co]:
        bound = self.bind(args, kwargs)
        return BoundOperation(self, _ENCODER.encode(bound), self._keys_of(bound))

    def _keys_of(self, bound: msgspec.Struct) -> tuple[str, ...] | None:
        if self.keys is None:
            return None
        found = [key for name in self.keys for key in self._key(name, getattr(bound, name))]
        return tuple(dict.fromkeys(found))

    def _key(self, name: str, value: object) -> Iterable[str]:
        """Keys are compared as text, whichever argument they come from: two operations may name one thing in
        two ways, and those that compete for nothing wait for each other at worst."""
        match value:
            case None:
                return ()
            case bool():
                pass
            case str():
                return (value,)
            case int():
                return (str(value),)
            case bytes():
                return (value.hex(),)
            case list() | tuple():
                return [key for each in value for key in self._key(name, each)]
            case _:
                pass
        raise InvalidCall(
            f"{self.title}: {name}: {type(value).__name__} is no key; a key is a str, an int, bytes, or"
            " a list of them"
        )

    def carry_out(self, subject: Any, arguments: bytes) -> bytes:
        """The encoded result. What the function raises is told as it is, or as ``OperationFailed``."""
        try:
            values = msgspec.structs.astuple(self._decoder.decode(arguments))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidCall(f"{self.title}: {self._plain(error)}") from None
        result = self.call(subject, values)
        try:
            encoded = _ENCODER.encode(result)
            self.decode_result(encoded)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise OperationDefect(
                f"{self.title}: its result is not what its annotation says: {error}"
            ) from None
        return encoded


class Operations:
    """All operations that a site can carry out, by their names."""

    def __init__(self) -> None:
        self._known: dict[str, OperationType[..., Any]] = {}

    @overload
    def operation(self, function: Callable[Concatenate[Any, P], R], /) -> OperationType[P, R]: ...

    @overload
    def operation(
        self, /, *, keys: Sequence[str] | None = None
    ) -> Callable[[Callable[Concatenate[Any, P], R]], OperationType[P, R]]: ...

    def operation(
        self, function: Callable[..., Any] | None = None, /, *, keys: Sequence[str] | None = None
    ) -> Any:
        """Register a function. ``keys``: the arguments that name what it reads and changes; operations of
        different actions that have no key in common may be prepared at the same time. Without them it may
        touch everything; with none (``keys=()``) it competes only with those that may."""
        if isinstance(keys, str):
            raise OperationDefect(f"keys: {keys!r} is one name; write ({keys!r},)")
        if function is not None:
            return self._register(function, keys)
        return lambda function: self._register(function, keys)

    def _register(self, function: Callable[..., Any], keys: Sequence[str] | None) -> OperationType[..., Any]:
        made: OperationType[..., Any] = OperationType(function, keys)
        if made.name in self._known:
            raise OperationDefect(f"{made.name}: there is an operation of this name; choose another")
        self._known[made.name] = made
        return made

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def find(self, name: str) -> OperationType[..., Any]:
        try:
            return self._known[name]
        except KeyError:
            known = ", ".join(self._known) or "none"
            raise InvalidCall(f"{name}: is no operation of this site; there are: {known}") from None

    def carry_out(self, subject: Any, operations: Iterable[Operation]) -> list[bytes]:
        """One after the other; the encoded results. What differs from what was seen raises
        ``ResultChanged``, and what goes wrong ``Rejected`` or ``OperationFailed``."""
        results = []
        for operation in operations:
            try:
                result = self.find(operation.name).carry_out(subject, operation.arguments)
            except Rejected:
                raise
            except Exception as error:
                raise OperationFailed(operation.name, type(error).__name__, words_of(error)) from error
            if operation.seen and operation.seen != seen_of(result):
                raise ResultChanged(
                    f"{operation.name}: its result is not the one that the initiator was told;"
                    " somebody else was faster"
                )
            results.append(result)
        return results


def shown(name: str, arguments: bytes) -> str:
    """For people."""
    return f"{name}({', '.join(map(repr, values_of(arguments)))})"


def values_of(arguments: bytes) -> list[Any]:
    """As they were encoded, whether or not this process knows the operation. What a participant of its own
    kind has encoded otherwise stays as it is."""
    try:
        _, *values = msgspec.msgpack.decode(arguments, type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return [arguments]
    return values


def words_of(error: Exception) -> str:
    """One line, without what SQLAlchemy adds for programmers."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]
