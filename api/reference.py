"""The description of the API as a page: what OpenAPI says, for a person (`/docs`).

Made here, of the description alone. What a browser needs beside it, a style sheet and a script that tries
reads out, comes from this gateway too; nothing comes from elsewhere, and the page forbids the browser to ask.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any, Final
from urllib.parse import quote

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REF: Final = "#/components/schemas/"
_TAGS: Final = ("keys", "watches", "leases", "locks", "cluster", "health")
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="/docs/reference.css">
<script src="/docs/reference.js" defer></script>
</head>
<body>
<header>
<h1>{title}</h1>
<p>Version {version}. The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>
{words}
{token}
</header>
<nav>{contents}</nav>
<main>
{parts}
</main>
</body>
</html>
"""
_TOKEN: Final = """<p class="token"><label>Token for what is tried here
<input id="token" type="password" autocomplete="off"></label></p>"""


def page_of(description: dict[str, Any]) -> str:
    return _Page(description).text()


class _Page:
    def __init__(self, description: dict[str, Any]) -> None:
        self._description = description
        self._shapes: dict[str, Any] = description["components"]["schemas"]
        self._shown: list[str] = []  # shapes that something refers to
        self._has_tokens = "security" in description

    def text(self) -> str:
        info = self._description["info"]
        found: dict[str, list[str]] = {tag: [] for tag in _TAGS}
        for path, operations in sorted(self._description["paths"].items()):
            for method, operation in operations.items():
                found.setdefault(operation["tags"][0], []).append(self._operation(method, path, operation))
        parts = [
            f'<section id="{escape(tag)}"><h2>{escape(tag)}</h2>{"".join(each)}</section>'
            for tag, each in found.items()
            if each
        ]
        shapes = "".join(self._all_shapes())
        parts.append(f'<section id="shapes"><h2>shapes of JSON</h2>{shapes}</section>')
        names = [*(tag for tag, each in found.items() if each), "shapes"]
        return _PAGE.format(
            title=escape(info["title"]),
            version=escape(info["version"]),
            words="".join(f"<p>{_marked(each)}</p>" for each in info["description"].split("\n\n")),
            token=_TOKEN if self._has_tokens else "",
            contents=" ".join(f'<a href="#{escape(each)}">{escape(each)}</a>' for each in names),
            parts="\n".join(parts),
        )

    # -- operations ------------------------------------------------------------------------------

    def _operation(self, method: str, path: str, operation: dict[str, Any]) -> str:
        known: list[dict[str, Any]] = operation.get("parameters", [])
        body: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
        answers: dict[str, Any] = operation["responses"]
        named = f'<code class="method">{method.upper()}</code> <code>{escape(path)}</code>'
        pieces = [
            f'<details id="{escape(operation["operationId"])}">',
            f"<summary>{named} {escape(operation['summary'])}</summary>",
            f"<pre>{escape(self._curl(method, path, known, body))}</pre>",
            _table("Parameters", ("name", "in", "type", "what"), [self._parameter(each) for each in known]),
            *(self._content("Body", kind, content) for kind, content in body.items()),
            _table(
                "Answers",
                ("status", "what", "body", "headers"),
                [self._answer(status, each) for status, each in answers.items()],
            ),
        ]
        streams = any("text/event-stream" in each.get("content", {}) for each in answers.values())
        if method == "get" and not streams:
            pieces.append(_form(path, known))
        return "".join([*pieces, "</details>"])

    def _parameter(self, known: dict[str, Any]) -> list[str]:
        needed = " <em>needed</em>" if known.get("required") else ""
        example = known.get("example")
        shown = "" if example is None else f" Example: <code>{escape(_plain(example))}</code>"
        where, kind = escape(known["in"]), self._kind(known.get("schema", {}))
        return [f"<code>{escape(known['name'])}</code>{needed}", where, kind, _marked(_words(known)) + shown]

    def _content(self, title: str, kind: str, content: dict[str, Any]) -> str:
        example = self._example(content)
        shown = "" if example is None else f"<pre>{escape(_pretty(example))}</pre>"
        return f"<h3>{title}: {escape(kind)}, {self._kind(content.get('schema', {}))}</h3>{shown}"

    def _example(self, content: dict[str, Any]) -> Any:
        """One that is given, else one that is made of the fields that have one."""
        if "example" in content:
            return content["example"]
        shape = self._resolved(content.get("schema", {}))
        if shape.get("examples"):
            return shape["examples"][0]
        fields = {name: self._sample(each) for name, each in shape.get("properties", {}).items()}
        return {name: value for name, value in fields.items() if value is not None} or None

    def _sample(self, schema: dict[str, Any]) -> Any:
        found = [self._resolved(each) for each in (schema, *schema.get("anyOf", ()))]
        return next((each["examples"][0] for each in found if each.get("examples")), None)

    def _answer(self, status: str, answer: dict[str, Any]) -> list[str]:
        bodies = [
            f"{escape(kind)}: {self._kind(content.get('schema', {}))}"
            for kind, content in answer.get("content", {}).items()
        ]
        headers = [
            f'<code title="{escape(each.get("description", ""))}">{escape(name)}</code>'
            for name, each in answer.get("headers", {}).items()
        ]
        return [
            f"<code>{escape(status)}</code>",
            _marked(_words(answer)),
            "<br>".join(bodies),
            " ".join(headers),
        ]

    def _curl(self, method: str, path: str, known: list[dict[str, Any]], body: dict[str, Any]) -> str:
        parts = ["curl"]
        if method == "head":
            parts.append("--head")
        elif method != "get":
            parts.append(f"-X {method.upper()}")
        if self._has_tokens:
            parts.append('-H "Authorization: Bearer $RSM_TOKEN"')
        for kind, content in body.items():
            if kind == "application/json":
                parts.append(f"-H 'Content-Type: {kind}'")
            parts.append(f"--data '{_plain(self._example(content))}'")
        for each in (each for each in known if each["in"] == "path"):
            path = path.replace(f"{{{each['name']}}}", _plain(each.get("example", each["name"].upper())))
        asked = [each for each in known if each["in"] == "query" and "example" in each]
        if method == "delete" and asked:  # one of them may be needed: nothing is deleted without a word
            path += f"?{asked[0]['name']}={quote(_plain(asked[0]['example']))}"
        return " ".join([*parts, f'"$RSM_ENDPOINT{path}"'])

    # -- shapes ----------------------------------------------------------------------------------

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get("$ref", "")
        found: dict[str, Any] = self._shapes[name.removeprefix(_REF)] if name else schema
        return found

    def _kind(self, schema: dict[str, Any]) -> str:
        """What a value is, in words; a shape by its name."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REF)
            if name not in self._shown:
                self._shown.append(name)
            return f'<a href="#shape-{escape(name)}">{escape(name)}</a>'
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return " or ".join(self._kind(each) for each in schema[choice])
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " or ".join(f"<code>{escape(_plain(each))}</code>" for each in values)
        if schema.get("type") == "array":
            return f"list of {self._kind(schema.get('items', {}))}"
        kind = escape(str(schema.get("type", "anything")))
        if schema.get("contentEncoding"):
            kind += f", {escape(schema['contentEncoding'])}"
        elif "default" in schema:
            kind += f", else <code>{escape(_plain(schema['default']))}</code>"
        return kind

    def _all_shapes(self) -> Iterator[str]:
        """Those that were referred to, and those that these refer to."""
        for name in self._shown:  # it grows
            shape = self._shapes[name]
            needed = shape.get("required", ())
            rows = [
                [
                    f"<code>{escape(field)}</code>{' <em>always</em>' if field in needed else ''}",
                    self._kind(each),
                    _marked(_words(each)),
                ]
                for field, each in shape.get("properties", {}).items()
            ]
            yield (
                f'<details id="shape-{escape(name)}"><summary>{escape(name)}</summary>'
                f"<p>{_marked(_words(shape))}</p>{_table('', ('field', 'type', 'what'), rows)}</details>"
            )


# -- pieces --------------------------------------------------------------------------------------


def _table(title: str, heads: tuple[str, ...], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    if not rows:
        return ""
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"{f'<h3>{title}</h3>' if title else ''}<table><tr>{head}</tr>{body}</table>"


def _form(path: str, known: list[dict[str, Any]]) -> str:
    """To try a read; the script sends it."""
    fields = "".join(
        f'<label>{escape(each["name"])} <input name="{escape(each["name"])}" data-in="{escape(each["in"])}"'
        f"{' required' if each.get('required') else ''}></label> "
        for each in known
    )
    return (
        f'<form class="try" data-path="{escape(path)}">{fields}<button>Try it</button>'
        '<pre class="answer" hidden></pre></form>'
    )


def _words(described: dict[str, Any]) -> str:
    return str(described.get("description", ""))


def _marked(text: str) -> str:
    """Words with names in backquotes, one or two of them."""
    return re.sub(r"(`{1,2})([^`]+)\1", r"<code>\2</code>", escape(text, quote=False))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2)
