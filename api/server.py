"""Serves an application over HTTP inside an event loop that belongs to somebody else.

::

    async with Serving(create_app(store, settings), settings) as serving:
        print(serving.url)
        await stopped.wait()

uvicorn's own entry takes the process' signals, its log and, when a port is taken, its life.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final, Protocol, Self, TypeAlias

import uvicorn

from api.protocol import Directly, protocol_for
from api.settings import GatewaySettings
from ordering.errors import ConfigurationError

BACKLOG: Final = 4096  # where it is full, who connects waits a second and more
_POLL_SECONDS: Final = 0.005

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Application(Protocol):
    """An ASGI application with a beginning and an end, and what it serves without ASGI."""

    @property
    def keys(self) -> Directly | None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def start(self) -> None:
        """The event loop runs; requests follow."""

    async def stop(self) -> None:
        """Begin nothing more, and end what would never end by itself."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the host's."""
        yield


class Serving:
    """An application on a port, from ``start`` to ``stop``."""

    def __init__(self, app: Application, settings: GatewaySettings) -> None:
        self._app = app
        self._settings = settings
        self._server: _Server | None = None
        self._running: asyncio.Task[None] | None = None
        self.host, self.port = settings.endpoint

    @property
    def url(self) -> str:
        scheme = "http" if self._settings.tls_cert is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Returns when the port takes connections; ``port`` is the one it is, where 0 was asked for."""
        config = self._config()
        listener = self._listener()
        self.port = listener.getsockname()[1]
        await self._app.start()
        self._server = server = _Server(config)
        self._running = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not self._running.done():
            await asyncio.sleep(_POLL_SECONDS)
        if self._running.done():
            await self._running

    async def ended(self) -> None:
        """Returns when it was stopped, and raises why if it ended by itself."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Take no more, finish what is under way, ``drain_s`` long, and close."""
        server, running = self._server, self._running
        if server is None or running is None:
            return
        await self._app.stop()
        server.should_exit = True
        await asyncio.wait([running])
        for connection in list(server.server_state.connections):  # it was long enough
            connection.transport.abort()

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        config = uvicorn.Config(
            self._app,
            http=protocol_for(settings, self._app.keys),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=settings.idle_s,
            timeout_graceful_shutdown=settings.drain_s,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        try:
            config.load()
        except OSError as error:
            raise ConfigurationError(f"tls_cert, tls_key: cannot be used: {error}") from None
        return config

    def _listener(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(f"bind: {self._settings.bind}: {error.strerror or error}") from None
