"""How a replica is told what it is: arguments, ``RSM_…`` variables, a TOML file, in this order.

::

    # site.toml
    group = "orders"
    bind = "10.0.0.1:7401"
    founders = ["10.0.0.1:7401", "10.0.0.2:7401", "10.0.0.3:7401"]
    key_file = "group.key"
    mode = "durable"
    data = "/var/lib/rsm/orders"
    metrics = "127.0.0.1:9401"

    [ring]                      # any setting of the ordering engine
    suspect_ms = 250
"""

import tomllib
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as shortened
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import msgspec
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from ordering import Config
from ordering.errors import ConfigurationError
from ordering.sealing import Keyring
from ordering.transports.addresses import default_packet_bytes, parse_endpoint
from rsm.sessions import SessionLimits

S = TypeVar("S", bound=BaseSettings)
HANDLER: Final = 1  # the handler lock whose holder answers clients


class ReplicaConfig(BaseSettings):
    """One replica of one group. Relative paths in a file are relative to that file."""

    model_config = SettingsConfigDict(env_prefix="RSM_", extra="forbid", frozen=True)

    group: Annotated[str, Field(min_length=1, description="The group's name.")]
    bind: Annotated[str, Field(description="Address and port, of UDP and TCP.")] = "127.0.0.1:7400"
    advertise: Annotated[str, Field(description="What others reach it by, where that differs.")] = ""
    founders: Annotated[tuple[str, ...], Field(description="Who founds the group, all of them.")] = ()
    contacts: Annotated[tuple[str, ...], Field(description="Whom somebody who joins may ask.")] = ()
    mode: Literal["memory", "durable"] = "memory"
    data: Annotated[Path | None, Field(description="Where a durable replica keeps its log.")] = None
    database: Annotated[str | None, Field(description="An SQLAlchemy URL; none: SQLite in data.")] = None
    key_file: Annotated[Path | None, Field(description="Group keys, one to the line, in hex.")] = None
    insecure: Annotated[bool, Field(description="Without keys: packets in plain, on purpose.")] = False
    snapshot_bytes: Annotated[
        int, Field(ge=1, description="Log between two snapshots, 1 KiB a row included.")
    ] = 64 << 20
    transfer_bytes_per_s: Annotated[
        int, Field(ge=0, description="At most so much of a state is sent; 0: no limit.")
    ] = 0
    outstanding_max: Annotated[int, Field(ge=1, description="Own calls without an answer.")] = 16_384
    message_bytes_max: Annotated[int, Field(ge=64, description="The largest call, encoded.")] = 2 << 20
    session_ms: Annotated[int, Field(ge=1, description="A session ends when idle so long.")] = 600_000
    sessions_max: Annotated[int, Field(ge=1, description="Sessions of the whole group.")] = 10_000
    metrics: Annotated[str, Field(description="Where to serve /metrics and /healthz; none: nowhere.")] = ""
    recording: Annotated[Path | None, Field(description="Where to record what it does; none: nowhere.")] = (
        None
    )
    recording_bytes_max: Annotated[int, Field(ge=1, description="Closed recordings that are kept.")] = 1 << 30
    recording_operations: Annotated[
        bool, Field(description="Record the calls of its own process as well, a row for each.")
    ] = True
    recording_changes: Annotated[
        bool, Field(description="Record what happens to the keys of its machine as well.")
    ] = True
    recording_sample_s: Annotated[
        float, Field(gt=0, description="Seconds between two samples of its counters, in the recording.")
    ] = 1.0
    ring: Annotated[dict[str, Any], Field(description="Settings of the ordering engine.")] = {}

    @classmethod
    def load(cls, path: Path | str, **arguments: Any) -> Self:
        """From a TOML file; variables and arguments win."""
        return load_settings(cls, path, ("data", "key_file", "recording"), arguments)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode == "durable" and self.data is None:
            raise ValueError("data: a durable replica needs a directory for its log")
        if self.mode == "memory" and (self.data or self.database):
            raise ValueError('mode: "memory" writes nothing; leave out data and database, or say "durable"')
        if self.key_file is None and not self.insecure:
            raise ValueError("key_file: there is none; make one with `openssl rand -hex 32`, or set insecure")
        if self.metrics:
            try:
                parse_endpoint(self.metrics, "metrics")
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        check_ring(self.ring)
        return self

    def keyring(self) -> Keyring | None:
        return read_keyring(self.key_file)

    def limits(self) -> SessionLimits:
        return SessionLimits(session_ms=self.session_ms, sessions_max=self.sessions_max)

    def engine(self, founders: tuple[str, ...], contacts: tuple[str, ...]) -> Config:
        """The ordering engine's settings."""
        parse_endpoint(self.bind, "bind")
        return engine_config(
            {"packet_bytes": default_packet_bytes(self.bind), **self.ring},
            group=self.group,
            founders=founders,
            contacts=contacts,
            durable=self.mode == "durable",
            message_bytes_max=self.message_bytes_max,
        )


def load_settings(kind: type[S], path: Path | str, files: Iterable[str], arguments: Mapping[str, Any]) -> S:
    """From a TOML file; variables and arguments win. ``files`` are settings that name one, relative to where
    the TOML file is."""
    path = Path(path)
    try:
        read = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: is no TOML: {error}") from None
    for name in files:
        if name in read:
            read[name] = path.parent / str(read[name])
    try:
        variables = EnvSettingsSource(kind)()
    except SettingsError as error:
        prefix = kind.model_config.get("env_prefix")
        raise ConfigurationError(f"{prefix}…: {error}; lists are written as JSON") from None
    try:
        return kind(**{**read, **variables, **arguments})
    except ValidationError as error:
        named = variables.keys() - arguments.keys()
        raise ConfigurationError(told(error, kind, str(path), named)) from None


def check_ring(ring: dict[str, Any]) -> None:
    unknown = set(ring) - set(Config.__struct_fields__)
    if unknown:
        raise ValueError(f"ring: {', '.join(sorted(unknown))}: no such settings of the ordering engine")


def engine_config(ring: dict[str, Any], **fixed: Any) -> Config:
    """``ring`` is what somebody has written down; ``fixed`` is decided elsewhere."""
    try:
        return msgspec.convert({**ring, **fixed}, Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"ring: {error}") from None


def read_keyring(path: Path | None) -> Keyring | None:
    if path is None:
        return None
    try:
        return Keyring.from_text(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"key_file: {path}: {error.strerror}") from None


def told(
    error: ValidationError, kind: type[BaseSettings], source: str, variables: Container[str] = ()
) -> str:
    """A line for each wrong setting: where it is written, which it is, what is wrong, what is allowed.
    ``variables`` are the settings that come from the environment, and not from ``source``."""
    lines = []
    for each in error.errors():
        key = str(each["loc"][0]) if each["loc"] else ""
        place = f"{kind.model_config.get('env_prefix')}{key.upper()}" if key in variables else source
        match each["type"]:
            case "missing":
                words = "is missing"
            case "extra_forbidden":
                words = f"there is no such setting; {_known(key, list(kind.model_fields))}"
            case "value_error":
                words = str(each["ctx"]["error"])
            case _:
                words = f"{shortened(each['input'])} is wrong: {each['msg'].replace('Input', 'it')}"
        lines.append(": ".join(filter(None, (place, ".".join(map(str, each["loc"])), words))))
    return "\n".join(lines)


def _known(name: str, names: list[str]) -> str:
    similar = get_close_matches(name, names)
    return f"did you mean {' or '.join(similar)}?" if similar else f"there are {', '.join(names)}"
