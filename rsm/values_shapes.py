"""How an object of a user's class comes apart and is put together again, without running its code.

An object is a list of names and values: its slots, in the order of its classes, then its ``__dict__`` in the
order it was filled. Putting it together runs neither ``__init__`` nor ``__setattr__`` nor ``__post_init__``:
what was saved was valid, and a hook that adds to it would make a restored replica differ from one that
executed everything.

*By value or by reference.* Tuples and frozen objects that compare by value can be told apart only by ``is``,
and which of two equal ones a program holds is an accident: a constant of the code is one object until a
restore makes it another. So they are values, like numbers. Everything else is a reference: two ways to one
object must lead to one object again.

Objects whose class has a part written in C keep something where nobody can see it. They are refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from enum import Enum
from inspect import getattr_static
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, Final

from msgspec import Struct

_POINTER: Final = tuple.__itemsize__
_copy_struct: Final[Callable[[Any], Any]] = getattr(Struct, "__copy__")  # noqa: B009 - not in its stubs
set_class: Final = object.__dict__["__class__"].__set__


class Opaque(TypeError):
    """A class whose objects cannot be taken apart; the message is the reason."""


def qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_by_value(cls: type) -> bool:
    """Whether objects of a class are frozen and compare by their fields."""
    if issubclass(cls, Struct):
        return bool(cls.__struct_config__.frozen and cls.__struct_config__.eq)
    parameters = cls.__dict__.get("__dataclass_params__")
    return is_dataclass(cls) and parameters is not None and bool(parameters.frozen and parameters.eq)


class Shape:
    """The places where objects of one class keep their values."""

    __slots__ = (
        "_template",
        "_twin",
        "by_value",
        "cls",
        "getter",
        "has_dict",
        "required",
        "setters",
        "slots",
    )

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.by_value = is_by_value(cls)
        self.has_dict = cls.__dictoffset__ != 0
        self.slots = _slots_of(cls)
        self.setters: dict[str, Callable[[Any, Any], None]] = {
            name: slot.__set__ for name, slot in self.slots.items()
        }
        # A struct without one of its fields is none; another object may well lack an attribute.
        self.required: tuple[str, ...] = cls.__struct_fields__ if issubclass(cls, Struct) else ()
        # All slots by one call in C, where that leads to the slots themselves.
        self.getter: Callable[[Any], Any] | None = None
        lookup: Any = cls.__getattribute__
        plain = lookup in (object.__getattribute__, Struct.__getattribute__)
        if (
            len(self.slots) > 1
            and plain
            and all(getattr(cls, name) is self.slots[name] for name in self.slots)
        ):
            self.getter = attrgetter(*self.slots)
        self._twin: Any = None
        self._template: Any = None
        if issubclass(cls, Enum | BaseException | type) or is_named_tuple(cls):
            raise Opaque("its objects are not made of attributes alone")
        if cls.__itemsize__ or cls.__basicsize__ != _size_of(cls, len(self.slots)):
            raise Opaque("a class it derives from is written in C, and may keep what cannot be seen")

    # -- apart -----------------------------------------------------------------------------------

    def apart(self, thing: object) -> dict[str, object]:
        """All attributes of an object, by name. Slots that are not set are left out."""
        if not self.slots:
            return dict(thing.__dict__) if self.has_dict else {}
        found = {}
        for name, slot in self.slots.items():
            try:
                found[name] = slot.__get__(thing)
            except AttributeError:
                continue
        if self.has_dict:
            found.update(thing.__dict__)
        return found

    # -- together --------------------------------------------------------------------------------

    def blank(self) -> Any:
        """An object without attributes, to be filled."""
        if not issubclass(self.cls, Struct):
            return object.__new__(self.cls)
        if self._template is None:  # lists, so that the garbage collector keeps an eye on the copies
            self._template = self._struct({name: [] for name in self.required})
        return _copy_struct(self._template)

    def fill(self, thing: Any, attributes: dict[str, object]) -> None:
        setters = self.setters
        rest: dict[str, object] = {}
        for name, value in attributes.items():
            if name in setters:
                setters[name](thing, value)
            else:
                rest[name] = value
        if self.has_dict:
            thing.__dict__.update(rest)

    def together(self, attributes: dict[str, object]) -> Any:
        """An object with these attributes, all of which are complete."""
        if not issubclass(self.cls, Struct):
            thing = object.__new__(self.cls)
            self.fill(thing, attributes)
            return thing
        thing = self._struct({name: attributes[name] for name in self.required})
        if self.has_dict:
            self.fill(thing, attributes)
        return thing

    def maker(self, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
        """What makes many objects with the same attributes, each of its values."""
        cls, new, put = self.cls, object.__new__, object.__setattr__
        described = any(hasattr(getattr_static(cls, name, None), "__set__") for name in names)
        if described or self.slots:
            return lambda row: self.together(dict(zip(names, row, strict=True)))

        def make(row: tuple[Any, ...]) -> Any:
            """One by one: an update of its ``__dict__`` would make it twice as large."""
            thing: Any = new(cls)
            for name, value in zip(names, row, strict=True):
                put(thing, name, value)
            return thing

        return make

    def _struct(self, attributes: dict[str, object]) -> Any:
        """A struct is made as one of a twin class without ``__post_init__``, and then given its own class.

        Made by its class, it would run the hook; filled afterwards, the garbage collector would not learn
        what a frozen one holds.
        """
        if self._twin is None:
            body = {"__post_init__": lambda _: None, "__module__": self.cls.__module__}
            self._twin = type(self.cls)(self.cls.__name__, (self.cls,), body)
        thing = self._twin(**attributes)
        set_class(thing, self.cls)
        return thing

    # -- what is wrong with names ----------------------------------------------------------------

    def misfit(self, names: tuple[str, ...]) -> str:
        """Why an object with these attributes cannot be one of this class; empty if it can."""
        if not self.has_dict:
            unknown = [name for name in names if name not in self.setters]
            if unknown:
                return f"has no attribute {unknown[0]!r}"
        missing = [name for name in self.required if name not in names]
        return f"needs the field {missing[0]!r}" if missing else ""


def _slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    slots: dict[str, MemberDescriptorType] = {}
    for base in reversed(cls.__mro__):
        for name, slot in base.__dict__.items():
            if isinstance(slot, MemberDescriptorType):
                if name in slots:
                    raise Opaque(f"it has two slots named {name!r}")
                slots[name] = slot
    return slots


def _size_of(cls: type, slots: int) -> int:
    """How large an object of nothing but slots would be."""
    pointers = slots + (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0)
    return object.__basicsize__ + pointers * _POINTER


class Classes:
    """The classes of a state, by name: nothing else is ever made from bytes."""

    def __init__(self, types: Iterable[type]) -> None:
        self.by_name: dict[str, type] = {}
        self.shapes: dict[type, Shape] = {}
        for cls in types:
            name = qualified_name(cls)
            if self.by_name.setdefault(name, cls) is not cls:
                raise ValueError(f"two classes are named {name}: rename one of them")
            try:
                self._admit(cls)
            except Opaque as reason:
                raise ValueError(f"{name} cannot be part of a state: {reason}") from None
        self.names = sorted(self.by_name)
        self.index = {self.by_name[name]: at for at, name in enumerate(self.names)}

    def _admit(self, cls: type) -> None:
        if issubclass(cls, Enum):
            return
        if not is_named_tuple(cls):
            self.shapes[cls] = Shape(cls)
        elif cls.__dictoffset__:
            raise Opaque("it is a named tuple with attributes of its own; give it __slots__ = ()")
