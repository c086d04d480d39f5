"""`rsm kv`: the key-value store from the command line, over HTTP."""

import base64
import os
import sys
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import httpx2
import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from cli.over_http import OPENED, REFUSED, Access, Failure, Fields, Gateways, asked, over_http, path_of
from cli.showing import Output, check_output, fitting_table, refuse

app = typer.Typer(
    help="Read, write and watch keys of a group, over HTTP.", no_args_is_help=True, rich_markup_mode="rich"
)

PAGE: Final = 1000
SHOWN_MAX: Final = 60

Key = Annotated[str, typer.Argument(help="Slashes belong to it.", show_default=False)]
Hex = Annotated[bool, typer.Option("--hex", help="Keys are given and shown in hexadecimal.")]
IfMatch = Annotated[
    str, typer.Option("--if-match", help="Only if its revision is this; * only if it is there.")
]
Once = Annotated[
    str,
    typer.Option("--once", help="An Idempotency-Key of your own: what has it is carried out once in a day."),
]
Qos = Annotated[
    str,
    typer.Option(
        help="Answer when so many voters hold it: ordered, k:N (N failures are survived), majority, all.",
        show_default="majority",
    ),
]


# -- one key -------------------------------------------------------------------------------------


@app.command()
@over_http
def get(
    access: Access,
    key: Key,
    revision: Annotated[int | None, typer.Option(min=1, help="As it was then.")] = None,
    consistency: Annotated[str, typer.Option(help="linearizable, sequential or stale.")] = "linearizable",
    hexadecimal: Hex = False,
    output: Annotated[str, typer.Option("--output", "-o", help="raw or json.")] = "raw",
) -> None:
    """Print the value of a key, byte for byte.

    Exit codes: 0 done, 1 there is no such key, 2 a wrong call, 5 nobody serves.

      rsm kv get greeting
    """
    if output not in {"raw", "json"}:
        refuse(f"--output: {output!r} must be raw or json")
    name = key_of(key, hexadecimal)
    fields: Fields = {"revision": revision, "consistency": consistency}
    answer = asked(access, lambda gateways: gateways.ask("GET", path_of("/v1/kv", name), fields=fields))
    if output == "raw":
        write_raw(answer.content)
        return
    said: dict[str, Any] = {**as_json("key", name), **as_json("value", answer.content)}
    said["revision"] = _number(answer.headers.get("etag", "").strip('W/"'))
    for field in ("created", "version", "lease"):
        said[field] = _number(answer.headers.get(f"x-rsm-{field}"))
    show_json(said)


@app.command()
@over_http
def put(
    access: Access,
    key: Key,
    value: Annotated[str | None, typer.Argument(help="- is the standard input.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Its contents are the value.")] = None,
    ttl: Annotated[str, typer.Option(help="It goes by itself after so long, as 30s or 5m.")] = "",
    lease: Annotated[int | None, typer.Option(help="It goes with this lease.")] = None,
    if_match: IfMatch = "",
    create: Annotated[bool, typer.Option("--create", help="Only if it is not there.")] = False,
    qos: Qos = "",
    once: Once = "",
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Write a key.

    The level of --qos that was reached may be less, and is printed. Exit codes:
    0 written, 1 refused, as by --if-match, 2 a wrong call, 4 the outcome is
    unknown, 5 nobody serves.

      rsm kv put greeting hello

      rsm kv put config --file config.json --if-match 12

      rsm kv put order/17 paid --qos all
    """
    check_output(output)
    if (value is None) == (file is None):
        refuse("VALUE, --file: give one of them; - as the value reads the standard input")
    if create and if_match:
        refuse("--create, --if-match: give one of them")
    if ttl and lease is not None:
        refuse("--ttl, --lease: give one of them")
    name, body = key_of(key, hexadecimal), _body(value, file)
    headers = {"Content-Type": "application/octet-stream", **condition(if_match)}
    if create:
        headers["If-None-Match"] = "*"
    fields: Fields = {"ttl": ttl or None, "lease": lease, "qos": qos or None}
    answer = asked(
        access,
        lambda gateways: gateways.ask(
            "PUT", path_of("/v1/kv", name), fields=fields, headers=headers, body=body, once=once
        ),
    )
    said = msgspec.json.decode(answer.content, type=dict[str, Any])
    if output == "json":
        show_json(said | reached(answer))
    else:
        word = "created" if answer.status_code == 201 else "written"
        typer.echo(f"{word}: revision {said['revision']}, version {said['version']}{level(answer, qos)}")


@app.command(name="del")
@over_http
def delete(
    access: Access,
    key: Annotated[str | None, typer.Argument(show_default=False)] = None,
    prefix: Annotated[str | None, typer.Option(help="All keys that begin so.")] = None,
    if_match: IfMatch = "",
    qos: Qos = "",
    once: Once = "",
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Delete a key, or all that begin with a prefix.

    Exit codes: 0 deleted, 1 there was none, or it was refused, 2 a wrong call,
    4 the outcome is unknown, 5 nobody serves.

      rsm kv del greeting

      rsm kv del --prefix sessions/
    """
    check_output(output)
    if (key is None) == (prefix is None):
        refuse("KEY, --prefix: give one of them")
    if key is not None:
        path, headers, fields = (
            path_of("/v1/kv", key_of(key, hexadecimal)),
            condition(if_match),
            {"qos": qos or None},
        )
        answer = asked(
            access,
            lambda gateways: gateways.ask("DELETE", path, fields=fields, headers=headers, once=once),
        )
        if output == "json":
            revision = _number(answer.headers.get("x-rsm-timestamp"))
            show_json({"deleted": 1, "revision": revision} | reached(answer))
        else:
            typer.echo(f"deleted{level(answer, qos)}")
        return
    if if_match or once:
        refuse("--prefix: goes without --if-match and --once")
    assert prefix is not None
    begin = key_of(prefix, hexadecimal)
    count, answer = asked(access, lambda gateways: _delete_all(gateways, begin, qos))
    if output == "json":
        show_json({"deleted": count} | reached(answer))
    else:
        typer.echo(f"deleted: {count} keys{level(answer, qos)}")
    raise typer.Exit(0 if count else REFUSED)


async def _delete_all(gateways: Gateways, prefix: bytes, qos: str) -> tuple[int, httpx2.Response]:
    """How many, and the last answer."""
    count = 0
    fields: Fields = {"prefix": prefix, "limit": PAGE, "qos": qos or None}
    while True:
        answer = await gateways.ask("DELETE", "/v1/kv", fields=fields)
        said = msgspec.json.decode(answer.content, type=dict[str, Any])
        count += said["deleted"]
        if not said["more"]:
            return count, answer


# -- many ----------------------------------------------------------------------------------------


@app.command()
@over_http
def ls(
    access: Access,
    prefix: Annotated[str, typer.Argument(help="Keys that begin so; none: all.", show_default=False)] = "",
    start: Annotated[str | None, typer.Option(help="Instead: from this key on.")] = None,
    end: Annotated[str | None, typer.Option(help="Up to, and without, this key.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0: all.")] = 0,
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="Without values, a key to the line.")
    ] = False,
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """List keys in order.

    A page of it is of one moment, all of it need not be: what is written
    meanwhile may be there or not. Exit codes: 0 done, also if there is none,
    2 a wrong call, 5 nobody serves.

      rsm kv ls users/ --keys-only
    """
    check_output(output)
    if prefix and (start is not None or end is not None):
        refuse("PREFIX goes without --start and --end")
    fields: Fields = {
        "prefix": key_of(prefix, hexadecimal) if prefix or (start is None and end is None) else None,
        "start": None if start is None else key_of(start, hexadecimal),
        "end": None if end is None else key_of(end, hexadecimal),
        "keys_only": "true" if keys_only else None,
    }
    items = asked(access, lambda gateways: _all_items(gateways, fields, limit))
    if output == "json":
        show_json({"items": items})
    elif keys_only:
        for each in items:
            typer.echo(shown(raw(each, "key"), hexadecimal))
    else:
        _show_items(items, hexadecimal)


async def _all_items(gateways: Gateways, fields: Fields, limit: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = min(PAGE, limit - len(items)) if limit else PAGE
        answer = await gateways.ask("GET", "/v1/kv", fields={**fields, "limit": page, "cursor": cursor})
        said = msgspec.json.decode(answer.content, type=dict[str, Any])
        items += said["items"]
        cursor = said["cursor"]
        if cursor is None or (limit and len(items) >= limit):
            return items


def _show_items(items: Iterable[dict[str, Any]], hexadecimal: bool) -> None:
    console = Console(highlight=False)
    rows = [
        [
            escape(shown(raw(each, "key"), hexadecimal)),
            str(each["revision"]),
            str(each["version"]),
            escape(shortened(raw(each, "value"))),
            str(each.get("lease") or ""),
        ]
        for each in items
    ]
    console.print(fitting_table(console, ["key", "revision", "version", "value", "lease"], rows))


@app.command()
@over_http
def history(
    access: Access,
    key: Key,
    since: Annotated[int | None, typer.Option(min=0, help="Behind this revision.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="At most so many.")] = 100,
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Show what happened to a key, as far as it is retained.

    Exit codes: 0 done, 1 nothing is retained of it, 2 a wrong call, 5 nobody
    serves.

      rsm kv history greeting
    """
    check_output(output)
    path = path_of("/v1/history", key_of(key, hexadecimal))
    fields: Fields = {"since": since, "limit": limit}
    answer = asked(access, lambda gateways: gateways.ask("GET", path, fields=fields))
    said = msgspec.json.decode(answer.content, type=dict[str, Any])
    if output == "json":
        show_json(said)
    for each in said["items"] if output == "table" else ():
        typer.echo(event_line(each, hexadecimal))
    if not said["items"]:
        refuse(f"nothing is retained of it; history begins at revision {said['retained_from']}", REFUSED)


@app.command()
@over_http
def txn(
    access: Access,
    file: Annotated[str, typer.Argument(help="JSON with compare, then, else; - is the standard input.")],
    qos: Qos = "",
    once: Once = "",
    output: Output = "json",
) -> None:
    """Carry out a transaction, at once, and all or nothing.

    If all comparisons hold it is `then`, otherwise `else`. Prints the answer.
    Exit codes: 0 `then` was carried out, 1 `else` was, or it was refused, 2 a
    wrong call, 4 the outcome is unknown, 5 nobody serves.

      echo '{"compare": [], "then": [{"op": "put", "key": "a", "value": "1"}], "else": []}' | rsm kv txn -
    """
    check_output(output)
    body = _body(file, None) if file == "-" else _body(None, Path(file))
    headers, fields = {"Content-Type": "application/json"}, {"qos": qos or None}
    answer = asked(
        access,
        lambda gateways: gateways.ask(
            "POST", "/v1/txn", fields=fields, headers=headers, body=body, once=once
        ),
    )
    said = msgspec.json.decode(answer.content, type=dict[str, Any])
    if output == "json":
        show_json(said | reached(answer))
    else:
        which = "then" if said["succeeded"] else "else"
        typer.echo(f"{which}: revision {said['revision']}{level(answer, qos)}")
        for each in said["results"]:
            typer.echo(f"  {json_line(each)}")
    raise typer.Exit(0 if said["succeeded"] else REFUSED)


# -- watching ------------------------------------------------------------------------------------


@app.command()
@over_http
def watch(
    access: Access,
    key: Annotated[str | None, typer.Argument(show_default=False)] = None,
    prefix: Annotated[str | None, typer.Option(help="All keys that begin so.")] = None,
    since: Annotated[int | None, typer.Option(min=0, help="Behind this revision; none: from now on.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="End after so many events; 0: never.")] = 0,
    hexadecimal: Hex = False,
    output: Output = "table",
) -> None:
    """Print every change of a key, or of a prefix, until Ctrl-C.

    Goes on by itself, and misses nothing, when a gateway or a replica goes
    away; it gives up when nobody is there for --timeout. With -o json each
    event is a line. Exit codes: 0 ended by Ctrl-C or --limit, 1 what was asked
    for is not retained, or still to come, 2 a wrong call, 5 nobody serves.

      rsm kv watch --prefix users/ --since 120
    """
    check_output(output)
    if key is not None and prefix is not None:
        refuse("KEY, --prefix: give one of them")
    fields: Fields = {
        "key": None if key is None else key_of(key, hexadecimal),
        "prefix": key_of(prefix or "", hexadecimal) if key is None else None,
        "since": since,
    }

    async def follow(gateways: Gateways) -> None:
        left = limit
        async for event in changes(gateways, fields):
            typer.echo(json_line(event) if output == "json" else event_line(event, hexadecimal))
            sys.stdout.flush()
            left -= 1
            if left == 0:
                return

    try:
        asked(access, follow)
    except KeyboardInterrupt:
        raise typer.Exit from None


async def changes(gateways: Gateways, fields: Fields) -> AsyncGenerator[dict[str, Any], None]:
    """Each event once. Who resumes in the middle of a revision gets its first events again: the id comes with
    the last of them."""
    revision, seen, repeated = 0, 0, 0
    stream = gateways.events("/v1/watch", fields)
    try:
        async for event in stream:
            if event.event == "error":
                problem = msgspec.json.decode(event.data, type=dict[str, Any])
                raise Failure(f"{problem.get('code', '')}: {problem.get('detail', '')}", REFUSED)
            if event.event == OPENED:
                repeated = 0
            if event.event not in {"put", "delete"}:
                continue
            said = msgspec.json.decode(event.data, type=dict[str, Any])
            if said["revision"] != revision:
                revision, seen, repeated = said["revision"], 0, 0
            repeated += 1
            if repeated > seen:
                seen = repeated
                yield said
    finally:
        await stream.aclose()


# -- what is given, what is shown ----------------------------------------------------------------


def key_of(text: str, hexadecimal: bool) -> bytes:
    """A key as it was typed, with bytes that are no UTF-8 as the shell has given them."""
    if not hexadecimal:
        return os.fsencode(text)
    try:
        return bytes.fromhex(text)
    except ValueError:
        refuse(f"--hex: {text!r} is no hexadecimal number")


def condition(if_match: str) -> dict[str, str]:
    if not if_match:
        return {}
    if if_match != "*" and not if_match.strip('"').isdecimal():
        refuse(f"--if-match: {if_match!r} must be a revision, or *")
    return {"If-Match": "*" if if_match == "*" else f'"{if_match.strip(chr(34))}"'}


def _body(value: str | None, file: Path | None) -> bytes:
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            refuse(f"{file}: {error.strerror}")
    assert value is not None
    return sys.stdin.buffer.read() if value == "-" else os.fsencode(value)


def reached(answer: httpx2.Response) -> dict[str, Any]:
    """The level of a command's answer, as JSON has it."""
    return {"qos": answer.headers.get("x-rsm-qos")}


def level(answer: httpx2.Response, asked_for: str) -> str:
    """The same for a line, if somebody wanted to know."""
    return f", held: {answer.headers.get('x-rsm-qos', 'unknown')}" if asked_for else ""


def raw(said: dict[str, Any], field: str) -> bytes:
    """Bytes that stand in JSON as text, or as base64 where they are none."""
    encoded = said.get(f"{field}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return str(said.get(field) or "").encode()


def as_json(field: str, data: bytes) -> dict[str, str]:
    try:
        return {field: data.decode()}
    except UnicodeDecodeError:
        return {f"{field}_base64": base64.b64encode(data).decode()}


def shown(data: bytes, hexadecimal: bool = False) -> str:
    """For one line of a terminal: what is no text, and what moves the cursor, is escaped."""
    if hexadecimal:
        return data.hex()
    text = data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(data: bytes) -> str:
    words = shown(data[: SHOWN_MAX + 4])
    return words if len(words) <= SHOWN_MAX else f"{words[: SHOWN_MAX - 1]}…"


def event_line(event: dict[str, Any], hexadecimal: bool) -> str:
    key = shown(raw(event, "key"), hexadecimal)
    kind = event["event"]
    if kind == "delete":
        return f"{event['revision']}  delete  {key}{'  expired' if event.get('expired') else ''}"
    return f"{event['revision']}  put     {key}  {shortened(raw(event, 'value'))}"


def write_raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    if sys.stdout.isatty() and not data.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")  # else the prompt stands behind it
    sys.stdout.buffer.flush()


def json_line(value: object) -> str:
    return msgspec.json.encode(value).decode()


def show_json(value: object) -> None:
    typer.echo(json_line(value))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
