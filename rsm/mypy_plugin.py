"""A machine's methods on its proxies, for mypy: ``plugins = ["rsm.mypy_plugin"]`` in its settings.

A ``Proxy[Counter]`` has Counter's commands and queries, with their arguments, as coroutines; a
``BlockingProxy[Counter]`` has them as they are. What is no command or query is an error, as it is when the
program runs. Nothing else of the machine is there.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mypy.errorcodes import ATTR_DEFINED
from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.plugin import AttributeContext, Plugin
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    Parameters,
    ProperType,
    Type,
    TypeOfAny,
    TypeVarType,
    get_proper_type,
)

COMMAND: Final = "rsm.state_machine.Command"
QUERY: Final = "rsm.state_machine.Query"
_DETAILS: Final = {COMMAND: "Result", QUERY: "Fresh"}  # of rsm.proxy

# Each proxy: whether its methods must be awaited, and whether they tell details.
PROXIES: Final = {
    "rsm.proxy.Proxy": (True, False),
    "rsm.proxy.DetailedProxy": (True, True),
    "rsm.client.BlockingProxy": (False, False),
    "rsm.client.BlockingDetailedProxy": (False, True),
}


class ProxyPlugin(Plugin):
    """Asked for each attribute that a proxy's own class does not have."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        owner, _, name = fullname.rpartition(".")
        found = PROXIES.get(owner)
        if found is None or name.startswith("_"):
            return None
        awaited, detailed = found
        return partial(_attribute, name, awaited, detailed)


def _attribute(name: str, awaited: bool, detailed: bool, context: AttributeContext) -> Type:
    proxy = get_proper_type(context.type)
    if not isinstance(proxy, Instance) or not proxy.args:
        return context.default_attr_type
    machine = get_proper_type(proxy.args[0])
    if isinstance(machine, TypeVarType):
        machine = get_proper_type(machine.upper_bound)
    if not isinstance(machine, Instance):
        return context.default_attr_type  # any machine
    method = _method_of(machine, name, context)
    if method is None:
        return AnyType(TypeOfAny.from_error)
    return _signature(name, method, awaited, detailed, context)


def _method_of(machine: Instance, name: str, context: AttributeContext) -> Instance | None:
    """What the decorator has made of it, in this machine; None, with an error told, if there is none."""
    api, place = context.api, context.context
    checker: Any = api  # has more than plugins are promised
    owner = machine.type.get_containing_type_info(name)
    if owner is None:
        api.fail(f'"{machine.type.name}" has no command or query "{name}"', place, code=ATTR_DEFINED)
        return None
    declared = owner.names[name].type
    if declared is None:  # its class is checked later; then this is looked at again
        checker.handle_cannot_determine_type(name, place)
        return None
    found: ProperType = get_proper_type(
        expand_type_by_instance(declared, map_instance_to_supertype(machine, owner))
    )
    if not isinstance(found, Instance) or found.type.fullname not in _DETAILS:
        words = f'"{name}" of "{machine.type.name}" is no command or query'
        api.fail(words, place, code=ATTR_DEFINED)
        return None
    return found


def _signature(name: str, method: Instance, awaited: bool, detailed: bool, context: AttributeContext) -> Type:
    api = context.api
    parameters, result = get_proper_type(method.args[1]), method.args[2]
    if detailed:
        result = _detail(context, _DETAILS[method.type.fullname], result)
    if awaited:
        nothing = AnyType(TypeOfAny.explicit)
        result = api.named_generic_type("typing.Coroutine", [nothing, nothing, result])
    if not isinstance(parameters, Parameters):
        return context.default_attr_type
    return CallableType(
        parameters.arg_types,
        parameters.arg_kinds,
        parameters.arg_names,
        result,
        api.named_generic_type("builtins.function", []),
        name=name,
        variables=parameters.variables,
    )


def _detail(context: AttributeContext, name: str, value: Type) -> Type:
    checker: Any = context.api
    return Instance(checker.modules["rsm.proxy"].names[name].node, [value])


def plugin(version: str) -> type[Plugin]:
    return ProxyPlugin
