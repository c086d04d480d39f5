"""How a call becomes bytes, and bytes a call: by the annotations of the machine's methods.

Each command is a tagged array-like struct, ``["add", 5]``; all commands of a machine are one union, which one
call in C decodes and validates. Arguments that are missing at the end have their defaults, and surplus ones
are ignored, so that versions can read each other (``docs/framework.md``).
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import Annotated, Any, ClassVar, Final, get_args, get_origin, get_type_hints

import msgspec

from rsm.errors import InvalidCall, MachineError, RsmError
from rsm.state_machine import FIRST_VERSION, Mark, Since, StateMachine, mark_of

SIGNATURE_BYTES: Final = 16
OK_TAG: Final = 0  # of the replies that have a value
_PLACE: Final = re.compile(r"`\$\[(\d+)\]")
_ENCODER: Final = msgspec.msgpack.Encoder()
RESERVED: Final = ("apply", "call", "reading", "with_details", "with_options")  # what a proxy has of its own
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Typed:
    """A function that is called by its annotations: its arguments as a struct, and its result. Its first
    parameter is given by who carries it out, and is no argument. ``names`` are known to the annotations."""

    defect: ClassVar[type[RsmError]] = MachineError  # what a function is that cannot be called so

    def __init__(
        self, title: str, name: str, function: Callable[..., Any], names: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.function = function
        self.title = title
        hints = self._hints(names)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.fields = [self._field(parameter, hints) for parameter in parameters]
        self.since = [_since(hints[parameter.name]) for parameter in parameters]
        self.keyword_only = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        self._arguments_max = len(self.fields) - len(self.keyword_only)
        if "return" not in hints:
            raise self.defect(f"{self.title}: has no result annotation; write -> None if it returns nothing")
        self.arguments: type[msgspec.Struct] = self._struct(self.fields)
        self.result = hints["return"]
        try:
            self._decoder = msgspec.msgpack.Decoder(self.arguments)
            self._results = msgspec.msgpack.Decoder(self.result)
            self._oks: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
                msgspec.defstruct("Ok", [("value", self.result)], array_like=True, tag=OK_TAG)
            )
            self._schemas([field[1] for field in self.fields])
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self.defect(f"{self.title}: its annotations cannot be encoded: {error}") from None

    def _hints(self, names: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            return get_type_hints(
                self.function, localns=None if names is None else dict(names), include_extras=True
            )
        except NameError as error:
            raise self.defect(
                f"{self.title}: {error}; types in annotations must be known where the module ends, not only"
                " inside a function"
            ) from None

    def _field(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, ...]:
        name = parameter.name
        if parameter.kind not in {*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY}:
            raise self.defect(f"{self.title}: *{name}: pass a list or a dict as one argument instead")
        if name not in hints:
            raise self.defect(f"{self.title}: argument {name} has no annotation; calls are typed by them")
        if parameter.default is inspect.Parameter.empty:
            return name, hints[name]
        default = parameter.default
        if isinstance(default, (list, dict, set, bytearray)):
            if default:
                raise self.defect(
                    f"{self.title}: argument {name} has a default that can be changed; use a tuple, or None"
                )
            return name, hints[name], msgspec.field(default_factory=type(default))
        return name, hints[name], default

    def _struct(self, fields: Sequence[tuple[Any, ...]]) -> type[msgspec.Struct]:
        try:
            return msgspec.defstruct(self.name, fields, tag=self.name, array_like=True, gc=False)
        except (TypeError, ValueError) as error:
            raise self.defect(f"{self.title}: {error}") from None

    def _schemas(self, arguments: Sequence[Any]) -> tuple[Any, Any]:
        """Of these types and the result's."""
        return msgspec.json.schema_components([*arguments, self.result], ref_template="{name}")

    # -- calling ---------------------------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Struct:
        """The call as its receiver will see it, or ``InvalidCall``."""
        if len(args) > self._arguments_max:
            raise InvalidCall(f"{self.title}: takes {self._arity()}, was given {len(args)}")
        try:
            return self._decoder.decode(_ENCODER.encode(self.arguments(*args, **kwargs)))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise InvalidCall(f"{self.title}: {self._plain(error)}") from None

    def _plain(self, error: Exception) -> str:
        """msgspec's words, with the argument's name instead of its place in the struct that a call is."""
        words = str(error).replace("Missing required argument", "missing argument")
        names = ["its name", *(field[0] for field in self.fields)]
        return _PLACE.sub(lambda place: f"`{names[int(place[1])]}", words)

    def _arity(self) -> str:
        count = self._arguments_max
        return f"{count} argument{'' if count == 1 else 's'}"

    def call(self, subject: Any, values: tuple[Any, ...]) -> Any:
        """With all arguments, in their order."""
        if not self.keyword_only:
            return self.function(subject, *values)
        split = len(values) - len(self.keyword_only)
        return self.function(
            subject, *values[:split], **dict(zip(self.keyword_only, values[split:], strict=True))
        )

    def decode_result(self, data: bytes | msgspec.Raw) -> Any:
        return self._results.decode(data)

    def decode_ok(self, reply: bytes) -> Any:
        """The value of a whole reply that is one."""
        return self._oks.decode(reply).value


class Method(Typed):
    """One command or query."""

    def __init__(
        self, machine: type[StateMachine], name: str, function: Callable[..., Any], mark: Mark
    ) -> None:
        super().__init__(f"{machine.__name__}.{name}", name, function, vars(machine))
        self.mark = mark
        self.newest = max([mark.since, *self.since])
        self._check_versions(machine)
        self.has_sets = _has_sets(self.result)  # their order is the process' own
        self.is_plain = not (mark.atomic or self.keyword_only or self.has_sets)

    def _check_versions(self, machine: type[StateMachine]) -> None:
        for field, since in zip(self.fields, self.since, strict=True):
            if since > self.mark.since and len(field) == 2:
                raise MachineError(
                    f"{self.title}: argument {field[0]} came with version {since} and has no default"
                )
        if sorted(self.since) != self.since:
            raise MachineError(f"{self.title}: arguments of later versions must come last")
        if self.newest > machine.version:
            raise MachineError(
                f"{self.title}: came with version {self.newest}, but {machine.__name__}.version is"
                f" {machine.version}; raise that"
            )

    def invoke(self, machine: StateMachine, arguments: msgspec.Struct, version: int) -> Any:
        """Call it as the version that the group runs would: later arguments have their defaults."""
        values = msgspec.structs.astuple(arguments)
        if self.newest > version:
            values = self._as_of(values, version)
        return self.call(machine, values)

    def _as_of(self, values: tuple[Any, ...], version: int) -> tuple[Any, ...]:
        known = [value for value, since in zip(values, self.since, strict=True) if since <= version]
        return msgspec.structs.astuple(self.arguments(*known))

    def struct_of(self, version: int) -> type[msgspec.Struct]:
        """The arguments as they were in a version."""
        known = [field for field, since in zip(self.fields, self.since, strict=True) if since <= version]
        return self.arguments if len(known) == len(self.fields) else self._struct(known)

    # -- comparing -------------------------------------------------------------------------------

    def schema_of(self, version: int) -> bytes:
        """What it looks like in a version, in a form that does not depend on the process."""
        return msgspec.json.encode(self._schema(version), order="sorted")

    def _schema(self, version: int) -> object:
        known = [field for field, since in zip(self.fields, self.since, strict=True) if since <= version]
        schemas, components = self._schemas([field[1] for field in known])
        required = sum(len(field) == 2 for field in known)
        return [self.name, self.mark.atomic, required, list(schemas), components]


def _has_sets(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    return origin in {set, frozenset, AbstractSet} or any(map(_has_sets, get_args(annotation)))


def _since(annotation: Any) -> int:
    if get_origin(annotation) is Annotated:
        for extra in get_args(annotation)[1:]:
            if isinstance(extra, Since):
                return extra.version
    return FIRST_VERSION


class Catalogue:
    """All methods of a machine class, and its language."""

    def __init__(self, machine: type[StateMachine]) -> None:
        given: object = machine
        if not (isinstance(given, type) and issubclass(given, StateMachine)):
            raise MachineError(f"{machine!r}: is no subclass of StateMachine")
        self.machine = machine
        self.name = machine.__name__
        self.commands: dict[str, Method] = {}
        self.queries: dict[str, Method] = {}
        for name, function in inspect.getmembers(machine, inspect.isfunction):
            mark = mark_of(function)
            if mark is not None:
                if name in RESERVED or name.startswith("_"):
                    raise MachineError(
                        f"{machine.__name__}.{name}: cannot be called by this name; choose another"
                    )
                kind = self.commands if mark.is_command else self.queries
                kind[name] = Method(machine, name, function, mark)
        self._older: dict[int, Any] = {}
        self.takes_raw = machine.apply is not StateMachine.apply
        if not self.commands and not self.takes_raw:
            raise MachineError(
                f"{self.name}: has no command; decorate a method with @command, or override apply"
            )
        self.by_struct = {method.arguments: method for method in self.commands.values()}
        self.query_by_struct = {method.arguments: method for method in self.queries.values()}
        raw: list[Any] = [bytes] if self.takes_raw else []
        self.union: Any = reduce(or_, [*self.by_struct, *raw])
        self.query_union: Any = reduce(or_, self.query_by_struct) if self.queries else None

    def command(self, name: str) -> Method:
        return self._find(self.commands, name, "command")

    def query(self, name: str) -> Method:
        return self._find(self.queries, name, "query")

    def _find(self, methods: dict[str, Method], name: str, kind: str) -> Method:
        try:
            return methods[name]
        except KeyError:
            known = ", ".join([*self.commands, *self.queries]) or "none"
            raise InvalidCall(f"{self.name}.{name}: is no {kind}; there are: {known}") from None

    def decode_as_of(self, data: bytes | msgspec.Raw, version: int) -> Any:
        """A command as a replica of that version reads it, or None."""
        if version not in self._older:
            methods = {m.struct_of(version): m for m in self.commands.values() if m.mark.since <= version}
            raw: list[Any] = [bytes] if self.takes_raw else []
            union: Any = reduce(or_, [*methods, *raw]) if methods or raw else None
            self._older[version] = (msgspec.msgpack.Decoder(union), methods)
        decoder, methods = self._older[version]
        try:
            read = decoder.decode(data)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - also what classes of arguments raise in __post_init__
            return None
        if not isinstance(read, msgspec.Struct):
            return read
        return methods[type(read)].arguments(*msgspec.structs.astuple(read))

    def signature(self, version: int) -> bytes:
        """Equal for two classes if, and only if, they understand the same commands in this version."""
        digest = sha256()
        for _, method in sorted(self.commands.items()):
            if method.mark.since <= version:
                digest.update(method.schema_of(version) + b"\n")
        digest.update(b"raw" if self.takes_raw else b"")
        return digest.digest()[:SIGNATURE_BYTES]

    @property
    def signatures(self) -> dict[int, bytes]:
        return {
            version: self.signature(version) for version in range(FIRST_VERSION, self.machine.version + 1)
        }
