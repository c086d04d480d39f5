"""House rules. A rule is a function from a source file to its violations; test_tidy.py applies them.

The core must give the same effects for the same events on every machine. So it reaches no clock, socket,
random source or logger, and nothing in it depends on hash order, object identity or rounding.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700

# Parts of ordering/ and apps/ that talk to the world, or play it.
SHELL = (
    "apps/actions/doubts.py",
    "apps/actions/handles.py",
    "apps/actions/initiator.py",
    "apps/actions/manager.py",
    "apps/actions/offers.py",
    "apps/actions/outcomes.py",
    "apps/actions/sql.py",
    "ordering/caller_driver.py",
    "ordering/driven_group.py",
    "ordering/driver.py",
    "ordering/logs.py",
    "ordering/recording.py",
    "ordering/simulator/",
    "ordering/transports/",
)

FORBIDDEN_IN_CORE = frozenset(
    {"asyncio", "datetime", "logging", "multiprocessing", "os", "random", "secrets", "select", "selectors"}
    | {"socket", "ssl", "subprocess", "threading", "time", "uuid"}
)


# What every replica must execute alike: state machines, and parts of rsm/. Values and journals name clock
# types as values, and keep tables of objects by their ids; their own tests see to it that nothing of that
# shows.
REPLICATED = (
    "apps/",
    "rsm/envelope.py",
    "rsm/executor.py",
    "rsm/intake.py",
    "rsm/methods.py",
    "rsm/sessions.py",
    "rsm/state_machine.py",
)


def is_core(path: str) -> bool:
    return path.startswith((*REPLICATED, "ordering/")) and not path.startswith(SHELL)


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Source:
    """A Python file, its syntax tree, and what is known of sets beyond this file."""

    path: str
    text: str
    tree: ast.Module
    known_sets: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, path: str, text: str, known_sets: Iterable[str] = ()) -> "Source":
        return cls(path, text, ast.parse(text), frozenset(known_sets))

    def violation(self, node: ast.expr | ast.stmt, message: str) -> Violation:
        return Violation(self.path, node.lineno, message)


# --- what the core may reach


def forbidden_imports(source: Source) -> Iterator[Violation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in FORBIDDEN_IN_CORE:
                    yield source.violation(node, f"the core imports {alias.name}")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            for alias in node.names:
                is_random_class = (module, alias.name) == ("random", "Random")
                if module.partition(".")[0] in FORBIDDEN_IN_CORE and not is_random_class:
                    yield source.violation(node, f"the core imports {module}.{alias.name}")


def forbidden_calls(source: Source) -> Iterator[Violation]:
    reasons = {
        "__import__": "hides an import",
        "float": "makes a float",
        "hash": "differs between processes",
        "id": "differs between processes",
        "input": "reads the terminal",
        "open": "reaches the file system",
        "print": "writes to the terminal",
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        name = node.func.id
        if name in reasons:
            yield source.violation(node, f"the core calls {name}(), which {reasons[name]}")
        elif name == "Random" and not node.args and not node.keywords:
            yield source.violation(node, "the core calls Random() without a seed")


def floats(source: Source) -> Iterator[Violation]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield source.violation(node, f"float literal {node.value} in the core")
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            yield source.violation(node, "true division in the core; use // on integers")


# --- iteration over sets

SET_TYPES = frozenset({"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"})
SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
ORDER_KEEPERS = frozenset(
    {"deque", "enumerate", "filter", "iter", "list", "map", "reversed", "tuple", "zip"}
    | {"extend", "fromkeys", "join"}  # methods that take the order of their argument
)
ORDER_BLIND = frozenset({"all", "any", "frozenset", "len", "set", "sorted", "sum"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_set_annotation(node: ast.expr | None) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SET_TYPES
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar" | "Annotated"), slice=inner):
            return is_set_annotation(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.Subscript(value=value):
            return is_set_annotation(value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_set_annotation(left) or is_set_annotation(right)
        case ast.Constant(value=str(text)):
            return is_set_annotation(ast.parse(text, mode="eval").body)
    return False


def called_name(node: ast.AST | None) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def declared_sets(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Names, written `.name`, that every class and function declaring them declares as a set.

    They are fields, properties and functions that return sets. A name that is a set in one class and a list
    in another tells nothing about `thing.name`, so it is left out.
    """
    is_set: dict[str, bool] = {}

    def declare(name: str, annotation: ast.expr | None) -> None:
        is_set[name] = is_set_annotation(annotation) and is_set.get(name, True)

    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name, returns=returns) if returns is not None:
                declare(name, returns)
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                declare(name, annotation)
            case ast.ClassDef(body=body):
                for statement in body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        declare(statement.target.id, statement.annotation)
    return frozenset(f".{name}" for name, always in is_set.items() if always)


@dataclass(slots=True)
class SetIterationFinder:
    """Walks a module and knows which names are sets: `name` for variables, `self.name` for attributes.

    It reads no types across expressions, so it misses some. It is meant to catch the usual slips.
    """

    source: Source
    sets: frozenset[str]
    found: list[Violation] = field(default_factory=list)

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in self.sets
            case ast.Attribute(value=owner, attr=name):
                is_own = isinstance(owner, ast.Name) and owner.id == "self" and f"self.{name}" in self.sets
                return is_own or f".{name}" in self.sets
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in SET_METHODS:
                return self.is_set(owner)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return f".{name}" in self.sets
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self.is_set(left) or self.is_set(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body) or self.is_set(orelse)
        return False

    def check(self, node: ast.expr) -> None:
        if self.is_set(node):
            self.found.append(self.source.violation(node, f"order of a set is used: {ast.unparse(node)}"))

    def visit(self, node: ast.AST, parent: ast.AST | None = None) -> None:
        outer = self.sets
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            self.sets = outer | self._names_of(node)
        self._check_node(node, parent)
        for child in ast.iter_child_nodes(node):
            self.visit(child, node)
        self.sets = outer

    def _check_node(self, node: ast.AST, parent: ast.AST | None) -> None:
        match node:
            case ast.For(iter=iterable) | ast.YieldFrom(value=iterable) | ast.Starred(value=iterable):
                if not isinstance(parent, ast.Set):
                    self.check(iterable)
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                self.check(value)
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
                if called_name(parent) not in ORDER_BLIND:
                    for generator in node.generators:
                        self.check(generator.iter)
            case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
                self.check(owner)
            case ast.Call(func=ast.Name(id="min" | "max"), args=[only], keywords=[_, *_]):
                self.check(only)  # with a key, ties go to whichever comes first
            case ast.Call(args=arguments) if called_name(node) in ORDER_KEEPERS:
                if called_name(parent) not in ORDER_BLIND:
                    for argument in arguments:
                        self.check(argument)

    def _names_of(self, node: Function | ast.ClassDef | ast.Module) -> frozenset[str]:
        if isinstance(node, ast.ClassDef):
            return frozenset(
                f"self.{name.removeprefix('self.')}" for name in self._assigned_in(node, deep=True)
            )
        names = set(self._assigned_in(node, deep=isinstance(node, Function)))
        if isinstance(node, Function):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            names |= {argument.arg for argument in arguments if is_set_annotation(argument.annotation)}
        return frozenset(name for name in names if not name.startswith("self."))

    def _assigned_in(self, scope: Function | ast.ClassDef | ast.Module, *, deep: bool) -> Iterator[str]:
        """Names a scope gives to sets. In a class: its own fields, and `self.x` in its methods."""
        statements = ast.walk(scope) if deep else iter(scope.body)
        for statement in statements:
            match statement:
                case ast.AnnAssign(target=target, annotation=annotation) if is_set_annotation(annotation):
                    pass
                case ast.Assign(targets=[target], value=value) if self.is_set(value):
                    pass
                case _:
                    continue
            match target:
                case ast.Name(id=name) if not isinstance(scope, ast.ClassDef) or statement in scope.body:
                    yield name
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    yield f"self.{name}"


def set_iteration(source: Source) -> Iterator[Violation]:
    finder = SetIterationFinder(source, source.known_sets)
    finder.visit(source.tree)
    yield from finder.found


# --- size and leftovers


def long_functions(source: Source) -> Iterator[Violation]:
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.violation(node, f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}")


def long_file(source: Source) -> Iterator[Violation]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield Violation(source.path, lines, f"{lines} lines, more than {FILE_LINES_MAX}")


# The brackets keep these patterns from matching their own source.
LEFTOVER = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(work|root|home)/"),
    "a package registry": re.compile(
        r"pypi[.]org|pythonhosted[.]org|npmjs[.]org|anaconda[.]org|maven[.]org|(extra-)?index[-]url\b|find[-]links\b"
    ),
    "an issue number": re.compile(r"\bissue[ ]#", re.IGNORECASE),
    "how the text came to be": re.compile(
        r"\b(this|(an|the) (last|next|previous|earlier|later)|(last|previous|earlier))[ ]session\b",
        re.IGNORECASE,
    ),
}


def leftovers(source: Source) -> Iterator[Violation]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := LEFTOVER.search(line):
            yield Violation(source.path, number, f"leftover {match[0]}")


def foreign_words(path: str, text: str) -> Iterator[Violation]:
    """Applies to every text file: the repository speaks of the product alone."""
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in FOREIGN.items():
            if match := pattern.search(line):
                yield Violation(path, number, f"mentions {what}: {match[0]}")


def read_text(path: Path) -> str | None:
    """The text of a file, or None if it is binary."""
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")
