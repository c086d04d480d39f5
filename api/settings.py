"""How a gateway is told what it is: arguments, ``RSM_GATEWAY_…`` variables, a TOML file, in this order.

::

    # gateway.toml
    bind = "10.0.0.1:8080"
    tokens = "tokens.txt"
    tls_cert = "gateway.pem"
    tls_key = "gateway.key"
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ordering.errors import ConfigurationError
from ordering.transports.addresses import is_loopback, parse_endpoint
from rsm.config import load_settings

_FILES = ("tokens", "tls_cert", "tls_key", "recording")


class GatewaySettings(BaseSettings):
    """What a gateway serves, to whom, and how much of it. Relative paths in a file are relative to it."""

    model_config = SettingsConfigDict(env_prefix="RSM_GATEWAY_", extra="forbid", frozen=True)

    bind: Annotated[str, Field(description="Address and port of HTTP.")] = "127.0.0.1:8080"
    tokens: Annotated[Path | None, Field(description="Who may do what; none: everybody everything.")] = None
    insecure: Annotated[bool, Field(description="Serve others than this machine without tokens.")] = False
    hosts: Annotated[
        tuple[str, ...],
        Field(description="Names it is reached by, on loopback and without tokens; those of a proxy, say."),
    ] = ()
    tls_cert: Annotated[Path | None, Field(description="Certificate chain, PEM.")] = None
    tls_key: Annotated[Path | None, Field(description="Its private key, PEM.")] = None
    timeout: Annotated[float, Field(gt=0, description="Seconds until a call is given up.")] = 10.0
    requests_max: Annotated[int, Field(ge=1, description="Requests under way at a time, at most.")] = 256
    requests_min: Annotated[int, Field(ge=1, description="So many may be, however slow it gets.")] = 128
    slowdown_max: Annotated[float, Field(gt=1, description="So many times as without load.")] = 10.0
    watches_max: Annotated[int, Field(ge=0, description="Event streams at a time.")] = 1000
    connections_max: Annotated[int, Field(ge=1, description="Connections at a time.")] = 4096
    json_bytes_max: Annotated[int, Field(ge=1024, description="The largest JSON body.")] = 2 << 20
    head_bytes_max: Annotated[int, Field(ge=1024, description="Request line and headers.")] = 64 << 10
    head_s: Annotated[float, Field(gt=0, description="A head must be there in that time.")] = 10.0
    body_s: Annotated[float, Field(gt=0, description="After that a body must keep coming.")] = 10.0
    body_bytes_per_s_min: Annotated[int, Field(ge=1, description="That fast.")] = 1024
    stalled_s: Annotated[float, Field(gt=0, description="Who takes nothing for so long is left.")] = 30.0
    idle_s: Annotated[int, Field(ge=1, description="An idle connection is closed after that.")] = 60
    heartbeat_s: Annotated[float, Field(gt=0, description="Between two signs of life to a watcher.")] = 10.0
    watch_events_max: Annotated[int, Field(ge=1, description="Events that wait for a watcher.")] = 1000
    watch_bytes_max: Annotated[int, Field(ge=1, description="Bytes that wait for a watcher.")] = 4 << 20
    survey_ms: Annotated[int, Field(ge=0, description="A survey of the group is that old at most.")] = 200
    recording: Annotated[Path | None, Field(description="Where to record what its callers see.")] = None
    demo: Annotated[Path | None, Field(description="The socket of a demo's supervisor.")] = None
    drain_s: Annotated[int, Field(ge=0, description="A stop waits so long for what is under way.")] = 5

    @classmethod
    def load(cls, path: Path | str, **arguments: Any) -> Self:
        """From a TOML file; variables and arguments win."""
        return load_settings(cls, path, _FILES, arguments)

    @property
    def endpoint(self) -> tuple[str, int]:
        return parse_endpoint(self.bind, "bind")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            host, _ = self.endpoint
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert, tls_key: one is of no use without the other")
        if self.tokens is None and not self.insecure and not is_loopback(host):
            raise ValueError(
                f"bind: everybody who reaches {host} could do everything; name a file of tokens, bind to"
                " 127.0.0.1, or set insecure"
            )
        if self.demo is not None and not is_loopback(host):
            raise ValueError(
                "demo: whoever stops processes of this machine must come from it; bind to 127.0.0.1"
            )
        return self
